"""Recipes: files of training options, and what the command line makes of them."""

import shutil
import tomllib
from pathlib import Path

import pytest

from sween.errors import BadInput, UnknownName
from sween.training import make_configs, read_recipe, recipes
from sween.training.recipes import find_recipe, list_recipes, run_folders

CONFIGS = Path(__file__).parents[2] / "configs"
ALL = sorted([*CONFIGS.glob("fast/*.toml"), *CONFIGS.glob("paper/*.toml")])


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_shipped_recipe_is_usable(path: Path) -> None:
    sigmas = (None,) if "sigma1.00" in path.name else (0.25, 0.5, 1.0)
    for sigma in sigmas:
        configs = make_configs(read_recipe(path), {"sigma": sigma}, archs=["resnet20"])
        dataset = "image_folder" if "imagenet" in path.name else "cifar10"
        assert all(config.dataset == dataset for config in configs)


@pytest.mark.parametrize("method", ["gaussian", "macer"])
def test_the_papers_hyper_parameters(method: str) -> None:
    (config,) = make_configs(
        read_recipe(CONFIGS / "paper" / f"{method}.toml"), {"sigma": 0.5}, archs=["resnet110"]
    )
    epochs, milestones = {"gaussian": (400, (150, 300)), "macer": (440, (200, 400))}[method]
    assert (config.method, config.epochs, config.milestones) == (method, epochs, milestones)
    assert (config.learning_rate, config.batch_size) == (0.01, 64)
    assert (config.momentum, config.weight_decay, config.nesterov) == (0.9, 5e-4, False)
    assert (config.decay_norms, config.average, config.label_smoothing) == (True, 0.0, 0.0)
    assert config.regulariser_weight == {"gaussian": 0.0, "macer": 4.0}[method]


@pytest.mark.parametrize("name", ["macer-sigma1.00", "macer"])
def test_macer_at_sigma_one_waits_for_the_first_drop(name: str) -> None:
    path = CONFIGS / "paper" / f"{name}.toml"
    (config,) = make_configs(read_recipe(path), {"sigma": 1.0}, archs=["resnet20"])
    weights = {epoch: config.options_at(epoch).regulariser for epoch in (0, 199, 200, 439)}
    assert weights == {0: 0.0, 199: 0.0, 200: 12.0, 439: 12.0}


def test_a_list_of_candidates_and_what_the_command_line_overrides() -> None:
    recipe = read_recipe(CONFIGS / "fast" / "gaussian.toml")
    configs = make_configs(recipe, {"sigma": 0.5, "epochs": 3, "method": None}, seeds=[1, 2])
    assert [(config.arch, config.seed) for config in configs] == [
        (arch, seed) for arch in ("resnet20", "resnet26", "resnet32") for seed in (1, 2)
    ]
    assert {config.epochs for config in configs} == {3}
    folders = run_folders(configs, Path("runs"))
    assert folders[0] == Path("runs/resnet20-seed1")
    assert len(set(folders)) == 6
    assert run_folders(configs[:1], Path("runs")) == [Path("runs")]
    with pytest.raises(BadInput, match="resnet20-seed1 2 times"):
        run_folders(configs[:1] * 2, Path("runs"))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("epochs = ", BadInput, "expected TOML"),
        ("candidate = 3", BadInput, r"\[\[candidate\]\] tables"),
        ("epoch = 3", UnknownName, "did you mean 'epochs'"),
        ('arch = "resnet20"', BadInput, "pass `dataset`"),
        ('dataset = "cifar10"\narch = "resnet20"', BadInput, "pass `sigma`"),
        ('dataset = "cifar10"\nsigma = 0.5', BadInput, "pass `arch`"),
    ],
)
def test_recipes_that_cannot_be_used(
    tmp_path: Path, text: str, kind: type[BadInput], said: str
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    full = {} if "arch" in text or "sigma" in text else {"dataset": "cifar10", "sigma": 0.5}
    with pytest.raises(kind, match=said):
        make_configs(read_recipe(path), full, archs=["resnet20"] if full else ())


def test_shipped_recipes_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(list_recipes().values()) == ALL
    for path in ALL:
        name = f"{path.parent.name}/{path.stem}"
        assert find_recipe(Path(name)) == find_recipe(Path(f"{name}.toml")) == path
        assert read_recipe(Path(name)) == read_recipe(path)
    own = tmp_path / "fast" / "gaussian"
    own.parent.mkdir()
    own.write_text('arch = "digits-mlp"', encoding="utf-8")
    assert read_recipe(Path("fast/gaussian")) == [{"arch": "digits-mlp"}], "a file wins"


def test_an_installed_package_has_them_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lib" / "site-packages" / "sween"
    shutil.copytree(CONFIGS, package / "configs")
    monkeypatch.setattr(recipes, "__file__", str(package / "training" / "recipes.py"))
    assert set(list_recipes()) == {f"{path.parent.name}/{path.stem}" for path in ALL}
    assert find_recipe(Path("fast/gaussian")) == package / "configs" / "fast" / "gaussian.toml"
    project = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"configs": "sween/configs"}


@pytest.mark.parametrize("name", ["fast/gausian", "../fast/gaussian", "fast", "absent.toml"])
def test_an_unknown_recipe_gets_the_list(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        read_recipe(Path(name))
    assert all(known in str(caught.value) for known in list_recipes())


def test_architectures_take_the_place_of_a_recipes_candidates() -> None:
    recipe = [{"epochs": 2, "arch": arch} for arch in ("resnet20", "resnet26")]
    options = {"dataset": "digits", "sigma": 0.5}
    configs = make_configs(recipe, options, archs=["digits-mlp", "digits-conv"], seeds=[1, 2])
    assert [(config.arch, config.seed) for config in configs] == [
        *(("digits-mlp", seed) for seed in (1, 2)),
        *(("digits-conv", seed) for seed in (1, 2)),
    ]
    # Candidates that differ in something else stay apart.
    recipe[1]["epochs"] = 3
    assert len(make_configs(recipe, options, archs=["digits-mlp"])) == 2
