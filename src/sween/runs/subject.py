"""The ensemble and the test images of a run: what the configs of certificates and attacks share.

A config is only text. Its images, members and weights must be consistent with each other, and with
the data set if its size is known, before any row is checked against it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sween.data import DATASETS
from sween.data.selection import count_indices, format_indices, parse_indices
from sween.ensemble.weighted import check_weights
from sween.errors import BadInput
from sween.precision import ARITHMETICS, is_arithmetic

MOST_IMAGES = 10_000_000
"""Of one run: ten times the largest split in use, as a list that still fits in memory."""

UNLABELED = "none"
"""In place of a fingerprint, for images without labels."""

DEVICES = ("cpu", "cuda")


class SubjectConfig:
    """A config of certificates or of an attack: what it says of the images.

    Keys of config.toml:
        dataset (text): name of the data set.
        split (text): `test`, always.
        data (text): SHA-256 of the pixels, or of the list of image files.
        labels (text): SHA-256 of the true classes; `none` for images without labels. Absent from
            runs of the first versions.
        contents (text): SHA-256 of the images of this run. Absent where `data` covers every pixel.
        image_size (whole number): height and width of the images. Absent unless they are read from
            image files.
        convert (true or false): whether image files of other colour modes were converted to RGB.
            Absent unless images are read from files.
        indices (text): of the test images, as in `888:1888`.
        images (whole number): how many they are.
        skipped (text): images that were asked for but could not be read. Absent if there are none.
        model (text): name of the classifier.
        fingerprint (text): SHA-256 of its parameters and weights. Absent from runs of the first
            versions.
        source_code (text): SHA-256 of custom code. Absent if all of it is torch's and sween's.
        candidates (list of text): names of the ensemble's members; one for a single network.
        weights (list of numbers): of the members; non-negative, with sum 1.
        sigma (number): noise level, in units of pixels scaled to [0,1].
        exit (text): early exit, with its parameters.
        n (whole number): votes: those that bound a radius, or those of an attack's predictions.
        alpha (number): failure probability of each answer.
        seed (whole number): of the noise.
        device (text): kind of device, `cpu` or `cuda`. Absent from runs of the first versions.
        forward_rows (whole number): noisy images per forward pass at the start; halved on running
            out of memory.
        precision (text): arithmetic of the networks.
        noise (text): `float32`, or `exact(levels=L)`.
    """

    content: Mapping[str, Any]

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return str(self.content["dataset"])

    @property
    def model(self) -> str:
        """The ensemble or member that the run is about."""
        return str(self.content["model"])

    @property
    def skipped(self) -> int:
        """How many images could not be read and are not counted."""
        return count_indices(self.content["skipped"]) if "skipped" in self.content else 0

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the pixels, the labels and the contents of image files, where recorded."""
        names = ("data", "labels", "contents")
        return {name: str(self.content[name]) for name in names if name in self.content}


def classes_of(config: Mapping[str, Any]) -> int | None:
    """The number of classes, if the data set is registered."""
    entry = DATASETS.get(str(config.get("dataset")))
    return None if entry is None else entry.classes


def indices_of(config: Mapping[str, Any], key: str = "indices") -> list[int]:
    """The test images that a config names; refuses more of them than any run can have."""
    entry = DATASETS.get(str(config.get("dataset")))
    size = None if entry is None else entry.test_images
    text = config[key]
    count = count_indices(text)
    most = MOST_IMAGES if size is None else size
    if count > most:
        raise BadInput(key, expected=f"at most {most:,} test images", got=f"{count:,} in {text!r}")
    return parse_indices(indices=text, every=None, everything=False, size=size or 2**62)


def subject_problems(config: Mapping[str, Any]) -> list[str]:
    """What in a config contradicts the rest of it."""
    try:
        problems = [*_image_problems(config), *_member_problems(config)]
        problems += _arithmetic_problems(config)
    except BadInput as error:
        return [str(error)]
    if config.get("labels") == UNLABELED and classes_of(config) is not None:
        problems.append(f"labels is {UNLABELED!r}, but {config['dataset']} has labels")
    return problems


def _image_problems(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("split", "test") != "test":
        yield f"split is {config['split']!r}, but only test images are certified or attacked"
    known = dict[str, list[int]]()
    for key in ("indices", "skipped"):
        if key not in config:
            continue
        if not isinstance(config[key], str):
            yield f"{key} is {config[key]!r}, not the text of a selection"
            return
        known[key] = indices_of(config, key)
        written = format_indices(known[key])
        if config[key] != written:
            yield f"{key} is {config[key]!r}, which sween writes as {written!r}"
    if config.get("images") != len(known["indices"]):
        yield f"images is {config.get('images')!r}, but indices name {len(known['indices'])}"
    entry = DATASETS.get(str(config.get("dataset")))
    if "skipped" in config and entry is not None and entry.test_images is not None:
        yield f"skipped is {config['skipped']!r}, but {config['dataset']} has no image files"
    both = sorted({*known["indices"]} & {*known.get("skipped", ())})
    if both:
        yield f"image {both[0]} is among both indices and skipped"


def _member_problems(config: Mapping[str, Any]) -> Iterator[str]:
    candidates = config["candidates"]
    names = all(isinstance(name, str) for name in candidates)
    if not candidates or not names or len({*candidates}) < len(candidates):
        yield f"candidates are {candidates!r}, not different names"
        return
    for key, wanted in (("members", candidates), ("ensemble", config.get("model"))):
        if key in config and config[key] != wanted:
            yield f"{key} is {config[key]!r}, not {wanted!r}"
    weightings = config.get("weightings", {})
    for name, weights in {"weights": config.get("weights"), **weightings}.items():
        numbers = isinstance(weights, list) and all(
            isinstance(weight, int | float) and not isinstance(weight, bool) for weight in weights
        )
        if not numbers:
            yield f"{name} are {weights!r}, not a list of numbers"
            continue
        try:
            check_weights(weights, len(candidates))
        except BadInput as error:
            yield str(error) if name == "weights" else f"{name}: {error}"


def _arithmetic_problems(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("device", "cpu") not in DEVICES:
        yield f"device is {config['device']!r}, not one of {', '.join(DEVICES)}"
    parts = str(config["precision"]).split(", ")
    for part in parts:
        if not is_arithmetic(part):
            yield f"precision {part!r} is not one of {', '.join(ARITHMETICS)}"
    if len(parts) not in {1, len(config["candidates"])}:
        yield f"precision is of {len(parts)} members, not {len(config['candidates'])}"
    if config["forward_rows"] < 1:
        yield f"forward_rows is {config['forward_rows']}, below 1"
    entry, noise = DATASETS.get(str(config.get("dataset"))), str(config["noise"])
    wanted = "float32" if entry is None else f"exact(levels={entry.white})"
    if entry is not None and noise not in {"float32", wanted}:
        yield f"noise is {noise!r}, but {config['dataset']} has {entry.white} levels"
