"""Bad arguments: one line with what, expected, got and the fix; exit 2; not a file written.

One smoke test per verb, and what the command line itself checks; the rest is tested where it is
checked.
"""

from pathlib import Path

import pytest

from tests.cli.command import assert_refused
from tests.cli.conftest import Made

TRAIN = "train --dataset digits --arch digits-mlp --sigma 0.5 --epochs 1 --out {out}"
CERTIFY = "certify {ensemble} --indices 0:6 --n 200 --out {out}"
SLURM = f"{CERTIFY} --engine slurm --executor local --jobs 2"
THEOREM = "--eta 0.05 --lipschitz 1 --classes 10 --phi-norm 2 --beta 2.51"

SMOKE = [
    ("demo --n 5 --out {out}", "5 of 5 votes"),
    (f"{TRAIN} --arch digits-mpl", "'digits-mpl'", "did you mean 'digits-mlp'?"),
    ("weigh {runs} --method convx --out {out}", "'convx'", "did you mean 'convex'?"),
    (f"{CERTIFY} --alpha nan", "alpha", "got nan", "try 0.001"),
    ("predict {ensemble} {tmp}/none.png", "/none.png", "no such file", "check the path"),
    ("attack {ensemble} --eps 0 --all --out {out}", "eps", "0"),
    ("report {tmp}/none --out {out}", "/none", "no such folder"),
    ("verify {run}", "/run1", "neither", "`sween certify`"),
    ("plan --p 1.5", "p: ", "got 1.5", "try 0.9"),
    ("zoo --jason", "--jason", "see sween --help"),
    ("bench resnet21", "folder, zoo model or architecture 'resnet21'", "resnet20x2"),
    ("reproduce no-such-plan --out {out}", "no-such-plan"),
]

USAGE = [
    ("certfy", "'certfy'", "Did you mean 'certify'", "see sween --help"),
    ("certify {ensemble} --ouut x", "--ouut", "--out", "see sween --help"),
    ("certify {ensemble}", "'--out'", "see sween --help"),
    (f"{CERTIFY} --n many", "'--n'", "see sween --help"),
    (f"{CERTIFY} --n 1.5", "'--n'", "see sween --help"),
    (f"{CERTIFY} --n 1e5", "'--n'", "write 100000"),
    (f"{CERTIFY} --n=2e3", "'--n'", "write 2000"),
    (f"{CERTIFY} --sigma 0.5", "--sigma", "recorded with the model"),
    ("weigh {runs} --sigma=0.5 --out {out}", "--sigma", "recorded with the model"),
]

FOLDERS = [
    (f"{TRAIN} --out {{run}}", "/run1", "epochs 2 -> 1", "choose another folder"),
    (f"{TRAIN} --out {{run}}/config.toml", "config.toml", "a folder", "name another"),
    (f"{TRAIN} --out {{run}}/config.toml/x", "config.toml", "Not a directory", "choose another"),
    (f"{TRAIN} --out /proc/sween/x", "/proc/sween", "No such file", "check the path"),
    ("weigh {runs} --out {run}", "/run1", "such as config.toml", "choose another"),
    (f"{CERTIFY} --members --seed 1 --out {{certificates}}", "seed 0 -> 1", "another folder"),
]

OPTIONS = [
    (f"{TRAIN} --learning-rate 1e30", "diverged", "lower the learning rate"),
    (f"{TRAIN} --image-size 16", "image_size", "got 16", "leave --image-size out"),
    ("train --config fast/gaussian --sigma 0.5 --out {out}", "root of cifar10", "--data-root"),
    (
        "train --config fast/gaussian --sigma 0.5 --matrix-rate 0.1 --out {out}",
        "only muon uses",
        "muon",
    ),
    ("train --config fast/gausian --sigma 0.5 --out {out}", "did you mean 'fast/gaussian'?"),
    *((f"{TRAIN} --device {name}", "--device", name) for name in ("gpu", "meta", "cuda:99")),
    (f"{CERTIFY} --sampling decide --radius 0.5 --members", "one classifier", "sampling fixed"),
    (f"{CERTIFY} --sampling budget --budget 3000", "1000 pilot votes for each of 6", "lower n0"),
    (f"{CERTIFY} --bound two-class --sampling tolerance --tolerance 0.05", "cohen with tolerance"),
    (f"{CERTIFY} --forward-rows 9999999999", "1 to 1000000"),
    (f"{CERTIFY} --precision float8", "'float8'", "did you mean"),
    (f"{CERTIFY} --compile-mode fats", "'fats'", "did you mean 'fast'?"),
    (f"{CERTIFY} --no-compile --compile-mode max", "--compile-mode", "leave one of them out"),
    (f"{CERTIFY} --jobs 2", "--jobs", "--engine slurm"),
    (f"{CERTIFY} --engine slrm", "'slrm'", "did you mean 'slurm'?"),
    (f"{CERTIFY} --engine slurm", "--jobs", "number of jobs"),
    (f"{CERTIFY} --engine slurm --jobs 2 --shard 1/2", "--shard", "each job is a shard"),
    (f"{CERTIFY} --engine slurm --jobs 7", "--jobs", "at most 6"),
    (f"{CERTIFY} --engine slurm --jobs 2", "sbatch", "login node"),
    (f"{SLURM} --slurm acount=me", "'acount'", "did you mean 'account'?"),
    (f"{SLURM} --slurm cpus_per_task=two", "cpus_per_task", "two"),
    (f"{SLURM} --slurm account", "KEY=VALUE", "got account"),
    (f"{SLURM} --time 0", "--time", "got 0"),
    ("predict {ensemble} x.png --n0 5", "--n0", "no --certify"),
    ("report {certificates} --log-votes sof --out {out}", "sof", "did you mean", "soft"),
    ("plan", "none of them", "try --p 0.9"),
    ("plan --radius 0.5 --epsilon 0.1", "--epsilon and --radius", "keep one"),
    ("plan --radius 0.5 --runner-up 0.1", "--runner-up", "leave one out"),
    ("plan --radius -1", "radius: ", "got -1", "try 0.5"),
    (f"plan --epsilon 0.1 --members 3 {THEOREM}", "--epsilon and --members", "keep one"),
    (f"plan --members 3 {THEOREM}", "--images, --samples too", "docs/theory.md"),
    ("plan certify --images 10", "an ensemble or --certificates", "neither"),
    ("plan certify {ensemble} --certificates {certificates}", "both"),
    ("plan certify --certificates {certificates}", "at least 10 images", "got 6"),
    ("plan certify --certificates {certificates} --exit exact", "--exit", "leave it out"),
    ("plan certify {ensemble} --n 200 --pilot 10 --images 0 --quiet", "images", "got 0"),
    ("plan certify {ensemble} --n 200 --pilot 10 --price nan --quiet", "price", "got nan"),
    ("plan certify {ensemble} --bench {run}/config.toml", "config.toml", "sween bench --out"),
    (
        "plan certify {ensemble} --sampling budget --budget 4000 --pilot 10 --quiet",
        "1000 pilot votes for each of 360 images",
    ),
    ("bench digits-mlp --seconds inf", "--seconds", "inf"),
    ("bench digits-mlp --exit exact", "an ensemble among the models", "digits-mlp"),
    ("bench digits-sween3-gaussian-sigma0.50 --sigma 3", "--sigma", "0.5", "got 3"),
]

CASES = [*SMOKE, *USAGE, *FOLDERS, *OPTIONS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace("/", "|"))
def test_bad_arguments_are_refused(case: tuple[str, ...], made: Made, tmp_path: Path) -> None:
    line, *parts = case
    assert_refused(made.fill(line, tmp_path), *parts, watched=(tmp_path, made.base))
