"""Images with labels, each data set in three disjoint splits, and the checks at the door."""

from sween.data.dataset import Dataset, Split
from sween.data.images import read_image
from sween.data.registry import DATASETS, load_dataset
from sween.data.selection import parse_indices
from sween.data.validation import check_images

__all__ = [
    "DATASETS",
    "Dataset",
    "Split",
    "check_images",
    "load_dataset",
    "parse_indices",
    "read_image",
]
