"""Stand-ins for the paper's plans: small networks on digits, 12 images, n = 1,000."""

import re
import shutil
import warnings
from pathlib import Path

import pytest

from sween.errors import SmallSampleWarning
from sween.reproduce import list_plans
from tests.cli.command import succeed

RECIPE = 'dataset = "digits"\nepochs = 6\nbatch_size = 64\n'
MACER = f'{RECIPE}method = "macer"\ncopies = 2\nregulariser_from = 0\n'

PLAN = """
title = "Two networks on digits"
published = "standard"
dataset = "digits"
sigmas = [0.5, 0.25]

[recipes]
fast = "{folder}/recipe.toml"

[[candidate]]
arch = "digits-mlp"

[[candidate]]
arch = "digits-conv"

[[candidate]]
arch = "digits-mlp"
seed = 1

[[ensemble]]
name = "SWEEN-2"
members = ["digits-mlp-seed0", "digits-conv"]

[[ensemble]]
name = "SWEEN-3"
members = ["digits-mlp-seed0", "digits-conv", "digits-mlp-seed1"]

[weigh]
methods = ["sgd", "uniform"]
samples = 5

[certify]
indices = "0:12"
n = 1000
exits = ["none", "exact", "paper"]
"""

ADAPTIVE = 'base = "standard"\ntitle = "Exits on digits"\ntable = "adaptive"\n'

ATTACKS = """
base = "standard"
title = "Attacks on digits"
table = "attacks"
sigmas = [0.5]

[attack]
models = ["SWEEN-2", "digits-conv"]
eps = [0.25, 0.5]
indices = "0:4"
attack = "pgd"
samples = 4
n = 200
batch_size = 2
"""

COSTS = """
title = "Costs on digits"
table = "costs"
published = "costs"
dataset = "digits"
sigmas = [0.5]

[recipes]
fast = "{folder}/recipe.toml"
paper = "{folder}/long-recipe.toml"

[[candidate]]
arch = "digits-mlp"

[[candidate]]
arch = "digits-conv"

[[ensemble]]
name = "SWEEN-2"
members = ["digits-mlp", "digits-conv"]

[weigh]
samples = 5
"""


RECORD = """
title = "The record on digits"
table = "record"
published = "record"
dataset = "digits"
sigmas = [0.5, 0.25]

[recipes]
fast = "{folder}/acr-recipe.toml"

[[candidate]]
arch = "digits-mlp"

[[candidate]]
arch = "digits-conv"
recipes = { fast = "{folder}/recipe.toml" }

[[ensemble]]
name = "SWEEN-2"
members = ["digits-mlp", "digits-conv"]

[weigh]
methods = ["acr", "sgd"]
samples = 20

[certify]
indices = "0:12"
n = 1000

[record]
indices = "0:30"
sampling = "tolerance"
tolerance = 0.05
n = 2000
exit = "exact"
held_out_n = 500
"""

ACR = f'{RECIPE}method = "acr"\nattack_steps = 1\nvotes = 10\nreweigh_every = 2\ncopies = 2\n'


def _small_macer(shipped: str) -> str:
    """With the networks and ensembles' names of the stand-in, and few votes."""
    for arch, own in (("resnet20", "digits-mlp"), ("resnet26", "digits-conv")):
        shipped = shipped.replace(arch, own)
    without = shipped.replace('[[candidate]]\narch = "resnet32"\n', "").replace(', "resnet32"', "")
    with_votes = without.replace('indices = "888:1888"', 'indices = "0:12"\nn = 1000')
    return re.sub('fast = ".*"', 'fast = "{folder}/macer-recipe.toml"', with_votes)


def write_plans(folder: Path) -> None:
    """Plans by the names of targets, and their recipes.

    `macer`, `macer-sween3` and `identical` are those that ship, with other networks, recipe and
    number of votes.
    """
    shipped = {name: file.read_text() for name, file in list_plans().items()}
    for text in ("resnet110", "cifar10"):
        assert text in shipped["identical"]
    identical = shipped["identical"].replace("resnet110", "digits-mlp").replace("cifar10", "digits")
    texts = {
        "standard": PLAN,
        "adaptive": ADAPTIVE,
        "attacks": ATTACKS,
        "costs": COSTS,
        "record": RECORD,
        "macer-sween3": _small_macer(shipped["macer-sween3"]),
        "macer": re.sub('fast = ".*"', 'fast = "{folder}/macer-recipe.toml"', shipped["macer"]),
        "identical": re.sub('fast = ".*"', 'fast = "{folder}/recipe.toml"', identical)
        .replace("[weigh]", "[weigh]\nsamples = 5")
        .replace('indices = "888:1888"', 'indices = "0:12"\nn = 1000'),
    }
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "long-recipe.toml").write_text(RECIPE.replace("epochs = 6", "epochs = 12"))
    (folder / "macer-recipe.toml").write_text(MACER)
    (folder / "acr-recipe.toml").write_text(ACR)
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text.replace("{folder}", str(folder)))


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    """A folder with plans, nothing of which is done."""
    write_plans(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder where the plan standard was carried out into `out`, and what that printed."""
    folder = tmp_path_factory.mktemp("finished")
    write_plans(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSampleWarning)
        printed = succeed(
            f"reproduce {folder / 'standard.toml'} --out {folder / 'out'} --quiet --device cpu"
        )
    return folder, printed


@pytest.fixture
def done(plans: Path, finished: tuple[Path, str]) -> Path:
    """A copy of that folder, with plans and recipe at the new place."""
    shutil.copytree(finished[0] / "out", plans / "out")
    return plans
