"""Wheel and source distribution: what they hold, and that they work where nothing else is.

For each version of Python that sween supports and this machine has, a clean environment is
installed once, without extras. Those of the extras see its packages, so that torch is not installed
for each of them; commands run without a network.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

import sween
from sween.data import load_dataset
from sween.doctor.installation import EXTRAS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")
ZOO = "digits-sween3-gaussian-sigma0.50"
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://[::]:9")
"""Points nowhere, where a process may not be cut off the network."""


def run(command: Sequence[str | Path], **options: object) -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return str(done.stdout)


def make_environment(folder: Path, python: str = sys.executable) -> Path:
    """A new virtual environment; gives its folder of commands."""
    run([python, "-m", "venv", folder])
    return folder / "bin"


def find_interpreter(version: str) -> str | None:
    """This one, or the first of that version on the PATH or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [sys.executable, *([on_path] if on_path else [])]
    candidates += sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))
    return next((each for each in candidates if is_python(version, each)), None)


def is_python(version: str, command: str) -> bool:
    """Whether a command starts that version: a shim of pyenv may start none."""
    shown = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return shown.stdout.startswith(f"Python {version}.")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built of it."""
    folder = tmp_path_factory.mktemp("built")
    tools = make_environment(folder / "tools")
    try:
        run([tools / "pip", "install", "--quiet", "build", "twine"])
    except AssertionError as error:
        pytest.skip(f"no package index: {error}")
    run([tools / "python", "-m", "build", "--outdir", folder / "dist", ROOT])
    run([tools / "twine", "check", "--strict", *(folder / "dist").iterdir()])
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module", params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    """Each supported version in turn."""
    found = find_interpreter(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} on this machine")
    return found


@pytest.fixture(scope="module")
def clean(python: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has sween and what it requires."""
    commands = make_environment(tmp_path_factory.mktemp("clean") / "environment", python)
    run([commands / "pip", "install", "--quiet", "--constraint", CONSTRAINTS, wheel])
    return commands


def sween_offline(commands: Path, line: str, folder: Path) -> str:
    """The output of `sween LINE` without a network, this checkout or this home."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {**kept, **NOWHERE, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    loopback = 'ip link set lo up && exec "$@"'  # which Ray needs
    cut = ["unshare", "--map-root-user", "--net", "sh", "-c", loopback, "sh"]
    try:
        allowed = subprocess.run([*cut, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    words = [*(cut if allowed else []), str(commands / "sween"), *line.split()]
    return run(words, cwd=folder, env=environment)


def test_the_wheel_is_small_and_whole(wheel: Path) -> None:
    assert wheel.name == f"sween-{sween.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 30e6
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    described = _description(wheel)
    own = f"sween-{sween.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"sween", own}
    package = ROOT / "src" / "sween"
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {f"sween/{path.relative_to(package).as_posix()}" for path in files} <= names
    assert {"sween/py.typed", "sween/configs/fast/gaussian.toml"} <= names
    assert f"\nVersion: {sween.__version__}\n" in described
    assert "\nLicense-Expression: MIT\n" in described


def test_the_description_has_no_link_that_leads_nowhere(wheel: Path, tmp_path: Path) -> None:
    """Without an address of the repository links are text; with it they are absolute."""
    elsewhere = LINKS.findall(_description(wheel))
    assert all(target.startswith("https://") for target in elsewhere)
    address = "https://code.example/sween/blob/v1"
    environment = {**os.environ, "SWEEN_REPOSITORY_URL": address}
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(ROOT)]
    run([*pip, "--wheel-dir", str(tmp_path)], env=environment)
    (linked,) = tmp_path.glob("*.whl")
    targets = LINKS.findall(_description(linked))
    assert f"{address}/docs/tutorial.md" in targets
    assert f"{address}/docs/pictures/idea.png?raw=true" in targets
    assert set(targets) > set(elsewhere)
    assert all(target.startswith("https://") for target in targets)
    assert f"\nProject-URL: Source, {address}\n" in _description(linked)


LINKS = re.compile(r"(?:\]\(|src=\"|srcset=\")([^\")]+)")


def _description(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(metadata).decode()


def test_the_source_distribution_has_what_builds_it_and_no_results(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    assert path.stat().st_size < 30e6
    with tarfile.open(path) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    declared = {name.strip("/") for name in include["targets"]["sdist"]["include"]}
    always = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", ".gitignore"}
    assert tops == declared | always


def test_without_extras(clean: Path, tmp_path: Path) -> None:
    """Demo, zoo and predict offline, in a home that has nothing."""
    assert run([clean / "pip", "check"]).strip() == "No broken requirements found."
    installed = run([clean / "pip", "list", "--format", "freeze"]).lower()
    assert not [package for package in EXTRAS.values() if f"\n{package}==" in installed]

    assert sween_offline(clean, "--version", tmp_path) == f"sween {sween.__version__}\n"
    found = json.loads(sween_offline(clean, "doctor --json", tmp_path))
    assert set(found["self-test"].values()) <= {"ok", "skipped: no GPU"}
    assert str(clean.parent) in found["versions"]["sween"], "not the installed package"
    assert ZOO in sween_offline(clean, "zoo", tmp_path)

    shown = sween_offline(clean, "demo --n 1000 --out demo --quiet", tmp_path)
    assert "SWEEN-3" in shown
    assert "1440 rows re-derived" in sween_offline(clean, "verify demo/certificates", tmp_path)

    digits = load_dataset("digits").test
    pixels = digits.images([0])[0, 0].mul(255).round().to(torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "digit.png")
    line = f"predict {ZOO} digit.png --certify --n 1000"
    answer = re.fullmatch(
        r"digit.png\t(\d)\tradius (\d\.\d+)\n", sween_offline(clean, line, tmp_path)
    )
    assert answer
    assert int(answer[1]) == int(digits.labels[0])
    assert float(answer[2]) > 0


CERTIFY = f"certify {ZOO} --indices 0:4 --n 200 --quiet --out certificates"
TRAIN = "train --dataset digits --sigma 0.5 --epochs 1 --quiet --out run"
CERTIFICATES = "certificates/certificates.jsonl"
USES = {
    "report": ([CERTIFY, "report certificates --out report"], "report/curve-*.png"),
    "tensorboard": ([f"{TRAIN} --arch digits-mlp"], "run/**/events.out.tfevents.*"),
    "attack": (
        [f"attack {ZOO} --eps 0.25 --indices 0:2 --samples 4 --n 100 --quiet --out attacks"],
        "attacks/attacks.jsonl",
    ),
    "timm": (
        [f"{TRAIN} --arch timm:resnet18", CERTIFY.replace(ZOO, "run")],
        CERTIFICATES,
    ),
    "slurm": ([f"{CERTIFY} --engine slurm --executor local --jobs 2"], CERTIFICATES),
    "ray": ([f"{CERTIFY} --engine ray --workers 1"], CERTIFICATES),
}
"""What each extra is for: commands that need it, and a file that they write."""


@pytest.mark.parametrize("extra", EXTRAS)
def test_with_an_extra(extra: str, python: str, wheel: Path, clean: Path, tmp_path: Path) -> None:
    commands = make_environment(tmp_path / "environment", python)
    (own,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    (shared,) = clean.parent.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"{shared}\n")
    wanted = f"{wheel}[{extra}]"
    pip = [str(commands / "pip"), "install", "--quiet", "--constraint", str(CONSTRAINTS), wanted]
    run([*pip, "--force-reinstall", "--no-deps"])  # its own commands, on the shared packages
    run(pip)
    assert not (own / "torch").exists(), "torch was installed again"
    found = json.loads(sween_offline(commands, "doctor --json", tmp_path))
    assert "not installed" not in found["extras"][extra]
    assert set(found["self-test"].values()) <= {"ok", "skipped: no GPU"}
    if extra == "timm" and _cannot_import(commands, "torchvision"):
        pytest.skip(
            "the package index has no torchvision for this build of torch, which timm needs"
        )
    lines, written = USES[extra]
    assert not list(tmp_path.glob(written))
    for line in lines:
        sween_offline(commands, line, tmp_path)
    assert list(tmp_path.glob(written))


def _cannot_import(commands: Path, module: str) -> bool:
    command = [str(commands / "python"), "-P", "-c", f"import {module}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    return done.returncode != 0


CONSUMER = """
import torch

import sween


def radii(model: torch.nn.Module, images: torch.Tensor) -> list[float]:
    smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=10)
    first = smoothed.certify_one(images[0], alpha=0.01)
    assert smoothed.predict_one(images[0], n=200).prediction == first.prediction
    return [certificate.radius for certificate in smoothed.certify(images, n=1000)]


def share(run: sween.CertificationRun) -> float:
    return run.certified_accuracy([0.5])[0]
"""
MISTAKES = {
    "sigma=0.5": 'sigma="large"',
    "certificate.radius": "certificate.radios",
    "alpha=0.01": "alfa=0.01",
    "n=200": 'n="many"',
    "sween.SmoothedClassifier": "sween.SmoothClassifier",
}
"""Each must be found: a package without types would let them pass."""


def test_a_consumer_is_type_checked(clean: Path, tmp_path: Path) -> None:
    """`mypy --strict` with the installed package, as another package would run it."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ""]
    command += [
        "--python-executable",
        str(clean / "python"),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for number, (right, wrong) in enumerate({"": "", **MISTAKES}.items()):
        module = tmp_path / f"consumer_{number}.py"
        module.write_text(CONSUMER.replace(right, wrong) if right else CONSUMER)
        done = subprocess.run(
            [*command, str(module)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
            timeout=600,
        )
        assert (done.returncode == 0) == (not right), f"{right}: {done.stdout}{done.stderr}"
