"""`sween plan`, with or without its verb `certify`"""

from typing import Annotated, Any

import typer

from sween.cli import plan_certify
from sween.errors import BadInput
from sween.theory import achieved_epsilon, expected_radius, required_sizes, required_votes

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command(name="certify")(plan_certify.run)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    epsilon: Annotated[float | None, typer.Option(help="excess risk to stay below")] = None,
    members: Annotated[int | None, typer.Option(help="K, ensemble members you have")] = None,
    images: Annotated[int | None, typer.Option(help="n, images the weights are fitted on")] = None,
    samples: Annotated[int | None, typer.Option(help="s, noise samples per image")] = None,
    eta: Annotated[float | None, typer.Option(help="failure probability of Theorem 2")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="L, Lipschitz constant")] = None,
    classes: Annotated[int | None, typer.Option(help="M, number of classes")] = None,
    phi_norm: Annotated[float | None, typer.Option(help="norm of phi, at least 1")] = None,
    beta: Annotated[float | None, typer.Option(help="constant of Lemma 9; 2.51 works")] = None,
    p: Annotated[float | None, typer.Option(help="vote probability of the top class")] = None,
    runner_up: Annotated[float | None, typer.Option(help="that of the second class")] = None,
    radius: Annotated[float | None, typer.Option(help="l2 radius to certify")] = None,
    n: Annotated[int, typer.Option(help="votes per certificate")] = 100_000,
    alpha: Annotated[float, typer.Option(help="failure probability of a certificate")] = 0.001,
    sigma: Annotated[float, typer.Option(help="noise level")] = 0.5,
) -> None:
    """Plan an ensemble or a certification before running it.

    With --epsilon, the sizes that Theorem 2 asks for; with --members, --images and --samples, what
    those sizes guarantee; with --p, the certified radius to expect; with --radius, the votes that a
    certificate of that radius takes. `sween plan certify` predicts the cost of a certification.
    """
    if context.invoked_subcommand is not None:
        return
    have = {"members": members, "images": images, "samples": samples}
    sizes = [f"--{name}" for name, value in have.items() if value is not None]
    modes = {
        "--epsilon": epsilon is not None,
        ", ".join(sizes): bool(sizes),
        "--p": p is not None and radius is None,
        "--radius": radius is not None,
    }
    chosen = [name for name, is_given in modes.items() if is_given]
    if len(chosen) != 1:
        raise BadInput(
            "plan",
            expected="one of --epsilon, or --members, --images and --samples, or --p, or --radius",
            got=" and ".join(chosen) or "none of them",
            fix="keep one" if chosen else "try --p 0.9 --n 100000, or --radius 0.5",
        )
    if radius is not None:
        if runner_up is not None:
            raise BadInput(
                "--runner-up", expected="no --radius next to it", got=runner_up, fix="leave one out"
            )
        typer.echo(required_votes(radius, n=n, alpha=alpha, sigma=sigma, p=p))
        return
    if p is not None:
        typer.echo(expected_radius(p, n, alpha=alpha, sigma=sigma, runner_up=runner_up))
        return
    setting = {"eta": eta, "lipschitz": lipschitz, "num_classes": classes, "phi_norm": phi_norm}
    given: dict[str, Any] = setting | {"beta": beta} | (have if sizes else {"epsilon": epsilon})
    missing = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]
    if missing:
        raise BadInput(
            "plan",
            expected=f"{', '.join(missing).replace('--num-classes', '--classes')} too",
            got="no value",
            fix="Theorem 2 has no default for them; see docs/theory.md",
        )
    typer.echo(achieved_epsilon(**given) if sizes else required_sizes(**given))
