"""Writes each zoo model's measured.json from results/: python docs/update_zoo.py [--check]

The results of a model are those of the folder of results/ whose certificates name the model's
fingerprint. With --check nothing is written and the exit code says whether all are up to date.
"""

import json
import sys
from pathlib import Path
from typing import Any

from sween.data.selection import format_indices
from sween.ensemble import load_ensemble
from sween.evaluation import average_certified_radius, certified_accuracy
from sween.report import load_run
from sween.report.measured import MeasuredRun
from sween.runs import CertificationConfig
from sween.zoo import MODELS

ROOT = Path(__file__).parents[1]
RADII = tuple(step / 4 for step in range(9))


def _describe(folder: Path, run: MeasuredRun) -> dict[str, Any]:
    rows = run.models[run.config.model]
    sample = rows[0]
    lead = run.lead
    return {
        "results": folder.name,
        "indices": format_indices(run.config.indices),
        "images": len(rows),
        "n0": sample.n0,
        "n": sample.n,
        "alpha": sample.alpha,
        "precision": sample.precision,
        "acr": average_certified_radius(rows, radius="radius_cohen"),
        "acr_two_class": average_certified_radius(rows, radius="radius_two_class"),
        "certified_accuracy": {
            f"{radius:.2f}": float(value)
            for radius, value in zip(RADII, certified_accuracy(rows, RADII), strict=True)
        },
        "acr_members": {
            name: average_certified_radius(run.models[name], radius="radius_cohen")
            for name in run.candidates
        },
        "lead_over_best_member": None
        if lead is None
        else {
            "member": lead[0],
            "low": lead[1].low,
            "difference": lead[1].difference,
            "high": lead[1].high,
        },
    }


def measured() -> dict[Path, str]:
    """The content of every measured.json that results/ can fill."""
    runs = {}
    for file in sorted((ROOT / "results").glob("*/certificates.jsonl*")):
        runs[CertificationConfig.read(file.parent).fingerprint] = file.parent
    contents = {}
    for model in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        folder = runs.get(load_ensemble(model).fingerprint)
        if folder is not None:
            content = _describe(folder, load_run(folder, radii=RADII))
            contents[model / "measured.json"] = json.dumps(content, indent=2) + "\n"
    return contents


def main() -> int:
    contents = measured()
    stray = set(MODELS.glob("*/measured.json")) - set(contents)
    stale = [path for path, text in contents.items() if not _is(path, text)]
    if "--check" in sys.argv[1:]:
        return int(bool(stale or stray))
    for path in stray:
        path.unlink()
    for path in stale:
        path.write_text(contents[path], encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
