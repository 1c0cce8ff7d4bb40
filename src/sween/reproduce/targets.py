"""What a target consists of: its plans that can be carried out, with their data."""

import dataclasses
from collections.abc import Sequence

import torch

from sween.errors import SweenError
from sween.paths import AnyPath
from sween.reproduce.plan import Plan, list_targets, read_plan
from sween.reproduce.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class OpenedTarget:
    """The plans of a target, ready to be carried out.

    Attributes:
        spaces: a workspace for each plan, its data loaded.
        left_out: a line for each plan of a target of several that cannot be carried out, with why.

    Example:
        See `open_target`.
    """

    spaces: Sequence[Workspace]
    left_out: Sequence[str]


def open_target(
    target: AnyPath,
    *,
    recipe: str,
    out: AnyPath,
    sigmas: Sequence[float] = (),
    data_root: AnyPath | None = None,
    devices: Sequence[torch.device] = (torch.device("cpu"),),
    quiet: bool = False,
) -> OpenedTarget:
    """Read the plans of a target and load their data, before any work is done.

    A target of several plans leaves out those that do not have the recipe or the noise levels, or
    whose data is not there, and says so.

    Raises:
        SweenError: the target's only plan cannot be carried out, or none of several.

    Example:
        >>> from sween.reproduce import open_target
        >>> opened = open_target("costs", recipe="fast", out="out", data_root="none")
        Traceback (most recent call last):
            ...
        sween.errors.DataError: none: expected ...
    """
    names = list_targets().get(str(target), (str(target),))
    spaces, left_out, errors = list[Workspace](), list[str](), list[SweenError]()
    for name in names:
        try:
            plan = read_plan(name)
            known = [sigma for sigma in sigmas if sigma in plan.sigmas] if len(names) > 1 else []
            space = Workspace(
                plan.at(recipe=recipe, sigmas=known or sigmas),
                recipe=recipe,
                out=out,
                data_root=data_root,
                devices=devices,
                quiet=quiet,
            )
            _load(space, spaces)
        except SweenError as error:
            errors.append(error)
            left_out.append(f"left out: {name}: {error}")
        else:
            spaces.append(space)
    if not spaces:
        raise errors[0]
    return OpenedTarget(spaces, left_out)


def _load(space: Workspace, others: Sequence[Workspace]) -> None:
    """Load its data, or take that of another plan: it may be large."""

    def data(plan: Plan) -> tuple[object, ...]:
        return plan.dataset, plan.image_size, plan.folder, plan.classes

    for other in others:
        if data(other.plan) == data(space.plan):
            space.dataset = other.dataset
            return
    space.dataset  # noqa: B018  cached
