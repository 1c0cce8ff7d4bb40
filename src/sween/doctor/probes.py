"""What is examined in a process of its own: a broken package may end it, or never answer.

`python -m sween.doctor.probes NAME...` prints one line of JSON for each probe.
"""

import functools
import importlib
import json
import sys
from collections.abc import Callable, Sequence

from sween.doctor.installation import (
    COMPANIONS,
    EXTRAS,
    NOT_INSTALLED,
    Facts,
    describe_folder,
    version_of,
)
from sween.doctor.self_test import CHECKS
from sween.errors import describe_error


def describe_torch() -> Facts:
    """The version that is imported and what it was built for."""
    import torch

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return {
        "torch": str(torch.__version__),
        "CUDA": str(torch.version.cuda or "none: built for CPUs"),
        "cuDNN": str(cudnn or "none"),
        "triton": version_of("triton"),
        "threads": str(torch.get_num_threads()),
        "CPU kernels": torch.backends.cpu.get_cpu_capability(),
    }


def describe_gpus() -> Facts:
    """The GPUs that torch can use."""
    import torch

    found = {}
    for index in range(torch.cuda.device_count()):
        traits = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = (
            f"{traits.name}, {traits.total_memory / 2**30:.0f} GiB, compute capability "
            f"{traits.major}.{traits.minor}"
        )
    return found or {"GPUs": "none that torch can use"}


def describe_zoo() -> Facts:
    """How many models ship with sween and how many were installed; those that are broken."""
    from sween.errors import SweenError
    from sween.zoo.entries import model_folders, read_entry, user_folder

    installed, broken = [], {}
    folders = model_folders()
    for name, folder in folders.items():
        try:
            installed.append(read_entry(folder).installed)
        except (SweenError, OSError) as error:
            broken[name] = describe_error(error)
    count = f"{installed.count(False)} with sween, {installed.count(True)} installed"
    return {"models": count, **broken, "folder": describe_folder(user_folder)}


def import_package(package: str) -> Facts:
    """The version of a package that is installed and can be imported, such as one of an extra."""
    version = version_of(package)
    if version != NOT_INSTALLED:
        importlib.import_module(package)
    return {package: version}


def _checked(check: Callable[[], str]) -> Facts:
    return {"outcome": check()}


PROBES: dict[str, Callable[[], Facts]] = {
    **{name: functools.partial(_checked, check) for name, check in CHECKS.items()},
    "torch": describe_torch,
    "gpus": describe_gpus,
    "zoo": describe_zoo,
    **{name: functools.partial(import_package, name) for name in (*EXTRAS.values(), *COMPANIONS)},
}
"""The bounds come first: they need no torch, which may never finish to import."""


def main(names: Sequence[str]) -> None:
    """Print what each probe found, or its error, as soon as it is known."""
    for name in names:
        try:
            answer: dict[str, object] = {"facts": PROBES[name]()}
        except Exception as error:
            answer = {"error": describe_error(error)}
        sys.stdout.write(json.dumps({"probe": name, **answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
