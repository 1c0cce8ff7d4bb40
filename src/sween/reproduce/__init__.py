"""The paper's tables from scratch: plans, their steps, and the tables with ours next to them."""

from sween.reproduce.figures import make_figures
from sween.reproduce.plan import Plan, list_plans, list_targets, read_plan
from sween.reproduce.rates import Rates, Work
from sween.reproduce.run import (
    Outcome,
    TimeLimitReached,
    carry_out,
    parse_duration,
    seconds_left,
    steps_of,
    steps_of_all,
)
from sween.reproduce.steps import Step
from sween.reproduce.tables import make_tables
from sween.reproduce.targets import OpenedTarget, open_target
from sween.reproduce.workspace import Workspace

__all__ = [
    "OpenedTarget",
    "Outcome",
    "Plan",
    "Rates",
    "Step",
    "TimeLimitReached",
    "Work",
    "Workspace",
    "carry_out",
    "list_plans",
    "list_targets",
    "make_figures",
    "make_tables",
    "open_target",
    "parse_duration",
    "read_plan",
    "seconds_left",
    "steps_of",
    "steps_of_all",
]
