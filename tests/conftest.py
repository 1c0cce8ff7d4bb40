"""For every test: the user's own cache and installed models are left alone; long ones first."""

import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "sween", deadline=None
)  # machines are shared: no test of speed
hypothesis.settings.load_profile("sween")

# A shell starts background jobs with SIGINT ignored, which the commands under test would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Outside it, so that the next run of the tests need not compile again.
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/sween-tests-compiled")
        patch.setenv("SWEEN_ZOO", str(tmp_path_factory.mktemp("zoo")))
        yield
