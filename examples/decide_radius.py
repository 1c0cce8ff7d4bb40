"""Is this image robust up to a radius? Decided with as few votes as it takes.

    python examples/decide_radius.py

`certify` draws the same number of votes for every image. If one radius is all that matters,
`sampling="decide"` looks at the votes as they come in and stops once the question is settled; the
answer holds with the same probability, because its bound is valid at all looks at once.
"""

import sween

RADIUS = 0.5
VOTES = 20_000


def main() -> None:
    digits = sween.load_dataset("digits").test
    images, labels = digits.images(range(12)), digits.labels[:12]
    smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")

    # A fixed seed repeats these numbers. Leave it out where images come from strangers: an
    # attacker who knows the noise can choose an image for it.
    decided = smoothed.certify(
        images,
        labels=labels,
        n=VOTES,
        sampling="decide",
        radii=[RADIUS],
        seed=0,
        indices=range(len(images)),
    )

    print("digit  predicted  radius >= 0.5  votes drawn")
    for certificate in decided:
        # None of the radii is claimed where the answer is no: "not certified", not "not robust".
        answer = "certified" if certificate.decisions == {str(RADIUS): True} else "not certified"
        predicted = "abstained" if certificate.abstained else str(certificate.prediction)
        drawn = certificate.samples - certificate.n0
        print(f"{certificate.label:5}  {predicted:>9}  {answer:13}  {drawn:11,}")

    drawn = sum(certificate.samples for certificate in decided)
    fixed = len(decided) * (100 + VOTES)
    print(f"{drawn:,} noisy images in all; a fixed number for each would be {fixed:,}")


if __name__ == "__main__":
    main()
