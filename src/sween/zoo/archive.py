"""Archives of models: one zip file that cannot run code, and whose bytes follow from its models.

    manifest.json                     models, and the size and SHA-256 of each of their files
    NAME/config.toml                  an ensemble folder, nothing else that may lie in it
    NAME/environment.json
    NAME/measured.json
    NAME/members/MEMBER.safetensors

Files are stored uncompressed (weights hardly compress), so that an archive cannot unpack to more
than its own size and its bytes do not depend on the version of a compressor.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import re
import shutil
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.ensemble import load_ensemble
from sween.errors import BadInput, CheckpointError
from sween.paths import AnyPath
from sween.run_folder import atomic_path, member_file, read_config
from sween.zoo.entries import model_folders, read_entry

MANIFEST, FORMAT, VERSION = "manifest.json", "sween models", 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_FILE = re.compile(
    rf"config\.toml|environment\.json|measured\.json|members/{_NAME.pattern}\.safetensors"
)
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 1 << 22
_DAMAGED = (
    zipfile.BadZipFile,
    AttributeError,
    EOFError,
    NotImplementedError,  # a compression or a zip version that the standard library lacks
    OverflowError,
    RecursionError,  # JSON in very many brackets
    RuntimeError,  # an encrypted file
    ValueError,
    TypeError,
    KeyError,
    struct.error,
)
"""What reading bytes that are not an archive may raise."""


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """Size and SHA-256 of a file in an archive."""

    bytes: int
    sha256: str


Files = Mapping[str, StoredFile]
"""The files of a model by their path inside its folder."""


def pack(
    ensembles: Mapping[str, AnyPath], out: AnyPath, *, archs: Sequence[str] = ()
) -> Mapping[str, Files]:
    """Write ensembles into one archive, which `add` installs.

    The same ensembles give the same bytes. Weights are copied as they are stored.

    Args:
        ensembles: ensemble folders, or zoo models by name, by the names that they get in the zoo.
        out: the archive, a new file.
        archs: custom architectures, as `package.module:factory`, that may be imported.

    Returns:
        The files of each model.

    Raises:
        BadInput: a name that cannot be a folder's, or a file at `out`.
        CheckpointError: a folder that is not a complete ensemble.

    Example:
        >>> import os
        >>> import sween
        >>> from sween.zoo import add, pack, remove
        >>> archive = pack({"mine": "digits-sween3-gaussian-sigma0.50"}, "models.zip")
        >>> os.environ["SWEEN_ZOO"] = "zoo"  # by default a folder in the home folder
        >>> add("models.zip")
        {'mine': 'added'}
        >>> sween.load("mine").name
        'SWEEN-3'
        >>> remove("mine")
    """
    out = Path(out)
    if out.exists():
        raise BadInput(str(out), expected="a new file", got="an existing one", fix="name another")
    if not ensembles:
        raise BadInput("ensembles", expected="at least one", got="none", fix="name one")
    folders = {name: _ensemble_folder(source) for name, source in sorted(ensembles.items())}
    for name, folder in folders.items():
        _check_name(name)
        check_ensemble(folder, archs=archs)
    models = {name: describe_files(folder) for name, folder in folders.items()}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "models": {
            name: {file: dataclasses.asdict(stored) for file, stored in files.items()}
            for name, files in models.items()
        },
    }
    with atomic_path(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(_zip_info(MANIFEST), json.dumps(content, indent=2, sort_keys=True))
        for name, files in models.items():
            for file in files:
                with (
                    _source(folders[name], file).open("rb") as source,
                    archive.open(_zip_info(f"{name}/{file}"), "w") as target,
                ):
                    shutil.copyfileobj(source, target, _CHUNK)
    return models


def _ensemble_folder(source: AnyPath) -> Path:
    folders = model_folders()
    if not Path(source).exists() and str(source) in folders:
        return folders[str(source)]
    return Path(source)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"name of a model: expected letters, digits and ._+-, at most 100, got {name!r}; pack "
            "it as NAME=FOLDER"
        )


def _zip_info(name: str) -> zipfile.ZipInfo:
    """A regular file without a date or anything else of this machine."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    return info


def _source(folder: Path, file: str) -> Path:
    """Where a file of an ensemble is, which may be with another model of the zoo."""
    path = folder / file
    return member_file(folder, path.stem) if path.parent.name == "members" else path


def describe_files(folder: Path) -> dict[str, StoredFile]:
    """Size and SHA-256 of the files of an ensemble folder that an archive takes."""
    members = [f"members/{name}.safetensors" for name in read_config(folder)["members"]]
    described: dict[str, StoredFile] = {}
    for file in sorted(["config.toml", "environment.json", "measured.json", *members]):
        path = _source(folder, file)
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            described[file] = StoredFile(path.stat().st_size, digest)
    return described


def check_ensemble(folder: Path, *, archs: Sequence[str] = ()) -> str:
    """Load a folder as the zoo would; returns the fingerprint of the ensemble.

    Raises:
        CheckpointError: it is not an ensemble folder, or its checkpoints do not fit its config.
    """
    if not (folder / "config.toml").is_file() or read_config(folder).get("kind") != "ensemble":
        raise CheckpointError(
            str(folder),
            expected="an ensemble folder",
            got="another folder" if folder.is_dir() else "none",
            fix="pass a folder written by `sween weigh`",
        )
    loaded = load_ensemble(folder, archs=archs)
    read_entry(folder)
    for name in loaded.member_names:
        if not _NAME.fullmatch(name):
            raise CheckpointError(
                f"{folder}: name of a member: expected letters, digits and ._+-, at most 100, got "
                f"{name!r}; rename its architecture"
            )
    return loaded.fingerprint


class Archive:
    """An archive whose manifest and table of contents were checked; see `open_archive`.

    Attributes:
        path: of the file.
        models: the files of each model, by its name.
    """

    def __init__(self, path: Path, content: zipfile.ZipFile) -> None:
        self.path, self._content = path, content
        self.models = self._read_manifest()
        self._check_contents()

    def _read_manifest(self) -> dict[str, Files]:
        info = self._content.getinfo(MANIFEST)
        if info.file_size > _LARGEST_MANIFEST or info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"a {MANIFEST} of {info.file_size} bytes")
        content: dict[str, Any] = json.loads(self._content.read(info))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        models: dict[str, Files] = {}
        for name, files in content["models"].items():
            if not _NAME.fullmatch(name) or "config.toml" not in files:
                raise ValueError(f"a model called {name!r} with {len(files)} files")
            for file in files:
                if not _FILE.fullmatch(file):
                    raise ValueError(f"the file {file!r} of {name}")
            models[name] = {file: StoredFile(**stored) for file, stored in files.items()}
        if not models:
            raise ValueError("no models")
        return models

    def _check_contents(self) -> None:
        """Nothing but the files of the manifest, each once, plain, and of its size."""
        sizes = {
            f"{name}/{file}": stored.bytes
            for name, files in self.models.items()
            for file, stored in files.items()
        }
        found = [info for info in self._content.infolist() if info.filename != MANIFEST]
        if len(found) != len(self._content.infolist()) - 1:
            raise ValueError(f"several files called {MANIFEST}")
        if sorted(info.filename for info in found) != sorted(sizes):
            others = {info.filename for info in found} ^ set(sizes)
            raise ValueError(f"other files than {MANIFEST} lists: {sorted(others)[:3] or 'twice'}")
        for info in found:
            mode = info.external_attr >> 16
            plain = info.compress_type == zipfile.ZIP_STORED and stat.S_IFMT(mode) == stat.S_IFREG
            if not plain or info.flag_bits & 1 or info.file_size != sizes[info.filename]:
                raise ValueError(
                    f"{info.filename}, mode {mode:o}, compression {info.compress_type}, "
                    f"{info.file_size} bytes instead of {sizes[info.filename]}"
                )
        # Entries that share their bytes could otherwise unpack to more than the archive.
        if sum(sizes.values()) > self.path.stat().st_size:
            raise ValueError(f"{sum(sizes.values())} bytes of files in a smaller archive")

    def extract(self, name: str, folder: Path) -> None:
        """Write the files of a model into a new folder.

        Raises:
            CheckpointError: a file differs from the manifest; the folder is then incomplete.
        """
        for file, stored in self.models[name].items():
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            hasher = hashlib.sha256()
            with _refusing(self.path), self._content.open(f"{name}/{file}") as source:
                with target.open("xb") as stream:
                    while chunk := source.read(_CHUNK):
                        hasher.update(chunk)
                        stream.write(chunk)
                if hasher.hexdigest() != stored.sha256:
                    raise ValueError(f"{name}/{file} with the SHA-256 {hasher.hexdigest()[:16]}")


@contextlib.contextmanager
def open_archive(path: AnyPath) -> Iterator[Archive]:
    """Open an archive of `pack`; nothing of it is written, and no code of it can run.

    Raises:
        CheckpointError: it is not such an archive, or it was altered.
    """
    path = Path(path)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(path.open("rb"))
        with _refusing(path):
            archive = Archive(path, stack.enter_context(zipfile.ZipFile(stream)))
        yield archive


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn what damaged bytes raise into an error of one line."""
    try:
        yield
    except BadInput:
        raise
    except (*_DAMAGED, OSError) as error:
        # The standard library seeks where damaged bytes say, also before the start of the file.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        found = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        if isinstance(error, KeyError) and " " not in found:  # else zipfile says what is missing
            found = f"no {found!r}"
        raise CheckpointError(
            str(path),
            expected="an archive as `sween zoo pack` writes it",
            got=found or type(error).__name__,
            fix="it was altered or is incomplete; get it again",
        ) from None
