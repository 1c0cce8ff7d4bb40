"""A run's config names the arithmetic that voted, and all of its devices have the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sween.data import load_dataset
from sween.engine import Voters
from sween.ensemble import load_ensemble
from sween.errors import BadInput
from sween.records import read_certificates
from sween.run_folder import read_config
from sween.sampling import CertifySettings
from tests.certifying import certify_into

DIGITS = Path(__file__).parents[2] / "src/sween/zoo/models/digits-sween3-gaussian-sigma0.50"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_config_names_the_arithmetic_that_voted(precision: str, tmp_path: Path) -> None:
    certify_into(
        tmp_path,
        load_ensemble(DIGITS),
        load_dataset("digits"),
        [0],
        CertifySettings(n0=20, n=100),
        precision=precision,
    )
    assert read_config(tmp_path)["precision"] == precision
    assert {row.precision for row in read_certificates(tmp_path)} == {precision}


def test_devices_that_compute_differently_do_not_share_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one of several GPUs could not be given the kernels that the others have."""
    known = list[int]()
    arithmetic: Any = vars(Voters)["arithmetic"].fget

    def other_on_the_second(voters: Voters) -> str:
        if id(voters) not in known:
            known.append(id(voters))
        return str(arithmetic(voters)) + ("+compiled" if known.index(id(voters)) else "")

    monkeypatch.setattr(Voters, "arithmetic", property(other_on_the_second))
    cpu = torch.device("cpu")
    with pytest.raises(BadInput, match=r"expected float32, as on cpu, got float32\+compiled"):
        certify_into(
            tmp_path / "out",
            load_ensemble(DIGITS),
            load_dataset("digits"),
            [0, 1],
            CertifySettings(n0=20, n=100),
            devices=[cpu, cpu],
        )
    assert not (tmp_path / "out").exists()
