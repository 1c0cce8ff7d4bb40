"""Audit certificates that someone else made: verify, recount, compare with a published log.

    python examples/audit.py

Every row of a run holds its votes, so a claim can be checked in two steps. `verify` derives each
radius from the votes again, without the model. It cannot know whether the votes were ever cast:
`recount` casts them again, with the model and the data, on images that nobody could foresee.
"""

import dataclasses
import shutil
from pathlib import Path

import sween
from sween.records import Certificate, to_line, to_row
from sween.report.log_comparison import compare_with_log
from sween.report.published_logs import read_tsv_log
from sween.runs import verify_folder
from sween.smoothing import recount_folder

MODEL = "digits-sween3-gaussian-sigma0.50"


def audit(folder: Path) -> None:
    """Say whether a folder passes both checks."""
    try:
        checked = verify_folder(folder)
        print(f"{folder}: verified, {checked.rows} rows follow from their votes")
        # The seed of the choice is fresh: a forger cannot know which images will be recounted.
        again = recount_folder(folder, sween.load(MODEL), sween.load_dataset("digits"), quiet=True)
        print(f"{folder}: recounted, the votes on {len(again.indices)} images are identical")
    except sween.SweenError as error:
        print(f"{folder}: REFUSED\n  {error}")


def forge(folder: Path, out: Path, row: Certificate) -> None:
    """A copy of a run in which one row is replaced, its checksum recomputed."""
    shutil.copytree(folder, out)
    rows = sween.CertificationRun.read(folder).rows
    changed = [row if row.index == each.index else each for each in rows]
    (out / "certificates.jsonl").write_bytes(b"".join(to_line(to_row(each)) for each in changed))


def main() -> None:
    # The folder that someone sends us, with the name of the model and of the data set.
    theirs = Path("theirs")
    smoothed = sween.SmoothedClassifier.load(MODEL)
    digits = sween.load_dataset("digits")
    run = sween.certify_dataset(smoothed, digits, out=theirs, indices=range(6), n=1_000, quiet=True)
    audit(theirs)

    # A radius that the votes do not prove: found without the model.
    weak, strong = sorted(run, key=lambda row: row.radius_if_correct)[:: len(run) - 1]
    forge(theirs, Path("raised-radius"), dataclasses.replace(weak, radius=1.0, radius_cohen=1.0))
    audit(Path("raised-radius"))

    # Votes that were never cast, from which the radius does follow: found by counting again.
    invented = dataclasses.replace(strong, index=weak.index, label=strong.prediction)
    forge(theirs, Path("invented-votes"), invented)
    audit(Path("invented-votes"))

    # Logs of other projects (Cohen et al.'s format) have rounded radii and no votes. They can be
    # compared, image by image, with the rounding taken into account, but not verified.
    log = Path("published.tsv")
    lines = [f"{row.index}\t{row.label}\t{row.prediction}\t{row.radius:.3}\t1" for row in run]
    log.write_text("\n".join(["idx\tlabel\tpredict\tradius\tcorrect", *lines]) + "\n")
    compared = compare_with_log(run.certificates, read_tsv_log(log, significant_digits=3))
    low, high = compared.log.acr
    print(f"{log}: average radius between {low:.4f} and {high:.4f}", end="; ")
    print(f"ours is {run.average_certified_radius:.4f}", end="; ")
    print(f"the same prediction on {compared.same_prediction} of {len(run)} images")


if __name__ == "__main__":
    main()
