"""Real data for the tests of this folder, unpacked once, and one check for every refusal."""

import contextlib
import lzma
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sween.data.cifar10 import ARCHIVE, FOLDER, PUBLISHED_MD5
from sween.errors import BadInput

SHARED_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
IMAGENETTE_CLASSES = ("n01440764", "n02102040", "n02979186")
IMAGENETTE_FILES = 20

Refuses = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def refuses() -> Refuses:
    """`with refuses(kind, *parts):` wants one line of this kind that holds each of the parts."""

    @contextlib.contextmanager
    def check(kind: type[BadInput], *parts: str) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        message = str(caught.value)
        assert type(caught.value) is kind
        assert len(message.splitlines()) == 1
        assert "; " in message, "no fix"
        for part in parts:
            assert part in message

    return check


@pytest.fixture(scope="session")
def cifar_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The seven published files."""
    source = SHARED_DATA / FOLDER
    if not source.is_dir():
        pytest.skip("CIFAR-10 is not beside this checkout")
    base = tmp_path_factory.mktemp("cifar10")
    folder = base / FOLDER
    folder.mkdir()
    for name in PUBLISHED_MD5:
        packed = source / f"{name}.xz"
        if packed.exists():
            (folder / name).write_bytes(lzma.decompress(packed.read_bytes()))
        else:
            shutil.copyfile(source / name, folder / name)
    yield folder
    shutil.rmtree(base)  # 186 MB that pytest would keep for three runs


@pytest.fixture(scope="session")
def cifar_archive(cifar_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same files as a tar.gz, in an order of its own as the published one is."""
    base = tmp_path_factory.mktemp("cifar10-archive")
    with tarfile.open(base / ARCHIVE, "w:gz", compresslevel=0) as tar:
        for name in sorted(PUBLISHED_MD5, reverse=True):
            tar.add(cifar_folder / name, arcname=f"{FOLDER}/{name}")
    yield base / ARCHIVE
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def imagenette_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of Imagenette, twenty photos each in train and val."""
    packed = SHARED_DATA / "imagenette-128.tar.gz"
    if not packed.is_file():
        pytest.skip("Imagenette is not beside this checkout")
    base = tmp_path_factory.mktemp("imagenette")
    taken: dict[str, int] = {}
    with tarfile.open(packed) as tar:
        for member in tar:
            path = Path(member.name)
            group = path.parent.as_posix()
            wanted = member.isreg() and path.parent.name in IMAGENETTE_CLASSES
            if wanted and taken.get(group, 0) < IMAGENETTE_FILES:
                taken[group] = taken.get(group, 0) + 1
                stream = tar.extractfile(member)
                assert stream is not None  # a regular file
                (base / group).mkdir(parents=True, exist_ok=True)
                (base / path).write_bytes(stream.read())
    return base / "imagenette-128"
