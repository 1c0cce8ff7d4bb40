"""The scripts in benchmarks/, as far as they run without a GPU."""

import dataclasses
import functools
import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pytest
import torch

import sween
from sween.bench import calibrate_batch_norm
from sween.bounds.radius import radius_cohen
from sween.data import as_dataset
from sween.engine.kernels import (
    FusedQuantizedResNet,
    FusedResNet,
    IntegerShape,
    Shape,
    WideIntegerShape,
    WideQuantizedResNet,
    WideShape,
)
from sween.errors import BadInput
from sween.models import ARCHITECTURES, count_flops
from tests.engine.kernels.networks import norms_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


class Import(Protocol):
    def __call__(self, name: str) -> ModuleType: ...


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a benchmark by its name, as the scripts do with each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_every_cut_finds_its_primitive_in_the_kernels_of_every_precision(
    benchmark: Import,
) -> None:
    ablation = benchmark("kernel_ablation")
    shapes = [Shape(), WideShape(width=3), IntegerShape(), WideIntegerShape(width=4)]
    for what, shape in itertools.product(ablation.CUTS, shapes):
        whole = ablation.cut_source("nothing", shape)
        assert (ablation.cut_source(what, shape) != whole) == (what != "nothing")


@pytest.mark.parametrize(
    ("arch", "precision", "kind"),
    [
        ("resnet20", "float16", FusedResNet),
        ("resnet20x2", "float16", FusedResNet),
        ("resnet20", "int8", FusedQuantizedResNet),
        ("resnet20x3", "int8", WideQuantizedResNet),
    ],
)
def test_kernels_are_timed_on_the_shape_that_runs_the_network(
    arch: str, precision: str, kind: type[FusedResNet], benchmark: Import
) -> None:
    timing, shapes = benchmark("kernel_timing"), benchmark("kernel_shapes")
    (name,) = timing.options_of("", ["--arch", arch, "--precision", precision]).arch
    model = calibrate_batch_norm(timing._network(name), timing.IMAGE_SHAPE)
    shape = timing.shape_of(model, precision)
    for form, own in shapes.shapes_like(shape).items():
        launch = SimpleNamespace(shape=own)
        assert type(timing.fused_network(model, launch, torch.device("cpu"))) is kind
        numbers = shapes._numbers(form)
        assert (numbers is None) == (kind is WideQuantizedResNet)
        assert all(getattr(own, name) == number for name, number in (numbers or {}).items())


@pytest.mark.parametrize(
    ("arch", "precision"),
    [("resnet20x4", "float16"), ("digits-mlp", "float16"), ("imagenet-resnet18", "int8")],
)
def test_networks_without_kernels_are_not_timed_on_those_of_others(
    arch: str, precision: str, benchmark: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        benchmark("kernel_timing").options_of("", ["--arch", arch, "--precision", precision])
    assert stopped.value.code == 2
    assert f"got {arch} in {precision}" in capsys.readouterr().err


def test_a_long_benchmark_resumes_and_gives_every_subject_a_turn(
    benchmark: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, out = benchmark("turns").Turns, tmp_path / "rows.json"
    for name in (first := turns(out, ["a", "b", "c"], 60)):
        assert name == "a"
        break  # as if killed
    first.say_what_is_missing()
    assert "a (tried 1 times), b" not in (said := capsys.readouterr().out)
    assert said.startswith("not measured: b (tried 0 times), c (tried 0 times), a (tried 1 times);")
    assert list(turns(out, ["a", "b", "c"], 0)) == [], "no time"
    second = turns(out, ["a", "b", "c"], 60)
    for name in second:
        if name != "c":
            second.add(name, [{"rate": 1}])
    assert [row["subject"] for row in second.rows] == ["b", "a"]
    third = turns(out, ["a", "b", "c"], 60)
    assert list(third) == ["c"]
    third.add("c", [{"rate": 2}, {"rate": 3}])
    third.say_what_is_missing()
    assert "all 3 measured" in capsys.readouterr().out
    assert [row["rate"] for row in json.loads(out.read_text())["results"]] == [1, 1, 2, 3]


@pytest.mark.parametrize("damage", ["cut", "another machine", "other options"])
def test_rows_of_another_kind_are_not_added_to(
    damage: str, benchmark: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, out = benchmark("turns").Turns, tmp_path / "rows.json"
    turns(out, ["a"], 60, {"n": 1}).add("a", [{}])
    known = json.loads(out.read_text())
    if damage == "another machine":
        known["environment"]["gpu"] = "another GPU"
    out.write_text(json.dumps(known)[: 20 if damage == "cut" else None])
    with pytest.raises(SystemExit) as stopped:
        turns(out, ["a"], 60, {"n": 2 if damage == "other options" else 1})
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_votes_of_the_untouched_module_are_compared_with_those_of_the_prepared_one(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_counts, out = benchmark("same_counts"), tmp_path / "counts.json"
    monkeypatch.setattr(same_counts, "NETWORKS", {"resnet20": 32, "strangers:resnet110": 32})
    monkeypatch.setattr(same_counts, "reference_batch", lambda image: 100)
    seen: list[torch.nn.Module] = []

    def votes(model: torch.nn.Module, image: torch.Tensor, **options: Any) -> Any:
        seen.append(model)
        noisy = image + options["sigma"] * torch.randn(100 * options["batches"], *image.shape)
        return torch.bincount(model(noisy).argmax(1), minlength=options["num_classes"]).numpy()

    monkeypatch.setattr(same_counts, "reference_votes", votes)
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    arguments = ["--n", "200", "--device", "cpu", "--out", str(out)]
    try:
        same_counts.main([*arguments, "--network", "resnet20"])
        same_counts.main([*arguments, "--network", "resnet20"])
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32
    (row,) = json.loads(out.read_text())["results"]
    assert sum(row["original"]) == sum(row["prepared"]) == 200
    assert len(seen) == 1, "a row that is there is not counted again"
    assert norms_of(seen[0]), "the module as it is, not folded"


def test_networks_are_measured_by_every_way_and_those_in_the_file_are_left_out(
    benchmark: Import,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Processes that write a row, find the package by a relative path, and fail for one network."""
    any_network, out = benchmark("any_network"), tmp_path / "rows.json"
    assert [*any_network.NETWORKS].index("strangers:wide_resnet28_10") < 3
    assert set(any_network.NETWORKS) >= {name for name in ARCHITECTURES if "x" in name}
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in any_network.environment(tmp_path)
    assert not any_network.has_byte_code(tmp_path)
    kept = Path(any_network.environment(tmp_path)["PYTHONPYCACHEPREFIX"], "torch", "_dynamo")
    kept.mkdir(parents=True)
    (kept / "eval_frame.cpython-312.pyc").touch()
    assert any_network.has_byte_code(tmp_path)
    monkeypatch.setattr(any_network, "keep_byte_code", lambda cache: None)
    (tmp_path / "found_by_path.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".")
    script = tmp_path / "measured.py"
    script.write_text(
        "import found_by_path, importlib.util, sys, json, pathlib\n"
        "assert importlib.util.find_spec('strangers') and 'resnet20x2' not in sys.argv\n"
        "pathlib.Path(sys.argv[-1]).write_text(json.dumps({'results': [{'argv': sys.argv}]}))\n"
    )
    true_command, called = any_network.command, list[list[str]]()

    def command(*arguments: Any) -> list[str]:
        called.append(true_command(*arguments))
        return [sys.executable, str(script), *called[-1]]

    monkeypatch.setattr(any_network, "command", command)
    modes = [part for mode in any_network.MODES for part in ("--mode", mode)]
    networks = ["--network", "resnet20x4", "--network", "resnet20x2"]
    any_network.main(["--out", str(out), *modes, *networks])
    rows = json.loads(out.read_text())["results"]
    assert [(row["compile_mode"], row["run"]) for row in rows] == [
        ("fast", "first"), ("fast", "again"), ("plain", "first"), ("cudnn", "first"),
        ("cudnn", "again"), ("max", "first"), ("max", "again"),
    ]  # fmt: skip
    assert "not measured: resnet20x2 by fast (tried 1 times)" in capsys.readouterr().out
    before = len(called)
    any_network.main(["--out", str(out), *modes, *networks[:2]])
    assert len(called) == before
    assert "all 4 measured" in capsys.readouterr().out
    scripts = {Path(part).name for line in called for part in line if part.endswith(".py")}
    assert scripts == {"plain_compile.py", "without_compiler.py"}


@pytest.mark.slow
def test_plain_torch_compile_takes_turns_with_ours(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, out = benchmark("plain_compile"), tmp_path / "row.json"
    compiled: list[torch.nn.Module] = []

    def keep(module: torch.nn.Module, **_: Any) -> torch.nn.Module:
        compiled.append(module)
        return module

    monkeypatch.setattr(torch, "compile", keep)
    # On a CPU the automatic precision takes turns with others, which are compiled too.
    small = {"precision": "float32", "forward_rows": 10}
    monkeypatch.setattr(plain, "measure", functools.partial(plain.measure, **small))
    plain.main(["resnet20", "--seconds", "0.01", "--rounds", "2", "--device", "cpu",
                "--out", str(out)])  # fmt: skip
    (row,) = json.loads(out.read_text())["results"]
    assert len(row["turns_with_plain"]) == 2
    assert row["ratio_to_plain"] > 0
    (module,) = compiled
    assert norms_of(module), "without our preparation"
    assert {tensor.dtype for tensor in module.parameters()} == {torch.float16}


@pytest.mark.slow
def test_a_command_runs_without_the_compiler() -> None:
    line = "bench digits-mlp --seconds 0.01 --rounds 1 --compile --device cpu"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "without_compiler.py"), *line.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be compiled" in done.stderr
    assert "float32" in done.stdout
    assert "compiled" not in done.stdout


def test_ways_to_compute_a_convolution_agree(
    benchmark: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    options = ["--image-size", "32", "--rows", "2", "--rounds", "1", "--calls", "1"]
    options += ["--device", "cpu", "--copied", "1000", "--out", str(out)]
    benchmark("convolutions").main(["imagenet-resnet50", *options])
    content = json.loads(out.read_text())
    rows = {row["layer"]: row for row in content["results"]}
    assert sum(row["times"] for row in rows.values()) == 53
    assert capsys.readouterr().err == "", "every way ran"
    ways = {name for row in rows.values() for name in row} - {
        *("layer", "times", "flops", "bytes", "least"),
    }
    assert ways == {"cudnn", "blocks"}, "products are for a GPU"
    # A way whose outputs are others than cuDNN's has no time.
    assert all(row[way] > 0 for row in rows.values() for way in ways & row.keys())
    first = rows["7x7 3->64 of 32 px /2 +relu"]
    assert "blocks" in first
    assert first["flops"] == 2 * 7 * 7 * 3 * 64 * 16 * 16 * 2
    assert len(content["groups"]) == 2, "the first layers, and the end of the first block"
    assert all(row["kernel"] is None and row["one by one"] > 0 for row in content["groups"])


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 9])
def test_a_convolution_of_blocks_of_pixels(kernel: int, benchmark: Import) -> None:
    script, x = benchmark("convolutions"), torch.rand(2, 3, 12, 16)
    conv = torch.nn.Conv2d(3, 5, kernel, stride=2, padding=kernel // 2)
    weight, padding = script.weights_of_blocks(conv, conv.weight)
    found = script.blocks(x, weight, conv.bias, padding, relu=False)
    torch.testing.assert_close(found, conv(x))


def test_members_see_mirror_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: Import
) -> None:
    tune, out = benchmark("tune_ensemble"), tmp_path / "rows.jsonl"
    line = f"mirror digits-sween3-gaussian-sigma0.50 --sigma 0.5 --dataset digits --data-root {out}"
    arguments = f"{line} --images 20 --n 200 --out {out}".split()
    monkeypatch.setattr(sys, "argv", ["tune_ensemble.py", *arguments])
    tune.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    kinds = ["mirrored", "together", "with mirrored"]
    assert [row["kind"] for row in rows] == ["mirrored", "network", "with mirrored", *(
        ["network", *kinds] * 2
    )]  # fmt: skip
    assert len(rows[-1]["networks"]) == 6
    assert rows[1]["acr"] != rows[0]["acr"]


def test_means_of_networks_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: Import
) -> None:
    tune, out, runs = benchmark("tune_ensemble"), tmp_path / "rows.jsonl", tmp_path / "runs"
    config = sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=1)
    sween.train(config, sween.load_dataset("digits"), runs / "mine", quiet=True)
    (runs / "mine" / "try.txt").write_text("recipe")
    line = f"score {runs} --sigma 0.5 --dataset digits --data-root {out} --images 20 --n 200"
    line += " --beside digits-sween3-gaussian-sigma0.50 --partner digits-mlp"
    line += f" --mean mine+digits-conv --out {out}"
    monkeypatch.setattr(sys, "argv", ["tune_ensemble.py", *line.split()])
    tune.main()
    last = json.loads(out.read_text().splitlines()[-1])
    assert (last["kind"], last["networks"]) == ("mean", ["mine", "digits-conv"])
    assert last["expected_acr"] >= last["acr"]


def test_ingredients_of_the_ablation_cost_as_many_passes_as_the_record(benchmark: Import) -> None:
    ablation = benchmark("ablation")
    options = SimpleNamespace(arch="resnet20x2", sigma=0.5, epochs=60, dataset="cifar10")
    found = {name: ablation.config_of(name, 0, options) for name in ablation.variations(options)}
    base = found[ablation.BASE]
    assert (base.epochs, base.optimizer, base.arch) == (60, "muon", "resnet20x2")
    assert "resnet20x2" not in found
    assert found["gaussian"].epochs == 2 * base.epochs
    assert found["acr"].votes == 32
    assert found["attacked noise"].attack_from == round(0.6 * found["attacked noise"].epochs)
    for name, config in found.items():
        passes = sum(map(config.passes_at, range(config.epochs)))
        more = dataclasses.replace(config, epochs=config.epochs + 1)
        wanted = {"half the passes": 60, "twice the passes": 240}.get(name, 120)
        assert passes <= wanted + 1, name
        assert passes + 2 * more.passes_at(config.epochs) > wanted, name


def test_the_ablation_trains_in_several_processes(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablation, commands = benchmark("ablation"), list[list[str]]()
    monkeypatch.setattr(
        ablation.subprocess, "run", lambda command, check: commands.append(command[2:])
    )
    chosen = [ablation.BASE, "by SGD", "gaussian"]
    given = ["train", "--sigma", "0.5", "--minutes", "1", "--epochs", "7", "--out", str(tmp_path)]
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "",
            *given,
            "--at-once",
            "2",
            *(part for name in chosen for part in ("--variation", name)),
        ],
    )
    ablation.main()
    assert sorted(command[-1] for command in commands) == sorted(chosen)
    trained = list[str]()
    monkeypatch.setattr(ablation, "load_dataset", lambda *_: None)
    monkeypatch.setattr(
        ablation,
        "train_many",
        lambda configs, *_, **__: trained.extend(f"{own.method} {own.epochs}" for own in configs),
    )
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["", *command])
        ablation.main()
    assert sorted(trained) == ["consistency 7"] * 4 + ["gaussian 14"], "three seeds of the recipe"


def test_radii_as_more_votes_would_give_them(benchmark: Import) -> None:
    tune = benchmark("tune_ensemble")
    radius = functools.partial(radius_cohen, alpha=0.001, sigma=0.5)
    counts = np.array([10_000, 9_990, 6_200, 5_300, 5_000])
    kept = np.asarray(radius(counts, 10_000)).astype(np.float32)
    found = tune.expected_radii(kept, n=10_000, sigma=0.5)
    assert found.tolist() == np.where(kept > 0, radius(10 * counts, 100_000), 0.0).tolist()
    assert (found[:4] > kept[:4]).all()
    assert found[4] == 0


def test_a_try_that_diverges_leaves_the_rows_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: Import
) -> None:
    tune = benchmark("tune_recipe")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('dataset = "digits"\narch = "digits-mlp"\nbatch_size = 100\n')
    out, tries = tmp_path / "rows.jsonl", ["recipe", "learning_rate=1e30", "batch_size=150"]
    fixed = ["--sigma", "0.5", "--epochs", "2", "--images", "10", "--n", "100", "--out", str(out)]
    fixed += ["--config", str(recipe), "--arch", "digits-mlp", "--at-once", "2"]

    def run(*texts: str) -> list[dict[str, Any]]:
        arguments = [part for text in texts for part in ("--try", text)]
        monkeypatch.setattr(sys, "argv", ["tune_recipe.py", *fixed, *arguments])
        tune.main()
        return [json.loads(line) for line in out.read_text().splitlines()]

    with pytest.raises(BadInput, match="batch_size"):
        run("recipe", "batch_size=0")
    assert not out.exists()
    rows = run(*tries)
    assert [row["try"] for row in rows] == tries
    assert [row.get("failed", False) for row in rows] == [False, True, False]
    assert len(rows[2]["radii"]) == 10
    assert run(*tries) == rows


def test_options_are_tried_on_a_small_stand_in(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark("small_stand_in")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (240, 3, 32, 32), dtype=torch.uint8, generator=generator)
    cifar = as_dataset((pixels, torch.arange(240) % 10), (pixels[:20], torch.arange(20) % 10))
    true = script.load_dataset

    def load(name: str, root: Path | None = None) -> Any:
        assert (name == "cifar10") == (root == Path("unused"))
        return cifar if name == "cifar10" else true(name, root)

    monkeypatch.setattr(script, "load_dataset", load)
    monkeypatch.setattr(script, "HELD_OUT", range(200, 220))
    data, runs, rows = (
        ["--data-root", "unused", "--trained", "200"], tmp_path / "runs", tmp_path / "rows.jsonl",
    )  # fmt: skip
    tries = ["--try", "recipe", "--try", "noise_factor=1.5", "--seed", "0", "--seed", "1"]
    script.main(["train", *tries, "--epochs", "1", *data, "--out", str(runs)])
    score = ["score", str(runs), "--images", "20", "--n", "50", *data, "--out", str(rows)]
    script.main(score)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["kind"] for row in found] == ["network"] * 4 + ["together"] * 2 + ["of two tries"]
    assert found[-1]["networks"] == ["noise_factor_1.5-seed0", "recipe-seed1"]
    assert {row["config"]["noise_factor"] for row in found[:2]} == {1.5}
    assert all(0 <= row["acr"] < 1 for row in found)


@pytest.mark.parametrize("arch", ["full", "half"])
def test_networks_of_the_whole_stand_in_cost_the_same(benchmark: Import, arch: str) -> None:
    network = getattr(benchmark("small_stand_in"), arch)(10).eval()
    assert count_flops(network, (3, 32, 32)) == pytest.approx(41e6, rel=0.02)


def test_the_steps_before_a_first_vote_are_timed_inside_one_another(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_vote, out = benchmark("first_vote"), tmp_path / "steps.json"
    before = [
        getattr(importlib.import_module(f"sween.engine.{room}"), name)
        for room, names in first_vote.STEPS.items()
        for name in names
    ]
    first_vote.main(["resnet20", "--image-size", "32", "--here", "--profile", "--out", str(out)])
    found = json.loads(out.read_text())
    seconds = {tuple(row["step"]): row["seconds"] for row in found["steps"]}
    read = ("engine.prepare", "prepare", "is_read_rightly")
    assert 0 < seconds[(*read, "_recorded")] < seconds[read] < seconds[read[:2]] < found["seconds"]
    assert "function calls" in found["profile"]
    assert before == [
        getattr(importlib.import_module(f"sween.engine.{room}"), name)
        for room, names in first_vote.STEPS.items()
        for name in names
    ]
