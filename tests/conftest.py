"""For every test: the user's own cache and installed models are left alone."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("SWEEN_ZOO", str(tmp_path_factory.mktemp("zoo")))
        yield
