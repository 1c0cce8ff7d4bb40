"""Grouping certificates: by model within a run, by image across models."""

from collections.abc import Iterable, Sequence

from sween.errors import BadInput
from sween.records import Certificate


def by_model(certificates: Iterable[Certificate]) -> dict[str, list[Certificate]]:
    """The certificates of each model, in order of first appearance.

    Raises:
        BadInput: a model has two certificates for one image, which would be counted twice.

    Example:
        See `paired_bootstrap`.
    """
    groups: dict[str, list[Certificate]] = {}
    for certificate in certificates:
        groups.setdefault(certificate.model, []).append(certificate)
    for rows in groups.values():
        check_distinct_images(rows)
    return groups


def check_distinct_images(certificates: Sequence[Certificate]) -> None:
    """Refuse an image that appears twice, which would count twice in every average.

    Usual causes: certificates of several models that were not split by model, and batches that were
    each numbered from 0. Seeds may differ: each certificate holds on its own.
    """
    seen: dict[int, str] = {}
    for certificate in certificates:
        if certificate.index in seen:
            models = sorted({seen[certificate.index], certificate.model})
            raise BadInput(
                "certificates",
                expected="one per image",
                got=f"index {certificate.index} twice (model {', '.join(models)})",
                fix="split the rows of several models with by_model"
                if len(models) > 1
                else "keep one of the two rows, or number the images consecutively",
            )
        seen[certificate.index] = certificate.model


def pair_by_index(
    first: Sequence[Certificate], second: Sequence[Certificate]
) -> tuple[list[Certificate], list[Certificate]]:
    """Both lists sorted by image; refused unless they cover the same images, once each.

    Averages over different test subsets differ by chance, on 500 images by as much as the gains
    being measured, so they are never compared.

    Example:
        >>> import sween
        >>> from sween.evaluation import pair_by_index
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> first, second = pair_by_index(certificates, certificates[::-1])
        >>> [certificate.index for certificate in second]
        [0, 1]
    """
    for certificates in (first, second):
        if not certificates:
            raise BadInput("certificates: expected at least one, got none; pass the rows of a run")
        check_distinct_images(certificates)
    left = sorted(first, key=lambda certificate: certificate.index)
    right = sorted(second, key=lambda certificate: certificate.index)
    unshared = {row.index for row in left} ^ {row.index for row in right}
    if unshared:
        index = min(unshared)
        owner = left if any(row.index == index for row in left) else right
        raise BadInput(
            f"certificates of {left[0].model} and {right[0].model}",
            expected="the same images in both",
            got=f"index {index} only for {owner[0].model} ({len(unshared)} not shared)",
            fix="certify both on the same indices, or finish the run that was stopped",
        )
    for one, other in zip(left, right, strict=True):
        if one.label != other.label:
            raise BadInput(
                f"label of index {one.index}: expected {one.label} for both models, got "
                f"{other.label} for {other.model}; compare models on the same data set and split"
            )
    return left, right
