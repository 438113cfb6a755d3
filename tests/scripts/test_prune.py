"""The command that prunes networks: its tables, one tiny run, and its errors."""

import dataclasses
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import prune
import pruning
import train
from experiments.cli import InputError
from experiments.data.datasets import load
from experiments.measures import pruned
from experiments.measures.plan import Plan
from experiments.measures.pruned import STAGES
from experiments.pages import prune as prune_page
from experiments.recipes import PRESETS, Recipe, replace, residual_recipe
from experiments.training import run_folder, weight_files
from prune import Options
from tests.support.made_up_results import PRUNED as VALUES, pruned_networks
from tests.support.other_values import with_one_other_value
from tests.support.recorded import assert_as_recorded, condense
from tests.support.small_runs import SMALL, random_images


def test_spread_and_friedman_s_test_are_over_networks():
    accuracy = pruned_networks()["accuracy"]
    spread = accuracy["spread"]["pruned"]["mean"]
    assert spread is not None
    np.testing.assert_allclose(spread, np.ptp(VALUES, axis=1).mean())
    expected = scipy.stats.friedmanchisquare(*VALUES.T)
    for test in accuracy["friedman"].values():
        np.testing.assert_allclose([test["statistic"], test["p"]], [*expected])
    # For the ranks 2 4 3 1, 3 4 2 1 and 2 4 3 1, with sums R, Friedman's statistic is
    # 12 Σ R²/(n k (k + 1)) − 3 n (k + 1).
    ranks = np.array([7, 12, 8, 3])
    by_hand = 12 * (ranks**2).sum() / (3 * 4 * 5) - 3 * 3 * 5
    np.testing.assert_allclose(accuracy["friedman"]["pruned"]["statistic"], by_hand)
    assert pruned.friedman(VALUES[:1])["p"] is None
    assert pruned.friedman(np.ones((3, 4)))["p"] is None


def test_only_names_of_layers_with_removable_channels_can_be_excluded():
    images = random_images()
    pruned.check_names(images, SMALL, ["layers/0", "layers/1"])
    with pytest.raises(InputError, match=r"^--exclude: .* params/layers/0; 'pear' matches none"):
        pruned.check_names(images, SMALL, ["layers/0", "pear"])
    pruned.check_names(images, Recipe(model="no model"), [])  # without names, nothing is built


def test_where_clusters_are_merged_the_table_says_that_no_criterion_is_asked():
    run = pruned_networks()
    assert "whatever the criterion" not in prune_page.accuracy_table(run)[0]
    run["options"] |= {"repair": "merge"}
    assert prune_page.accuracy_table(run)[0].endswith("whatever the criterion")


def test_tables_show_accuracies_and_what_was_gained():
    (_, head, rows), (_, _, costs) = prune_page.tables(pruned_networks())
    assert list(head) == ["criterion", "trained", *STAGES]
    assert rows[0][:3] == ["l1", "91.00\xa0±\xa00.58", "51.00\xa0±\xa00.58"]
    assert rows[4][:3] == ["spread, points", "0", f"{100 * np.ptp(VALUES, axis=1).mean():.2f}"]
    by_name = {row[0]: row[1:] for row in costs}
    assert by_name["multiply-accumulates"] == ["800", "200", "0.25"]
    assert by_name["ms, batch 1"] == ["1", "0.5", "0.50"]
    assert by_name["images a second, batch 1"][-1] == "2.00"


def test_the_page_shows_both_tables_and_its_text_is_no_html():
    run = pruned_networks()
    for network in run["accuracy"]["steps"]:
        for rows in network.values():
            rows *= 2
    page = prune_page.render(run)
    assert "Test accuracy on digits" in page
    assert "multiply-accumulates" in page
    assert "&lt;scikit-learn&gt;" in page
    assert "--x &lt;y&gt;" in page
    # Three panels show the accuracies of all stages, their differences from the criteria's mean,
    # and the costs. A panel for each stage shows the accuracy by step.
    assert len(re.findall("<svg role", page)) == 3 + len(STAGES)
    assert "minus the criteria&#x27;s mean, points" in page
    assert "pruned / trained; horizontal: %" in page


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"plan": Plan(ratio=0.0)}, r"--ratio must lie in \(0, 1\); got 0"),
        ({"plan": Plan(ratio=1.0)}, r"--ratio must lie in \(0, 1\); got 1"),
        ({"plan": Plan(budget=0)}, "--budget must be above 0; got 0"),
        ({"plan": Plan(steps=0)}, "--steps must be at least 1; got 0"),
        ({"plan": Plan(fine_tune=0)}, "--fine-tune must be at least 1; got 0"),
        ({"plan": Plan(repair_images=1)}, "--repair-images must be at least 2; got 1"),
        ({"plan": Plan(round_to=0)}, "--round-to must be at least 1; got 0"),
        ({"images": 0}, "--images must be at least 1; got 0"),
        ({"batch_sizes": (0,)}, "--batch-sizes must be at least 1; got 0"),
        ({"depth": 9}, r"--depth must be 6k \+ 2 with k at least 1; got 9"),
        ({"dataset": "pears"}, "the data set must be one of"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        prune.main(Options(out=tmp_path, **options))


def two_layers() -> Any:
    """A network of two dense layers, in which a hidden channel costs 12 multiply-accumulates."""
    return SimpleNamespace(
        apply=lambda tree, x: jax.nn.relu(x @ tree["a"]) @ tree["b"],
        tree={"a": np.ones((8, 16)), "b": np.ones((16, 4))},
        images=random_images()._replace(x_test=np.ones((3, 8))),
    )


def width(**plan):
    """The number of hidden channels of `two_layers` that remain after pruning by a plan."""
    network = two_layers()
    removed = pruned.removal_options(Plan(**plan))
    x = network.images.x_test[:1]
    return pruning.prune(network.apply, network.tree, x, **removed).params["a"].shape[1]


@pytest.mark.parametrize(("unit", "cost"), [("macs", 12), ("parameters", 12), ("bytes", 96)])
def test_a_budget_decides_how_many_channels_are_left(unit, cost):
    assert width(budget=5.5 * cost, unit=unit) == 5
    assert width(budget=5.5 * cost, unit=unit, round_to=2) == 4
    assert width(budget=0.5, unit=unit) == 8
    with pytest.raises(ValueError, match="with the fewest channels"):
        width(budget=0.5 * cost, unit=unit)


def test_milliseconds_are_measured_and_steps_need_a_ratio(monkeypatch):
    counted = pruning.channels.cost_at

    def timed(*arguments, batch_sizes=()):
        def at(widths):
            timing = {size: SimpleNamespace(milliseconds=widths[0] / 4) for size in batch_sizes}
            return counted(*arguments)(widths)._replace(timings=timing)

        return at

    monkeypatch.setattr("pruning.channels._prune.cost_at", timed)
    assert width(budget=1.6, unit="milliseconds") == 6


@pytest.mark.parametrize(
    "ignored", [{"ratio": 0.3}, {"steps": 2}, {"curve": "linear"}, {"scope": "globally"}]
)
def test_options_that_a_budget_replaces_are_refused(ignored):
    ((name, value),) = ignored.items()
    with pytest.raises(
        InputError, match=f"--{name} must not be given beside --budget; got {value}"
    ):
        Plan(budget=0.7, **ignored)


def test_a_unit_without_a_budget_is_refused():
    with pytest.raises(InputError, match="--unit must not be given without --budget; got bytes"):
        Plan(unit="bytes")


def made_up_networks(images, seeds, **functions: Any):
    """Networks of two dense layers, with the given functions of the weights as attributes."""
    rng = np.random.default_rng(0)
    for seed in range(seeds):
        kernels = rng.normal(size=(4, 6)), rng.normal(size=(6, 2))
        yield SimpleNamespace(
            seed=seed,
            images=images,
            tree={name: {"kernel": w} for name, w in zip("ab", kernels, strict=True)},
            apply=lambda p, x: jax.nn.relu(x @ p["a"]["kernel"]) @ p["b"]["kernel"],
            **functions,
        )


def test_results_of_networks_whose_stages_and_criteria_differ_are_as_recorded(
    tmp_path, monkeypatch
):
    """The accuracy is faked as the sum of all squared weights, which every stage changes."""
    functions = {
        "accuracy": lambda tree: sum(float((w["kernel"] ** 2).sum()) for w in tree.values()),
        "recalibrated": lambda tree: jax.tree.map(lambda w: 1.1 * w, tree),
        "fine_tuned": lambda tree: jax.tree.map(lambda w: w + 0.1, tree),
    }
    monkeypatch.setattr(
        pruned,
        "trained_networks",
        lambda images, recipe, epochs, seeds, *_: [*made_up_networks(images, seeds, **functions)],
    )
    images = random_images()._replace(x_test=np.ones((9, 4)))
    stages: Any = SimpleNamespace(describe=lambda text: None, advance=lambda count: None)
    options: dict[str, Any] = {"seeds": 3, "batch_sizes": (), "stages": stages}
    plan = Plan(ratio=0.6, steps=2, fine_tune=3, curve="linear", min_channels=2)
    found = pruned.measure(
        images, Recipe(), plan, run=tmp_path / "run", out=tmp_path, sensitivity=True, **options
    )
    assert_as_recorded("runs/prune", condense(found, "checkpoint"))


def test_excluded_layers_have_no_sensitivity():
    """Of three dense layers, `a` and `b` have removable channels."""
    shapes = {"a": (4, 6), "b": (6, 5), "c": (5, 2)}
    network: Any = SimpleNamespace(
        images=random_images()._replace(x_test=np.ones((9, 4))),
        tree={name: np.ones(shape) for name, shape in shapes.items()},
        apply=lambda p, x: jax.nn.relu(jax.nn.relu(x @ p["a"]) @ p["b"]) @ p["c"],
        accuracy=lambda tree: 0.5,
    )
    for exclude, layers in (((), {"a", "b"}), (("b",), {"a"})):
        found = pruned.layer_by_layer(network, Plan(exclude=exclude))
        assert found["accuracy"].keys() == layers


def test_a_step_that_is_repeated_after_a_kill_replaces_its_row(tmp_path, monkeypatch):
    """The fake `prune` repeats the second step, because no checkpoint was saved after it."""

    def prune_again(apply, tree, x, *, fine_tune, checkpoint_dir, **options):
        for step in next(steps):
            fine_tune({"accuracy": 0.1 * step}, step)

    network: Any = SimpleNamespace(
        apply=None, tree=None, images=random_images(), accuracy=lambda tree: tree["accuracy"]
    )
    network.recalibrated = network.fine_tuned = lambda tree: tree
    monkeypatch.setattr(pruning, "prune", prune_again)
    steps = iter([(0, 1), (1, 2)])
    again = partial(pruned.prune_by, network, "l1", Plan(steps=3), tmp_path / "l1-0")
    assert len(again()) == 2
    assert [row["pruned"] for row in again()] == [0.0, 0.1, 0.2]


def test_networks_are_pruned_by_every_criterion_and_the_small_ones_are_kept(tmp_path, monkeypatch):
    """Networks have two dense layers. The accuracy is a tenth of the number of kept channels."""

    def trained_networks(images, recipe, epochs, seeds, run, stages):
        asked.append((recipe, epochs, seeds, run))
        return list(
            made_up_networks(
                images,
                seeds,
                accuracy=lambda tree: np.asarray(tree["a"]["kernel"]).any(0).sum() / 10,
                recalibrated=lambda tree: tree,
                fine_tuned=lambda tree: tree,
            )
        )

    asked, steps = [], []
    monkeypatch.setattr(pruned, "trained_networks", trained_networks)
    stages: Any = SimpleNamespace(describe=steps.append, advance=steps.append)
    images = random_images()._replace(x_test=np.ones((9, 4)))
    recipe, plan = Recipe(), Plan(ratio=0.5, steps=2, fine_tune=3)
    run, out = tmp_path / "run", tmp_path / "out"
    options: dict[str, Any] = {"seeds": 2, "batch_sizes": (1,), "run": run, "out": out}
    found = pruned.measure(images, recipe, plan, stages=stages, **options)
    assert asked == [(recipe, 3, 2, run)]
    assert steps[-2:] == ["pruning by gm, seed 2 of 2", 6]
    assert found["settings"] == dataclasses.asdict(recipe) | {
        "seeds": 2,
        "training images": len(images.x_train),
    }
    assert found["options"] == dataclasses.asdict(plan)
    assert found["accuracy"]["trained"]["values"] == [0.6, 0.6]
    for criterion in pruning.CRITERIA:
        steps_of_2 = [row["fine-tuned"] for row in found["accuracy"]["steps"][1][criterion]]
        assert steps_of_2 == [0.5, 0.3]
    assert found["widths"]["pruned"] == {"a": 3, "b": 2}
    assert found["cost"]["pruned"]["macs"] == 3 * 4 + 3 * 2
    assert found["cost"]["trained"]["macs"] == 6 * 4 + 6 * 2
    (folder,) = (out / "networks").iterdir()
    kept = {f"{criterion}-{seed}" for criterion in pruning.CRITERIA for seed in (0, 1)}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == kept
    assert "sensitivity" not in found
    again = pruned.measure(images, recipe, plan, stages=stages, **options, sensitivity=True)
    assert again["accuracy"] == found["accuracy"]
    left = [round(0.6 - int(6 * ratio + 1e-9) / 10, 1) for ratio in pruned.SCANNED]
    assert again["sensitivity"]["ratios"] == pruned.SCANNED
    np.testing.assert_allclose(again["sensitivity"]["accuracy"]["a/kernel"], left)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a folder that scripts/train\.py made"):
        prune.main(Options(tmp_path, out=tmp_path))
    run_folder.prepare(tmp_path, Recipe(), random_images(), vmapped_seeds=5)
    with pytest.raises(InputError, match="must be trained with --vmap-seeds no"):
        prune.main(Options(tmp_path, out=tmp_path))


def test_the_page_shows_the_layers_one_at_a_time_if_they_were_measured():
    run: Any = pruned_networks() | {"ratios": [0.5]}
    assert "One layer at a time" not in prune_page.render(run)
    run["sensitivity"] = {"ratios": [0.5, 0.9], "accuracy": {"a": [0.9, 0.5], "b": [0.8, 0.123]}}
    page = prune_page.render(run)
    # The title is in the list of contents, and above its section.
    assert page.count("One layer at a time") == 2
    assert "12.3" in page


@pytest.fixture
def made_up_run(monkeypatch):
    """A run whose functions are fakes; the result lists the arguments that `measure` gets."""
    asked: list[dict[str, Any]] = []

    def measure(images, recipe, plan, **options):
        asked.append({"images": images, "recipe": recipe, "plan": plan} | options)
        return pruned_networks()

    def prepare(run, recipe, data, **options):
        asked.append({"run": run, "recipe": recipe, "data": data} | options)

    loaded: list[Any] = []
    monkeypatch.setattr(pruned, "measure", measure)
    monkeypatch.setattr(run_folder, "prepare", prepare)
    monkeypatch.setattr(prune_page, "render", lambda results: results["date"])
    monkeypatch.setattr(
        "experiments.data.datasets.load", lambda *which: loaded.append(which) or random_images()
    )
    return loaded, asked


def test_networks_are_trained_where_no_run_is_given(made_up_run, tmp_path, capsys):
    loaded, asked = made_up_run
    options = Options(images=10, seeds=2, depth=14, epochs=5, batch_size=7, out=tmp_path)
    plan = Plan(steps=2)
    others = {"data_dir": Path("data"), "batch_sizes": (4,), "plan": plan, "sensitivity": True}
    prune.main(dataclasses.replace(options, **others))
    assert loaded == [("digits", Path("data"), None)]
    prepared, measured = asked
    recipe = residual_recipe("digits", 14, 5, 7)
    assert prepared["run"] == measured["run"] == tmp_path / "run"
    assert (prepared["vmapped_seeds"], prepared["images"]) == (1, 10)
    assert prepared["recipe"] == measured["recipe"] == recipe
    for name in ("x_train", "y_train"):
        expected = getattr(random_images(), name)[:10]
        np.testing.assert_array_equal(getattr(prepared["data"], name), expected)
        np.testing.assert_array_equal(getattr(measured["images"], name), expected)
    assert (measured["seeds"], measured["batch_sizes"], measured["out"]) == (2, (4,), tmp_path)
    assert (measured["plan"], measured["sensitivity"]) == (plan, True)
    (task,) = measured["stages"].progress.tasks
    assert task.total == pruned.units(recipe, 2, plan)
    said = capsys.readouterr().out
    for title, _, rows in prune_page.tables(pruned_networks()):
        assert " ".join(title.split()[:3]) in said
        assert rows[0][1] in said
    assert said.splitlines()[-1] == f"Open {tmp_path / 'index.html'}"
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["command"].startswith("python scripts/prune.py")
    assert written["cost"] == pruned_networks()["cost"]


def test_the_networks_of_a_run_and_of_a_file_are_pruned(made_up_run, tmp_path, monkeypatch):
    loaded, asked = made_up_run
    run, file = tmp_path / "run", tmp_path / "w.safetensors"
    for seed in range(3):
        (run / f"seed-{seed}").mkdir(parents=True)
    file.touch()
    recipe = Recipe(dataset="mnist", model="resnet8")
    data = {"name": "mnist", "classes": 10, "shape": [28, 28, 1], "train": 20, "test": 1}
    settings = dataclasses.asdict(recipe) | {"vmapped_seeds": 1, "images": 20, "data": data}
    (run / "recipe.json").write_text(json.dumps(settings | {"init_from": "abc"}))
    # A run that started with the weights of another run must be complete before it is pruned.
    (run / "results.json").touch()
    prune.main(Options(run, out=tmp_path / "out"))
    assert loaded.pop() == ("mnist", None, None)
    prepared, measured = asked
    assert prepared["run"] == measured["run"] == run
    assert (prepared["images"], measured["seeds"], measured["recipe"]) == (20, 3, recipe)
    assert prepared["init_from"] == "abc"
    monkeypatch.setattr(weight_files, "name", lambda path: {file: "resnet20"}[path])
    asked.clear()
    prune.main(Options(file, dataset="cifar10", seeds=7, images=15, out=tmp_path / "file"))
    assert loaded == [("cifar10", None, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))]
    (measured,) = asked  # for a file of weights, no run is prepared
    assert (measured["run"], measured["seeds"]) == (file, 1)
    assert measured["recipe"] == replace(residual_recipe("cifar10", 8, 15, 64), model="resnet20")
    assert len(measured["images"].x_train) == 15


@pytest.fixture
def users_jax():
    users = {"jax_enable_x64": False, "jax_numpy_dtype_promotion": "standard"}
    users |= {"jax_numpy_rank_promotion": "allow"}
    before = {name: getattr(jax.config, name) for name in users}
    for name, value in users.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("users_jax")
def test_a_run_writes_tables_a_page_and_small_networks_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = Plan(fine_tune=1, steps=2)
    options = Options(epochs=2, seeds=2, plan=plan, batch_sizes=(4,), out=tmp_path)
    prune.main(options)
    run = tmp_path / "run"
    first = json.loads((tmp_path / "results.json").read_text())
    prune.main(dataclasses.replace(options, run=run))  # the second call only measures times
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["accuracy"] == first["accuracy"]
    with pytest.raises(InputError, match="'pear' matches none"):
        prune.main(Options(run, plan=Plan(exclude=("pear",)), out=tmp_path))
    assert set(first["widths"]["pruned"].values()) >= {8, 16, 32}
    assert first["cost"]["pruned"]["macs"] < 0.3 * first["cost"]["trained"]["macs"]
    for by_stage in first["accuracy"]["by criterion"].values():
        assert by_stage["fine-tuned"]["mean"] > 0.5  # random guesses have an accuracy of 0.1
    networks = sorted(path for path in (tmp_path / "networks").glob("*/*") if path.is_dir())
    assert [path.name for path in networks] == sorted(
        f"{criterion}-{seed}" for criterion in pruning.CRITERIA for seed in range(2)
    )
    small = pruning.channels.load_pruned(networks[0])
    assert small.params["params"]["stem"]["kernel"].shape == (3, 3, 1, 8)
    assert "fine-tuned" in capsys.readouterr().out
    assert Path(tmp_path / "index.html").is_file()
    assert prune.read(run)[1] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("users_jax")
def test_any_network_that_was_trained_is_pruned(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, recipe = PRESETS["cifar10-resnet56"]
    small = dataclasses.replace(recipe, dataset="digits", model="resnet8", epochs=1, drops=())
    train.main(small, train.Options(out=tmp_path / "run"))
    plan = Plan(fine_tune=1, repair="least_squares", repair_images=200)
    prune.main(Options(tmp_path / "run", plan=plan, batch_sizes=(), out=tmp_path))
    pruned_run = json.loads((tmp_path / "results.json").read_text())
    assert pruned_run["settings"]["model"] == "resnet8"
    assert pruned_run["cost"]["pruned"]["macs"] < 0.5 * pruned_run["cost"]["trained"]["macs"]
    accuracy = run_folder.read_lines(tmp_path / "run" / "seed-0" / "metrics.jsonl")[-1]["accuracy"]
    assert pruned_run["accuracy"]["trained"]["mean"] == accuracy

    page = Path(prune.__file__).parents[1] / "docs" / "pruning.md"
    blocks = re.findall(r"```py\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    (block,) = (block for block in blocks if "load_network" in block)
    (folder,) = tmp_path.glob("networks/*/l1-0")
    places = f"run, folder = {str(tmp_path / 'run')!r}, {str(folder)!r}"
    names: dict[str, Any] = {}
    exec(re.sub(r"run, folder = .*", places, block), names)
    images = load("digits")
    right = np.argmax(names["small"](jax.numpy.asarray(images.x_test)), 1) == images.y_test
    expected = pruned_run["accuracy"]["by criterion"]["l1"]["fine-tuned"]["mean"]
    np.testing.assert_allclose(right.mean(), expected, atol=1e-6)


@pytest.mark.parametrize("normalization", ["unitized", "bounded"])
def test_a_unitized_run_is_refused_before_anything_is_trained(tmp_path, normalization):
    recipe = Recipe(normalization=normalization)
    run_folder.prepare(tmp_path, recipe, random_images(), vmapped_seeds=1)
    with pytest.raises(InputError, match="unitized layers, which normalize over all"):
        prune.main(Options(tmp_path, out=tmp_path))


def test_every_setting_decides_the_folder_of_the_small_networks(tmp_path, monkeypatch):
    """A change of the plan, the recipe, the seeds, the images or the weights gives a new folder."""
    monkeypatch.setattr(Plan, "__post_init__", lambda plan: None)  # no unit without a budget
    plan, weights = Plan(), tmp_path / "net.safetensors"
    settings = {**dataclasses.asdict(Recipe()), "seeds": 2, "training images": 100}
    folders = [pruned.digest(settings, plan, tmp_path, "a")]
    folders += [pruned.digest(settings, p, tmp_path, "a") for _, p in with_one_other_value(plan)]
    for _, recipe in with_one_other_value(Recipe()):
        folders.append(pruned.digest(settings | dataclasses.asdict(recipe), plan, tmp_path, "a"))
    for change in ({"seeds": 3}, {"training images": 99}):
        folders.append(pruned.digest(settings | change, plan, tmp_path, "a"))
    for content in (b"one", b"two"):
        weights.write_bytes(content)
        folders.append(pruned.digest(settings, plan, weights, "a"))
    folders.append(pruned.digest(settings, plan, tmp_path, "b"))
    assert len(set(folders)) == len(folders)
    assert pruned.digest(settings, Plan(), tmp_path, "a") == folders[0]
