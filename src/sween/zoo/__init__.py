"""The model zoo: trained and certified ensembles, loaded by name.

Some ship with the package; others are installed from archives. Nothing is downloaded.
"""

from collections.abc import Sequence
from pathlib import Path

from sween.ensemble import LoadedEnsemble, load_ensemble
from sween.errors import UnknownName
from sween.paths import AnyPath, as_path
from sween.zoo.archive import pack
from sween.zoo.entries import MODELS, ZooEntry, list_zoo, model_folders, user_folder
from sween.zoo.install import add, remove

__all__ = ["MODELS", "ZooEntry", "add", "list_zoo", "load", "pack", "remove", "user_folder"]


def load(source: AnyPath, *, archs: Sequence[str] = ()) -> LoadedEnsemble:
    """Load a trained ensemble: a zoo model by name, or a folder or checkpoint by path.

    Returns a `WeightedEnsemble` in evaluation mode with the metadata of its training: `sigma`,
    `num_classes`, `class_names`, `image_shape`, `member_names`.

    Args:
        source: a name listed by `sween zoo`, an ensemble folder, a run folder or a checkpoint.
        archs: custom architectures, as `package.module:factory`, that a checkpoint may import.

    Raises:
        UnknownName: neither a path nor the name of a zoo model.

    Example:
        >>> import sween
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> ensemble.member_names
        ('digits-mlp', 'digits-conv', 'digits-resnet')
        >>> ensemble.sigma, ensemble.num_classes, ensemble.image_shape
        (0.5, 10, (1, 8, 8))
    """
    path = as_path("source", source)
    if path.exists() or path.parent != Path("."):
        return load_ensemble(path, archs=archs)
    folders = model_folders()
    if path.name not in folders:
        raise UnknownName("folder or zoo model", str(source), folders)
    return load_ensemble(folders[path.name], archs=archs)
