"""A run's config names the arithmetic that voted, and all of its devices have the same."""

from pathlib import Path

import pytest
import torch

from sween.data import load_dataset
from sween.engine import engine as votes_module
from sween.engine.voters import Panel, arithmetic_of
from sween.ensemble import load_ensemble
from sween.errors import BadInput
from sween.records import read_certificates
from sween.runs import read_config
from sween.smoothing import CertifySettings, certify_images

DIGITS = Path(__file__).parents[2] / "src/sween/zoo/models/digits-sween3-gaussian-sigma0.50"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_config_names_the_arithmetic_that_voted(precision: str, tmp_path: Path) -> None:
    certify_images(
        load_ensemble(DIGITS),
        load_dataset("digits"),
        [0],
        CertifySettings(n0=20, n=100),
        tmp_path,
        precision=precision,
        quiet=True,
    )
    assert read_config(tmp_path)["precision"] == precision
    assert {row.precision for row in read_certificates(tmp_path)} == {precision}


def test_devices_that_compute_differently_do_not_share_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one of several GPUs could not be given the kernels that the others have."""
    known = list[int]()

    def other_on_the_second(panel: Panel) -> str:
        if id(panel) not in known:
            known.append(id(panel))
        return arithmetic_of(panel) + ("+compiled" if known.index(id(panel)) else "")

    monkeypatch.setattr(votes_module, "arithmetic_of", other_on_the_second)
    cpu = torch.device("cpu")
    with pytest.raises(BadInput, match=r"expected float32, as on cpu, got float32\+compiled"):
        certify_images(
            load_ensemble(DIGITS),
            load_dataset("digits"),
            [0, 1],
            CertifySettings(n0=20, n=100),
            tmp_path / "out",
            devices=[cpu, cpu],
            quiet=True,
        )
    assert not (tmp_path / "out").exists()
