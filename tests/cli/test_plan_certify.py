"""`sween plan certify` with a pilot of its own."""

import json
from pathlib import Path

import pytest

from sween.sampling import CertifySettings
from tests.certifying import certify_digits
from tests.cli.command import listing, succeed
from tests.cli.conftest import Made

ZOO = "digits-sween3-gaussian-sigma0.50"
DECIDE = "--n 1000 --sampling decide --radius 0.5"


@pytest.mark.slow
def test_a_pilot_predicts_the_run(tmp_path: Path) -> None:
    settings = CertifySettings(n=1000, sampling="decide", radii=(0.5,))
    run = certify_digits(tmp_path / "run", settings, count=200, exit="exact")
    text = succeed(
        f"plan certify {ZOO} {DECIDE} --exit exact --images 200 --pilot 150 --json --quiet"
    )
    predicted = json.loads(text)
    samples = sum(row.samples for row in run)
    evaluations = sum(row.member_evaluations for row in run)
    assert abs(predicted["samples"]["expected"] / samples - 1) < 0.15
    assert abs(predicted["evaluations"]["expected"] / evaluations - 1) < 0.15
    assert predicted["samples"]["low"] < samples < predicted["samples"]["high"]


def test_nothing_is_written_and_the_same_command_gives_the_same_samples(
    made: Made, tmp_path: Path
) -> None:
    before = listing(made.base, tmp_path)
    line = f"plan certify {made.ensemble} {DECIDE} --pilot 20 --rate 1000 --quiet"
    assert succeed(line) == succeed(line)
    assert listing(made.base, tmp_path) == before


def test_all_test_images_are_the_default(made: Made) -> None:
    text = succeed(f"plan certify {made.ensemble} --n 200 --pilot 12 --quiet")
    assert text.startswith("360 images, from the votes on 12")
    assert "108,000" in text  # 360 times 300


def test_hours_are_those_of_the_device_that_was_measured(made: Made, tmp_path: Path) -> None:
    line = f"plan certify {made.ensemble} --n 200 --pilot 12 --device cpu --quiet"
    assert "machine hours" in succeed(line)
    assert "GPU" not in succeed(line)
    assert "GPU hours" in succeed(f"{line} --rate 1000")
    run = certify_digits(tmp_path / "run", CertifySettings(n=200), count=12)
    assert len(run) == 12
    line = f"plan certify --certificates {tmp_path / 'run'} --n 200"
    assert "time on 3 machines" in succeed(f"{line} --gpus 3")
    file = tmp_path / "bench.json"
    row = {"model": "one", "evaluations_per_second": 5.0, "device": "cpu"}
    file.write_text(json.dumps({"results": [row]}))
    assert "machine hours" in succeed(f"{line} --bench {file}")


def test_the_rate_of_a_bench_file(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    results = [
        {"model": name, "evaluations_per_second": rate}
        for name, rate in (("other", 1.0), (str(made.ensemble), 3600.0))
    ]
    file.write_text(json.dumps({"results": results}))
    line = f"plan certify {made.ensemble} --n 200 --pilot 12 --bench {file} --json --quiet"
    assert json.loads(succeed(line))["evaluations_per_second"] == 3600.0
