"""The whole workflow on the bundled digits: train, weigh, certify. Takes minutes on two cores.

Settings were chosen on the weight-solving split alone; test digits are used for nothing but
certification.
"""

import dataclasses
from pathlib import Path

from sween.data import load_dataset
from sween.ensemble import LoadedEnsemble, load_members, save_ensemble, weigh
from sween.paths import AnyPath
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.training import TrainConfig, train

SIGMA = 0.5
SAMPLES = 10_000
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)

CANDIDATES: tuple[tuple[str, int, float], ...] = (
    ("digits-mlp", 200, 0.05),
    ("digits-conv", 100, 0.1),
    ("digits-resnet", 200, 0.1),
)
"""Architecture, epochs and learning rate of each candidate."""

WEIGHT_METHOD = "sgd"
"""The paper's practice. Solving on smoothed probabilities would put all weight on one digit
network: that risk ignores that members which err on different noise draws vote better together."""


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """Results of the demo: the ensemble, and the folder of its certificates."""

    ensemble: LoadedEnsemble
    certificates: list[Certificate]
    folder: Path


def run_demo(
    out: AnyPath,
    *,
    seed: int = 0,
    samples: int = SAMPLES,
    positions: list[int] | None = None,
    quiet: bool = False,
) -> DemoResult:
    """Train three candidates, solve the weights and certify the held-out digits.

    Args:
        out: folder for runs, ensemble and certificates; an interrupted demo is resumed.
        seed: of training, weights and certification.
        samples: n, the votes per digit.
        positions: which test digits; all by default.
        quiet: no progress display.
    """
    out = Path(out)
    settings = CertifySettings(n=samples, seed=seed)  # refuses too small an n before training
    dataset = load_dataset("digits")
    runs = []
    for arch, epochs, rate in CANDIDATES:
        config = TrainConfig(
            dataset=dataset.name,
            arch=arch,
            sigma=SIGMA,
            epochs=epochs,
            learning_rate=rate,
            seed=seed,
        )
        runs.append(out / "candidates" / arch)
        train(config, dataset, runs[-1], quiet=quiet)
    loaded = load_members(runs)
    solution = weigh(loaded, dataset, method=WEIGHT_METHOD, seed=seed, quiet=quiet)
    save_ensemble(loaded, runs, solution, out / "ensemble")
    folder = out / "certificates"
    smoothed = SmoothedClassifier(
        loaded,
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        member_names=loaded.member_names,
    )
    run = certify_dataset(
        smoothed, dataset, out=folder, indices=positions, settings=settings, quiet=quiet
    )
    return DemoResult(loaded, list(run.rows), folder)
