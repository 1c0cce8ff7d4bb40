"""Images and labels: data sets in three disjoint splits, by name or from torch; input checks."""

from sween.data.dataset import Dataset, ImageSet, Split
from sween.data.image_set import as_image_set
from sween.data.images import read_image
from sween.data.registry import DATASETS, load_dataset, register_dataset
from sween.data.selection import parse_indices
from sween.data.splits import as_dataset
from sween.data.validation import check_images

__all__ = [
    "DATASETS",
    "Dataset",
    "ImageSet",
    "Split",
    "as_dataset",
    "as_image_set",
    "check_images",
    "load_dataset",
    "parse_indices",
    "read_image",
    "register_dataset",
]
