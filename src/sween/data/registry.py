"""The data sets by name: one list feeds the command line, the documentation and the tests."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from sween.data.cifar10 import load_cifar10
from sween.data.dataset import Dataset
from sween.data.digits import TEST_SIZE, WHITE, load_digits
from sween.data.image_folder import DEFAULT_IMAGE_SIZE, load_image_folder
from sween.errors import BadInput, DataError, UnknownName
from sween.paths import AnyPath


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
    """What a user has to know to choose a data set."""

    summary: str
    load: Callable[[Path, int, bool, bool], Dataset]
    """From root, image size, whether to convert, and whether the test images alone are wanted;
    called once these are checked."""
    root_fix: str | None = None
    """How to get its files, in the words of an error's fix; None where it needs no root."""
    white: int = 255
    """The pixel value that becomes 1.0."""
    reads_files: bool = False
    """Whether `image_size` and `convert` mean anything."""
    classes: int | None = None
    """How many it has; None where that depends on the files."""
    test_images: int | None = None
    """How many its test split has; None where that depends on the files."""

    @property
    def needs_root(self) -> bool:
        return self.root_fix is not None


DATASETS: Mapping[str, DatasetEntry] = MappingProxyType(
    {
        "digits": DatasetEntry(
            "1,797 handwritten digits, 8 x 8, inside scikit-learn",
            lambda root, image_size, convert, test_only: load_digits(),
            white=WHITE,
            classes=10,
            test_images=TEST_SIZE,
        ),
        "cifar10": DatasetEntry(
            "CIFAR-10, 32 x 32, its published folder or cifar-10-python.tar.gz",
            lambda root, image_size, convert, test_only: load_cifar10(root),
            "fetch cifar-10-python.tar.gz from its source and pass its folder as --data-root",
            classes=10,
            test_images=10_000,
        ),
        "image_folder": DatasetEntry(
            "image files laid out like ImageNet: train/<class>/ and val/<class>/",
            lambda root, image_size, convert, test_only: load_image_folder(
                root, image_size=image_size, convert=convert, test_only=test_only
            ),
            "pass the folder that holds train/ and val/ as --data-root",
            reads_files=True,
        ),
    }
)


def load_dataset(
    name: str,
    root: AnyPath | None = None,
    *,
    image_size: int | None = None,
    convert: bool = False,
    test_only: bool = False,
) -> Dataset:
    """Load a data set by its name.

    Args:
        name: one of `DATASETS`.
        root: where its files are; the digits need none and ignore it.
        image_size: height and width, for `image_folder` only; 224 when not given.
        convert: convert image files of other colour modes to RGB, for `image_folder` only.
        test_only: certifying needs no other images: do not look at the training files of an
            `image_folder`.

    Raises:
        UnknownName: when no data set has this name.
        BadInput: when a root is needed and not given, or an option does not apply.
        DataError: when the files are not there or cannot be used.
    """
    entry = DATASETS.get(name)
    if entry is None:
        raise UnknownName("data set", name, DATASETS)
    if not entry.reads_files and (image_size is not None or convert):
        option, got = ("image_size", image_size) if image_size is not None else ("convert", convert)
        raise BadInput(
            option,
            expected=f"none for {name}, whose images have a fixed form",
            got=got,
            fix=f"leave --{option.replace('_', '-')} out",
        )
    size = DEFAULT_IMAGE_SIZE if image_size is None else image_size
    return entry.load(_check_root(name, root, entry), size, convert, test_only)


def _check_root(name: str, root: AnyPath | None, entry: DatasetEntry) -> Path:
    if entry.root_fix is None:
        return Path()
    if root is None:
        raise BadInput(
            f"root of {name}", expected="the folder of its files", got="none", fix=entry.root_fix
        )
    root = Path(root)
    if not root.exists():
        raise DataError(
            root, expected=f"the files of {name}", got="nothing there", fix=entry.root_fix
        )
    return root
