"""Draws figure1.png: the paper's Figure 1 from results/.

python docs/pictures/figure1.py
"""

from pathlib import Path

from sween.report import load_run
from sween.report.canvas import save
from sween.report.curves import Panel, draw_panels

FOLDER = Path(__file__).parent
RUNS = [f"cifar10-sween{size}-gaussian-sigma0.50" for size in (3, 6)]


def main() -> None:
    panels = []
    for name in RUNS:
        run = load_run(FOLDER.parents[1] / "results" / name)
        assert run.ensemble is not None
        models = {model: run.models[model] for model in (*run.candidates, run.ensemble)}
        sample = run.sample
        subtitle = f"{len(run.indices):,} images, n = {sample.n:,}, α = {sample.alpha:g}"
        title = f"{run.ensemble}, σ = {sample.sigma:.2f}"
        panels.append(Panel(models, title, subtitle, run.ensemble, run.candidates))
    save(draw_panels(panels), FOLDER / "figure1.png")


if __name__ == "__main__":
    main()
