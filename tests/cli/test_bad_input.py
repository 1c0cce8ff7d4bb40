"""Bad arguments: one line with what, expected, got and the fix; exit 2; not a file written."""

from pathlib import Path

import pytest

from tests.cli.command import assert_refused
from tests.cli.conftest import Made

TRAIN = "train --dataset digits --arch digits-mlp --sigma 0.5 --epochs 1 --out {out}"
TRAIN_CIFAR = "train --dataset cifar10 --arch resnet20 --sigma 0.5 --out {out}"
WEIGH = "weigh {runs} --samples 2 --out {out}"
CERTIFY = "certify {ensemble} --n 200 --out {out}"
CERTIFY_SIX = f"{CERTIFY} --indices 0:6"
THEOREM = "--eta 0.05 --lipschitz 1 --classes 10 --phi-norm 2 --beta 2.51"

USAGE = [
    ("certfy", "'certfy'", "Did you mean 'certify'", "see sween --help"),
    ("certify {ensemble} --ouut x", "--ouut", "--out", "see sween --help"),
    ("certify {ensemble}", "'--out'", "see sween --help"),
    ("certify {ensemble} --out", "'--out'", "see sween --help"),
    ("certify --out {out} --all", "source", "see sween --help"),
    (f"{CERTIFY_SIX} --n many", "'--n'", "see sween --help"),
    (f"{CERTIFY_SIX} --alpha small", "'--alpha'", "see sween --help"),
    (f"{TRAIN} --epochs 1.5", "'--epochs'", "see sween --help"),
    (f"{TRAIN} extra", "extra", "see sween --help"),
    ("weigh --out {out}", "runs", "see sween --help"),
    ("verify", "folder", "see sween --help"),
]

TRAINING = [
    (f"{TRAIN} --dataset digit", "'digit'", "did you mean 'digits'?", "cifar10"),
    (f"{TRAIN} --arch digits-mpl", "'digits-mpl'", "did you mean 'digits-mlp'?"),
    (f"{TRAIN} --arch zzz", "'zzz'", "available: ", "digits-conv"),
    (f"{TRAIN} --method gausian", "'gausian'", "did you mean 'gaussian'?"),
    (f"{TRAIN} --schedule one-cicle", "'one-cicle'", "did you mean 'one-cycle'?"),
    (f"{TRAIN} --sigma -0.5", "sigma", "-0.5", "try 0.5"),
    (f"{TRAIN} --sigma nan", "sigma", "nan", "try 0.5"),
    (f"{TRAIN} --sigma inf", "sigma", "inf", "try 0.5"),
    (f"{TRAIN} --epochs 0", "epochs", "at least 1, got 0", "try 1"),
    (f"{TRAIN} --batch-size 0", "batch_size", "at least 1, got 0", "try 1"),
    (f"{TRAIN} --learning-rate 0", "learning_rate", "got 0.0", "try 0.1"),
    (f"{TRAIN} --learning-rate 1e30", "diverged", "lower --learning-rate"),
    (f"{TRAIN} --weight-decay -1", "weight_decay", "got -1.0", "try 5e-4"),
    (f"{TRAIN} --seed 9999999999999999999", "seed", "9999999999999999999", "smaller seed"),
    (f"{TRAIN} --image-size 16", "image_size", "got 16", "leave --image-size out"),
    (f"{TRAIN} --convert", "convert", "leave --convert out"),
    (f"{TRAIN} --device gpu", "--device", "got gpu", "try auto"),
    (f"{TRAIN} --device cuda:99", "--device", "cuda:99", "use --device cpu"),
    (f"{TRAIN} --device meta", "--device", "got meta", "try auto"),
    (TRAIN_CIFAR, "root of cifar10", "cifar-10-python.tar.gz", "--data-root"),
    (f"{TRAIN_CIFAR} --data-root {{tmp}}/none", "/none", "nothing there", "--data-root"),
    (f"{TRAIN_CIFAR} --data-root {{run}}", "/run1", "a folder with neither", "--data-root"),
    (f"{TRAIN} --arch no.such.module:make", "no.such.module:make", "PYTHONPATH"),
    (f"{TRAIN} --arch json:no_such_name", "json:no_such_name", "check both names"),
    (f"{TRAIN} --arch :", "':'", "PYTHONPATH"),
    (f"{TRAIN} --out {{run}}", "/run1", "epochs 2 -> 1", "choose another --out"),
    (f"{TRAIN} --out {{run}}/config.toml", "config.toml", "exists", "choose another"),
    (f"{TRAIN} --out {{run}}/config.toml/x", "config.toml", "Not a directory", "choose another"),
    (f"{TRAIN} --out /proc/sween/x", "/proc/sween", "No such file", "check the path"),
]

WEIGHING = [
    (f"{WEIGH} --method convx", "'convx'", "did you mean 'convex'?"),
    (f"{WEIGH} --samples 0", "samples", "at least 1, got 0", "raise it"),
    ("weigh {tmp}/none --out {out}", "/none", "no such file", "check the path"),
    ("weigh {certificates} --out {out}", "model.safetensors", "no such file", "check the path"),
    (f"{WEIGH} --out {{run}}", "/run1", "such as config.toml", "choose another"),
    (f"{WEIGH} --out {{run}}/config.toml", "config.toml", "a file", "choose another"),
    (f"{WEIGH} --quiet --out /proc/sween/x", "/proc/sween", "No such file", "check the path"),
    (f"{WEIGH} --seed -9999999999999999999", "seed", "smaller seed"),
]

CERTIFYING = [
    ("certify {tmp}/none --all --out {out}", "/none", "no such file", "check the path"),
    ("certify {certificates} --all --out {out}", "/certificates", "neither", "`sween train`"),
    (f"{CERTIFY_SIX} --alpha 0", "alpha", "between 0 and 1", "got 0.0", "try 0.001"),
    (f"{CERTIFY_SIX} --alpha 1", "alpha", "got 1.0", "try 0.001"),
    (f"{CERTIFY_SIX} --alpha -1", "alpha", "got -1.0", "try 0.001"),
    (f"{CERTIFY_SIX} --alpha nan", "alpha", "got nan", "try 0.001"),
    (f"{CERTIFY_SIX} --n0 0", "n0", "at least 1 vote, got 0", "try 100"),
    (f"{CERTIFY_SIX} --n 0", "n: ", "at least 1 vote, got 0", "try 100000"),
    (f"{CERTIFY_SIX} --n 9", "9 of 9 votes only show p > 0.4642", "use n >= 10"),
    (f"{CERTIFY_SIX} --n 10 --bound two-class", "10 of 10 votes", "p > 0.4959", "use n >= 11"),
    (f"{CERTIFY_SIX} --bound cohn", "'cohn'", "did you mean 'cohen'?", "two-class"),
    (f"{CERTIFY_SIX} --exit papr", "'papr'", "did you mean 'paper'?", "exact"),
    (f"{CERTIFY_SIX} --sampling fixd", "'fixd'", "did you mean 'fixed'?"),
    (f"{CERTIFY_SIX} --exit-threshold 0", "exit threshold", "got 0.0", ".999"),
    (f"{CERTIFY_SIX} --exit-threshold 1", "exit threshold", "got 1.0", ".999"),
    (f"{CERTIFY_SIX} --exit-alpha 1", "exit alpha", "got 1.0", ".05"),
    (f"{CERTIFY} --indices 355:361", "--indices", "360 images", "stay within 0:360"),
    (f"{CERTIFY} --indices 360", "--indices", "'360'", "use at most 359"),
    (f"{CERTIFY} --indices 6:0", "--indices", "'6:0'", "swap the ends: 0:6"),
    (f"{CERTIFY} --indices 3:3", "--indices", "'3:3'", "use 3:4"),
    (f"{CERTIFY} --indices 0:3,2", "--indices", "2 twice", "remove the repetition"),
    (f"{CERTIFY} --indices ,", "--indices", "an empty entry", "name at least one"),
    (f"{CERTIFY} --indices 1-3", "--indices", "'1-3'", "write ranges with ':'"),
    (f"{CERTIFY} --indices 0:6:0", "--indices", "step of 1 or more", "use 0:6"),
    (f"{CERTIFY} --indices one", "--indices", "'one'", "use whole numbers"),
    (CERTIFY, "none of them", "give --all"),
    (f"{CERTIFY_SIX} --all", "--indices and --all", "keep one"),
    (f"{CERTIFY_SIX} --every 20", "--indices and --every", "keep one"),
    (f"{CERTIFY} --every 0", "--every", "1 or more, got 0", "use --every 20"),
    (f"{CERTIFY_SIX} --batch-size 0", "batch_size", "at least 1, got 0", "try 1000"),
    (f"{CERTIFY_SIX} --seed 9999999999999999999", "seed", "smaller seed"),
    (f"{CERTIFY_SIX} --device gpu", "--device", "got gpu", "try auto"),
    (f"{CERTIFY_SIX} --device cuda:99", "--device", "cuda:99", "use --device cpu"),
    (f"{CERTIFY_SIX} --convert", "convert", "leave --convert out"),
    (f"{CERTIFY_SIX} --out {{certificates}}", "members ['digits", "choose another --out"),
    (f"{CERTIFY_SIX} --members --seed 1 --out {{certificates}}", "seed 0 -> 1", "another --out"),
    (f"{CERTIFY_SIX} --out {{run}}", "/run1", "another config", "choose another --out"),
    (f"{CERTIFY_SIX} --out /proc/sween/x", "/proc/sween", "No such file", "check the path"),
    (f"{CERTIFY_SIX} --out {{run}}/config.toml/x", "config.toml", "choose another"),
]

READING = [
    ("report {ensemble} --out {out}", "/ensemble", "certificates.jsonl", "`sween certify`"),
    ("report {run}/config.toml --out {out}", "config.toml", "idx"),
    ("report {certificates} --log-digits 0 {run}/config.toml --out {out}", "digits", "at least 1"),
    ("predict {ensemble} x.png --n0 5", "--n0", "no --certify"),
    ("predict {ensemble} x.png --bound nonsense", "--bound", "no --certify"),
    ("certify {ensemble} --indices 0 --n0 1000000000000 --out {out}", "n0", "at most 1000000000"),
    ("certify {ensemble} --indices 0 --alpha 5e-100 --out {out}", "alpha", "at least 1e-96"),
    (
        "certify {ensemble} --indices 0 --bound two-class --sampling tolerance --tolerance 0.05 "
        "--out {out}",
        "bound",
        "cohen with tolerance",
    ),
    ("certify {ensemble} --indices 0 --forward-rows 9999999999 --out {out}", "1 to 1000000"),
    ("report {certificates} --log-votes sof --out {out}", "sof", "did you mean", "soft"),
    ("report {tmp}/none --out {out}", "/none", "no such folder", "pass a folder"),
    ("report {certificates} {certificates} --out {out}", "certificates 2 times", "rename one"),
    ("report {certificates} --radius -0.5 --out {out}", "radii", "-0.5"),
    ("report {certificates} --radius nan --out {out}", "radii", "nan"),
    ("report {certificates} --out {run}/config.toml", "config.toml", "choose another --out"),
    ("verify {tmp}/none", "/none", "no such folder", "`sween certify`"),
    ("verify {run}", "/run1", "neither", "`sween certify`"),
    ("predict {ensemble} {tmp}/none.png", "/none.png", "no such file", "check the path"),
    ("predict {ensemble} {tmp}", "a folder with images", "the image files themselves"),
    ("predict {ensemble}", "images", "see sween --help"),
]

PLANNING = [
    ("plan", "none of them", "try --p 0.9"),
    (f"plan --epsilon 0.1 --members 3 {THEOREM}", "--epsilon and --members", "keep one"),
    ("plan --epsilon 0.1 --p 0.9", "--epsilon and --p", "keep one"),
    ("plan --images 10 --p 0.9", "--images and --p", "keep one"),
    (f"plan --epsilon 0.1 {THEOREM.replace('--beta 2.51', '')}", "--beta", "docs/theory.md"),
    (f"plan --members 3 {THEOREM}", "--images, --samples too", "docs/theory.md"),
    (f"plan --epsilon 0.1 {THEOREM} --eta 0", "eta", "got 0.0", "try 0.05"),
    (f"plan --epsilon -0.1 {THEOREM}", "epsilon", "got -0.1", "try 0.1"),
    (f"plan --epsilon 0.1 {THEOREM} --phi-norm 0.5", "phi_norm", "got 0.5", "try 2"),
    (f"plan --epsilon 0.1 {THEOREM} --classes 1", "num_classes", "got 1", "integer"),
    ("plan --p 0", "p: ", "got 0.0", "try 0.9"),
    ("plan --p 1.5", "p: ", "got 1.5", "try 0.9"),
    ("plan --p 0.9 --runner-up 0.2", "runner_up", "got 0.2", "second most likely"),
    ("plan --p 0.9 --n 0", "n: ", "got 0", "integer"),
    ("plan --p 0.9 --sigma 0", "sigma", "got 0.0", "try 0.25"),
]

CASES = [*USAGE, *TRAINING, *WEIGHING, *CERTIFYING, *READING, *PLANNING]


def test_the_table_is_as_long_as_promised() -> None:
    assert len({line for line, *_ in CASES}) == len(CASES) >= 45


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace("/", "|"))
def test_bad_arguments_are_refused(case: tuple[str, ...], made: Made, tmp_path: Path) -> None:
    line, *parts = case
    assert_refused(made.fill(line, tmp_path), *parts, watched=(tmp_path, made.base))
