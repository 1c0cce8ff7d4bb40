"""The tables of docs/planning.md: predicted costs of recorded runs, and of ImageNet."""

import json
from pathlib import Path

from measured_findings import load
from tables import markdown

from sween.progress import format_seconds
from sween.sampling import CertifySettings
from sween.theory import Estimate, predict_cost

IMAGENET_IMAGES = 50_000
PRICE = 2.50
"""Of a GPU hour; an example."""


def predicted_costs(results: Path, name: str) -> str:
    """Recorded runs, predicted from some of their own images: all others against what they took.

    NAME is the folder of the runs with adaptive sampling; the demo comes first.
    """
    lines = []
    for folder in (results / "digits-demo", *sorted((results / name).iterdir())):
        if not (folder / "config.toml").is_file():
            continue
        run = load(folder)
        rows = run.models[run.config.model]
        # 2,000 of 10,000 images, and half of smaller runs.
        step = 5 if len(rows) > 5_000 else 2
        pilot, rest = rows[::step], [row for i, row in enumerate(rows) if i % step]
        settings = run.config.settings
        if settings.budget is not None:
            budget = settings.budget * len(rest) // len(rows)
            settings = CertifySettings(**settings.as_dict() | {"budget": budget})
        cost = predict_cost(pilot, settings, images=len(rest))
        samples = sum(row.samples for row in rest)
        seconds = sum(row.seconds for row in rest)
        predicted = cost.gpu_hours.expected * 3600
        lines.append(
            [
                folder.name,
                f"{len(pilot):,}",
                f"{len(rest):,}",
                _per_image(cost.samples, len(rest)),
                f"{samples / len(rest):,.0f}",
                f"{100 * (cost.samples.expected / samples - 1):+.1f}%",
                f"{predicted:.1f}",
                f"{seconds:.1f}",
                f"{100 * (predicted / seconds - 1):+.1f}%",
            ]
        )
    head = ["run", "pilot", "images", "samples per image, predicted", "measured", "off by"]
    return markdown([*head, "seconds, predicted", "measured", "off by"], 1, lines)


def _per_image(samples: Estimate, images: int) -> str:
    each = samples.times(1 / images)
    interval = "" if each.low == each.high else f" ({each.low:,.0f} to {each.high:,.0f})"
    return f"{each.expected:,.0f}{interval}"


def imagenet_costs(results: Path, name: str) -> str:
    """All of ImageNet's validation images with three ResNet-50, with the votes of run NAME."""
    run = load(results / name)
    pilot = run.models[run.config.model]
    rate = resnet50_rate(results)
    lines = []
    for what, options in {
        "fixed": {},
        "tolerance 0.05": {"sampling": "tolerance", "tolerance": 0.05},
        "decide 0.5, 1.0": {"sampling": "decide", "radii": (0.5, 1.0)},
        "decide 0.5": {"sampling": "decide", "radii": (0.5,)},
    }.items():
        settings = CertifySettings(**options)  # type: ignore[arg-type]
        cost = predict_cost(
            pilot,
            settings,
            images=IMAGENET_IMAGES,
            evaluations_per_second=rate,
            price=PRICE,
        )
        assert cost.money is not None
        hours = cost.gpu_hours
        times = [format_seconds(hours.expected * 3600 / gpus) for gpus in (1, 8, 64)]
        lines.append(
            [
                what,
                _per_image(cost.samples, IMAGENET_IMAGES),
                f"{hours.expected:,.0f}"
                + ("" if not options else f" ({hours.low:,.0f} to {hours.high:,.0f})"),
                *times,
                f"{cost.money.expected:,.0f}",
            ]
        )
    head = ["sampling", "samples per image", "GPU hours", "1 GPU", "8 GPUs", "64 GPUs"]
    return markdown([*head, f"at {PRICE:.2f} an hour"], 1, lines)


def resnet50_rate(results: Path) -> float:
    """Evaluations per second of a ResNet-50 at 224 px, as measured on an H200."""
    file = results / "certification-speed" / "h200-any-network-3.json"
    rows = json.loads(file.read_text())["results"]
    rates = [row["evaluations_per_second"] for row in rows if row["model"] == "imagenet-resnet50"]
    return min(rates)
