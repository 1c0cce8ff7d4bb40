"""`sween plan`"""

from typing import Annotated, Any

import typer

from sween.errors import BadInput
from sween.theory import (
    achieved_epsilon,
    expected_radius,
    render_achievement,
    render_expected_radius,
    render_requirement,
    required_sizes,
)


def run(
    epsilon: Annotated[float | None, typer.Option(help="wanted excess risk")] = None,
    members: Annotated[int | None, typer.Option(help="K that you have")] = None,
    images: Annotated[int | None, typer.Option(help="n, weight-solving images you have")] = None,
    samples: Annotated[int | None, typer.Option(help="s, noise draws an image you have")] = None,
    eta: Annotated[float | None, typer.Option(help="failure probability of Theorem 2")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="L of the loss")] = None,
    classes: Annotated[int | None, typer.Option(help="M")] = None,
    phi_norm: Annotated[
        float | None, typer.Option(help="norm of phi; the paper leaves it open")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="constant; the paper leaves it open")] = None,
    p: Annotated[float | None, typer.Option(help="probability of the class under noise")] = None,
    runner_up: Annotated[float | None, typer.Option(help="probability of the second class")] = None,
    n: Annotated[int, typer.Option(help="votes of a certificate")] = 100_000,
    alpha: Annotated[float, typer.Option(help="failure probability of a certificate")] = 0.001,
    sigma: Annotated[float, typer.Option(help="noise level")] = 0.5,
) -> None:
    """What Theorem 2 asks for, what your sizes buy, or which radius to expect."""
    have = {"members": members, "images": images, "samples": samples}
    sizes = [f"--{name}" for name, value in have.items() if value is not None]
    modes = {"--epsilon": epsilon is not None, ", ".join(sizes): bool(sizes), "--p": p is not None}
    given = [name for name, is_given in modes.items() if is_given]
    if len(given) != 1:
        raise BadInput(
            "plan",
            expected="one of --epsilon, or --members, --images and --samples, or --p",
            got=" and ".join(given) or "none of them",
            fix="keep one" if given else "try --p 0.9 --n 100000",
        )
    if p is not None:
        outlook = expected_radius(p, n, alpha=alpha, sigma=sigma, runner_up=runner_up)
        typer.echo(render_expected_radius(outlook))
        return
    setting = _required(
        eta=eta, lipschitz=lipschitz, num_classes=classes, phi_norm=phi_norm, beta=beta
    )
    if epsilon is not None:
        typer.echo(render_requirement(required_sizes(epsilon=epsilon, **setting)))
    else:
        typer.echo(render_achievement(achieved_epsilon(**_required(**have), **setting)))


_OPTION_OF = {"num_classes": "--classes", "phi_norm": "--phi-norm"}


def _required(**options: float | None) -> dict[str, Any]:
    missing = [name for name, value in options.items() if value is None]
    if missing:
        names = [_OPTION_OF.get(name, f"--{name}") for name in missing]
        raise BadInput(
            "plan",
            expected=f"{', '.join(names)} too",
            got="no value",
            fix="Theorem 2 has no default for them; see docs/theory.md",
        )
    return {name: value for name, value in options.items() if value is not None}
