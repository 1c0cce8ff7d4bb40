"""Data sets by name. One list feeds the command line, the documentation and the tests."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from sween.data.cifar10 import CLASS_NAMES, IMAGE_SHAPE, load_cifar10
from sween.data.dataset import Dataset
from sween.data.digits import TEST_SIZE, WHITE, load_digits
from sween.data.image_folder import load_image_folder
from sween.data.splits import as_dataset
from sween.errors import BadInput, DataError, describe_type
from sween.factories import Factory, FactoryRegistry, requires, takes
from sween.paths import AnyPath

_Load = TypeVar("_Load", bound=Factory)

_PASS_ROOT = "pass the folder of its files as `root`"


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
    """A data set that can be loaded by name.

    Attributes:
        summary: what a user has to know to choose it.
        factory: returns a `Dataset`, or `(train, test)` or `(train, test, class_names)` as
            `as_dataset` takes them; called with those of `root`, `image_size`, `convert` and
            `test_only` that it takes.
        root_fix: how to get its files, in the words of an error's fix; None if it needs no root.
        white: the pixel value that becomes 1.0.
        classes: how many it has; None where that depends on the files.
        test_images: how many its test split has; None where that depends on the files.
        image_shape: (C, H, W), where it needs files but is known without them.
        class_names: likewise.

    Example:
        See `register_dataset`.
    """

    summary: str
    factory: Factory
    root_fix: str | None = None
    white: int = 255
    classes: int | None = None
    test_images: int | None = None
    image_shape: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] | None = None

    @property
    def needs_root(self) -> bool:
        return self.root_fix is not None

    @property
    def reads_files(self) -> bool:
        """Whether `image_size` applies: its images are files, which can be read at any size."""
        return takes(self.factory, "image_size")


_BUILT_IN = {
    "digits": DatasetEntry(
        "1,797 handwritten digits, 8 x 8, inside scikit-learn",
        load_digits,
        white=WHITE,
        classes=10,
        test_images=TEST_SIZE,
    ),
    "cifar10": DatasetEntry(
        "CIFAR-10, 32 x 32, its published folder or cifar-10-python.tar.gz",
        load_cifar10,
        "fetch cifar-10-python.tar.gz from its source and pass its folder as `root`",
        classes=10,
        test_images=10_000,
        image_shape=IMAGE_SHAPE,
        class_names=CLASS_NAMES,
    ),
    "image_folder": DatasetEntry(
        "image files laid out like ImageNet: train/<class>/ and val/<class>/",
        load_image_folder,
        "pass the folder that holds train/ and val/ as `root`",
    ),
}

DATASETS = FactoryRegistry("data set", _BUILT_IN)


@overload
def register_dataset(
    name: str, factory: None = None, *, summary: str = "", white: int = 255
) -> Callable[[_Load], _Load]: ...


@overload
def register_dataset(
    name: str, factory: _Load, *, summary: str = "", white: int = 255
) -> _Load: ...


def register_dataset(
    name: str, factory: Factory | None = None, *, summary: str = "", white: int = 255
) -> Any:
    """Register a custom data set for `load_dataset`, training and records, in this process.

    On the command line, use `package.module:factory` instead.

    Args:
        name: letters, digits and ._+-; registering a custom name again replaces it.
        factory: see `DatasetEntry`; None for a decorator.
        summary: a few words.
        white: the uint8 value that becomes 1.0 in its images.

    Example:
        >>> import sween, torch
        >>> @sween.register_dataset("gray")
        ... def gray():
        ...     images, labels = torch.full((20, 1, 8, 8), 0.5), torch.arange(20) % 2
        ...     return (images, labels), (images[:4], labels[:4])
        >>> dataset = sween.load_dataset("gray")
        >>> len(dataset.test), dataset.num_classes
        (4, 2)
    """
    return DATASETS.register(name, factory, lambda made: _custom_entry(made, summary, white))


def _custom_entry(factory: Factory, summary: str = "custom", white: int = 255) -> DatasetEntry:
    return DatasetEntry(summary, factory, _PASS_ROOT if requires(factory, "root") else None, white)


def find_dataset(name: str) -> DatasetEntry:
    """The entry of a registered name, or of `package.module:factory`, which is imported."""
    return DATASETS.find_or_import(name, _custom_entry)


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
        name: a registered name, or a custom `package.module:factory`, which is imported; see
            `DatasetEntry` for its arguments and return value.
        root: where its files are; ignored by a data set without files, such as the digits.
        image_size: height and width, for `image_folder` and factories that take it; the former
            uses 224 by default.
        convert: convert image files of other colour modes to RGB, likewise.
        test_only: leave the training images out, as certifying does.

    Raises:
        BadInput: a root is missing, an option does not apply, or a factory does not return a data
            set.
        DataError: the files are missing or cannot be used.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits")
        >>> len(digits.train), len(digits.weights), len(digits.test)
        (1197, 240, 360)
        >>> digits.test.images([0, 1]).shape, digits.num_classes
        (torch.Size([2, 1, 8, 8]), 10)
    """
    entry = find_dataset(name)
    options: dict[str, Any] = {"test_only": test_only}
    for option, value in (("image_size", image_size), ("convert", convert or None)):
        if value is None:
            continue
        if not takes(entry.factory, option):
            raise BadInput(
                option,
                expected=f"none for {name}, whose images have a fixed form",
                got=value,
                fix=f"leave `{option}` out",
            )
        options[option] = value
    if takes(entry.factory, "root") and (root is not None or entry.needs_root):
        options["root"] = _check_root(name, root, entry)
    made = DATASETS.build(name, entry.factory, options)
    if name in DATASETS.built_in:
        assert isinstance(made, Dataset)
        return made
    dataset = made if isinstance(made, Dataset) else _from_parts(entry, name, made, options)
    if name in DATASETS and dataset.test.white != entry.white:
        raise BadInput(
            f"data set {name!r}: white",
            expected=f"{entry.white}, as it was registered with",
            got=dataset.test.white,
            fix="pass white= to register_dataset",
        )
    chosen = {key: value for key, value in options.items() if key in {"image_size", "convert"}}
    return dataclasses.replace(dataset, name=name, options={**dataset.options, **chosen})


def _from_parts(entry: DatasetEntry, name: str, made: Any, options: dict[str, Any]) -> Dataset:
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise BadInput(
            f"data set {name!r}",
            expected="a factory that returns a sween Dataset or (train, test[, class names])",
            got=describe_type(made),
            fix="see sween.data.as_dataset",
        )
    train, test, *names = made
    return as_dataset(
        train,
        test,
        name=name,
        class_names=names[0] if names else None,
        white=entry.white,
        test_only=options["test_only"],
    )


def _check_root(name: str, root: AnyPath | None, entry: DatasetEntry) -> Path:
    fix = entry.root_fix or _PASS_ROOT
    if root is None:
        raise BadInput(f"root of {name}", expected="the folder of its files", got="none", fix=fix)
    root = Path(root)
    if not root.exists():
        raise DataError(root, expected=f"the files of {name}", got="nothing there", fix=fix)
    return root
