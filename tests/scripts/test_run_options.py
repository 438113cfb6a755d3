"""Options of a run: groups of seeds, devices and statistics, and the first printed lines."""

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from experiments.compiled.step import operations
from experiments.data import stand_ins
from experiments.measures import filter_models, odd_point, provenance, report
from experiments.recipes import Recipe, replace
from experiments.training import introduction, run, trainer
from experiments.training.loop import Extras, Trained
from geometry import TreeGram
from tests.support.small_runs import SMALL, compiled, random_images

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")


@pytest.mark.parametrize(
    ("groups", "devices", "expected"),
    [
        (1, 1, {"groups": 1}),
        (6, 2, {"groups": 3}),
        (1, 4, {"groups": 1, "axis_name": "data", "axis_index_groups": None}),
        (2, 4, {"groups": 1, "axis_name": "data", "axis_index_groups": [[0, 1], [2, 3]]}),
        (2, 6, {"groups": 1, "axis_name": "data", "axis_index_groups": [[0, 1, 2], [3, 4, 5]]}),
    ],
)
def test_a_group_of_the_batch_is_on_neighboring_devices_or_a_part_of_one(groups, devices, expected):
    assert trainer._statistics_options(Recipe(statistics_groups=groups), devices) == expected


@pytest.mark.parametrize(
    ("shape", "shard", "expected"),
    [
        ((64, 64, 3), False, P()),
        ((32, 512), True, P(None, "data")),  # the longest axis is sharded
        ((512, 32), True, P("data", None)),
        ((4098, 64), True, P(None, "data")),  # Four does not divide the longest axis.
        ((2, 4094), True, P()),  # Four divides no axis.
        ((4, 512), True, P()),  # The array has fewer elements than MIN_SHARDED_SIZE.
    ],
)
def test_a_state_is_sharded_along_its_longest_axis_that_divides(shape, shard, expected):
    mesh = trainer.mesh_of(4)
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert trainer._state_sharding(mesh, shard, leaf).spec == expected


@pytest.mark.parametrize(
    ("model", "asked", "expected"),
    [
        ("mlp", "auto", [(0, 1, 2)]),
        ("preact20", "auto", [(0,), (1,), (2,)]),
        ("preact20", "yes", [(0, 1, 2)]),
        ("mlp", "no", [(0,), (1,), (2,)]),
    ],
)
def test_seeds_are_grouped_as_asked(model, asked, expected):
    assert run.seed_groups(Recipe(model=model), 3, asked) == expected


def test_results_have_the_lines_of_all_groups_in_the_order_of_seeds(monkeypatch):
    seen: list[Any] = []

    def train(trainer_, seeds, out, view, interrupted, extras, init):
        seen.append((seeds, out, extras, init, view.progress.tasks[0].total))
        lines = [[{"accuracy": 0.9}, {"accuracy": (seed + 1) / 8}] for seed in seeds]
        return Trained("state", lines, {"whole": {"accuracy": seeds[0]}})  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(run.loop, "train", train)
    closed: list[int] = []
    recipe = Recipe(epochs=2)
    given: Any = SimpleNamespace(recipe=recipe, total_steps=7, close=lambda: closed.append(1))
    out, extras, init = run.Path("out"), Extras(profile=True), lambda seeds: seeds
    found = run.train_groups(given, [(0,), (1,), (2,)], out, extras, init)  # pyright: ignore[reportArgumentType]
    assert seen == [((seed,), out, extras, init, 21) for seed in range(3)]
    assert [lines[-1]["accuracy"] for lines in found["seeds"]] == [0.125, 0.25, 0.375]
    assert found["accuracy"]["median"] == found["accuracy"]["mean"] == 0.25
    assert found["evaluations"] == [{"whole": {"accuracy": seed}} for seed in range(3)]
    assert (found["vmapped seeds"], found["recipe"]["epochs"]) == (1, 2)
    assert closed == [1]


def test_initial_weights_are_read_for_all_seeds_and_named_in_the_recipe(monkeypatch):
    asked: list[Any] = []

    class Weights:
        digest = "abc"

        def __init__(self, path, seeds):
            asked.append((path, seeds))

        def init_state(self, trainer_, seeds):
            return trainer_, seeds

    monkeypatch.setattr(run, "InitialWeights", Weights)
    monkeypatch.setattr(run.run_folder, "prepare", lambda *of, **options: asked.append(options))
    given: Any = SimpleNamespace(recipe=Recipe(), init_state=lambda seeds: "fresh")
    images = random_images()
    init = run.prepare(given, images, [(0, 1), (2, 3)], run.Path("out"), run.Path("from"))
    assert asked == [(run.Path("from"), 4), {"vmapped_seeds": 2, "init_from": "abc"}]
    assert init((2, 3)) == (given, (2, 3))
    init = run.prepare(given, images, [(0,)], run.Path("out"), None)
    assert asked[2] == {"vmapped_seeds": 1, "init_from": None}
    assert init((0,)) == "fresh"


@pytest.mark.parametrize(
    "normalization", ["batch_norm", "unitized", "bounded", "group_norm", "none"]
)
def test_running_statistics_are_said_for_every_layer_that_has_them(normalization):
    recipe = Recipe(normalization=normalization, running_momentum=0.7)
    said = introduction.settings(recipe, streamed=False)
    has_statistics = normalization in ("batch_norm", "unitized", "bounded")
    assert ("running_momentum" in said) == ("statistics_groups" in said) == has_statistics
    assert ("norm_channels" in said) == (normalization == "group_norm")


def test_the_first_line_has_the_work_of_one_network_on_one_device(monkeypatch):
    monkeypatch.setattr(introduction, "operations", lambda seeds: 2e6 * len(seeds))
    given: Any = SimpleNamespace(
        recipe=Recipe(batch_size=24), parameters=12345, steps=1002, lower=lambda seeds: seeds
    )
    alone, sharded = trainer.mesh_of(1), trainer.mesh_of(4)
    assert introduction.first_line(given, alone, [(0,)]) == (
        "1 x cpu, 24 images a step, 12,345 parameters, 1,002 steps an epoch, "
        "2 M floating-point operations a step"
    )
    said = introduction.first_line(given, sharded, [(0, 1, 2)])
    assert said.startswith(
        "4 x cpu, batches sharded over all, 24 images a step, 6 on each device, "
    )
    assert said.endswith("2 M floating-point operations a step, seeds vmapped")
    assert introduction.first_line(given, alone, [(0,), (1,)]).endswith("one after the other")


def test_a_run_begins_with_its_devices_its_settings_and_a_note(monkeypatch, capsys):
    monkeypatch.setattr(introduction, "operations", lambda seeds: 2e6 * len(seeds))
    recipe = Recipe(batch_size=24, weight_decay=0.003, normalization="group_norm")
    given: Any = SimpleNamespace(
        recipe=recipe, parameters=12345, steps=1002, lower=lambda seeds: seeds, streams=False
    )
    introduction.introduce(given, trainer.mesh_of(1), [(0,)], "A note.")
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("1 x cpu, 24 images a step, 12,345 parameters")
    assert "weight-decay 0.003" in text
    assert "normalization group_norm" in text
    assert text.endswith("A note.")


def test_the_work_of_one_network_does_not_depend_on_the_number_of_networks():
    recipe, data, mesh = Recipe(), stand_ins.shapes_of("digits"), trainer.mesh_of(1)
    many = trainer.Trainer(recipe, data, mesh, trainer.Layout(vmap_seeds=True))
    one = trainer.Trainer(recipe, data, mesh, trainer.Layout())
    for count in (2, 5):
        lowered = many.lower(tuple(range(count)))
        found = operations(lowered) / count / operations(one.lower((0,)))
        assert 0.98 < found < 1.02


def test_the_norm_of_the_odd_point_is_beside_the_mean_of_the_others(monkeypatch, key):
    """Three samples have norms 1, 2, 3 in one layer and 2, 4, 12 in the other; the last is odd."""
    monkeypatch.setattr(odd_point, "POINTS", 3)
    grams = jnp.stack(
        [jnp.diag(jnp.array(norms) ** 2) for norms in ([1.0, 2.0, 3.0], [2.0, 4.0, 12.0])]
    )
    batch = SimpleNamespace(statistics=grams, x=np.eye(3))
    monkeypatch.setattr(odd_point.geometry, "random_network", lambda *_, **__: batch)
    found = odd_point._network(key, jnp.eye(3))
    assert found["index"] == 2
    np.testing.assert_allclose(found["norm_ratio"], [3 / 1.5, 12 / 3], rtol=1e-6)
    assert found["angle_degrees"] == pytest.approx(90)
    # Samples with a spread of 90 degrees are no cluster.
    assert found["spread_degrees"] == pytest.approx(90)
    assert not found["is_odd"]


def test_the_ends_of_the_tree_are_its_smallest_and_its_largest_input(monkeypatch):
    """In the fake tree, samples are numbers; if their signs differ, their angle is 180°."""
    made = lambda x, depth: TreeGram(jnp.outer(x, x), jnp.ones(()), jnp.ones((4, 4)))  # noqa: E731
    monkeypatch.setattr(odd_point.geometry, "tree_gram", made)
    found = odd_point._tree(jnp.array([0.5, 3.0, -2.0, 1.0]))
    assert found["inputs"] == [-2, 0.5, 1, 3]
    np.testing.assert_allclose(found["norms"], np.abs(found["inputs"]) / 3, rtol=1e-6)
    assert found["angle_ends_degrees"] == 180


def test_a_report_says_the_images_that_are_measured():
    images = random_images()
    for probe, expected in ((4, 4), (99, 15)):
        found = provenance.describe(images, probe)
        assert (found["probe"], found["train"], found["test"]) == (expected, 70, 15)
        assert found["shape"] == [4, 4, 1]
    shared = provenance.settings(replace(Recipe(), momentum=0.25))
    assert shared["momentum"] == 0.25
    assert not {"normalization", "crop"} & shared.keys()


def test_a_hash_is_of_settings_and_of_every_file(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for path in files:
        path.write_text("1")
    first = provenance.digest(["x", 1], files)
    assert provenance.digest(["x", 1], files) == first
    assert provenance.digest(["x", 2], files) != first
    for path in files:
        path.write_text("2")
        assert provenance.digest(["x", 1], files) != first
        path.write_text("1")


@pytest.mark.parametrize(
    ("normalization", "expected"), [("batch_norm", 690), ("unitized", 722), ("none", 626)]
)
def test_parameters_are_the_trained_numbers_of_one_network(normalization, expected):
    """Dense layers of 16, 24, 8 and 2 units have 626 weights and biases.

    The two norms have a scale and a bias for each of 32 units, and unitization an alpha.
    """
    recipe = replace(SMALL, normalization=normalization)
    found = compiled(recipe, random_images(), vmap_seeds=True)
    assert found.parameters == expected


def test_the_folder_of_a_network_depends_on_its_recipe_and_its_code(tmp_path, monkeypatch):
    code = tmp_path / "code.py"
    monkeypatch.setattr(provenance, "code", lambda: [code])

    def folder(text: str, **changes: float) -> Path:
        code.write_text(text)
        return report.run_folder(replace(Recipe(), **changes), tmp_path)

    first = folder("1")
    assert first == folder("1") != folder("1", momentum=0.25)
    assert first != folder("2")


def test_the_code_of_a_training_is_all_that_its_modules_import():
    own = ("jaxnorm", "experiments.recipes", "experiments.data", "experiments.training")
    loaded = [module for name, module in sys.modules.items() if name.startswith(own)]
    assert len(loaded) > 30
    assert {Path(str(module.__file__)) for module in loaded} <= set(provenance.code())


def test_the_p_value_of_an_explanation_counts_permutations_of_pairs():
    """The expected p-value is exact: it counts all permutations of pairs within each network."""
    accuracy = {"l1": np.array([0.0, 0.0]), "l2": np.array([1.0, 0.0]), "gm": np.array([3.0, 0.5])}
    found = filter_models.explain(accuracy)
    assert found["networks"] == 2
    assert found["points"] == pytest.approx({"l1-l2": 0.5, "l1-gm": 1.75, "l2-gm": 1.25})
    rows = np.array([[1.0, 3.0, 2.0], [0.0, 0.5, 0.5]])
    assert found["by_pair"] == pytest.approx(rows.mean(0).var() / rows.var())
    apart = [found["disjoint"][pair] for pair in ("l1-l2", "l1-gm", "l2-gm")]
    correlation = np.corrcoef(np.tile(apart, 2), rows.ravel())[0, 1]
    assert found["correlation"] == pytest.approx(correlation)
    # The exact p-value is over all 36 orders of the pairs in both networks. The p-value of
    # `explain` is over a thousand random orders.
    every = [
        np.corrcoef(np.tile(apart, 2), np.r_[rows[0][list(p)], rows[1][list(q)]])[0, 1]
        for p in itertools.permutations(range(3))
        for q in itertools.permutations(range(3))
    ]
    exact = np.mean(np.array(every) >= correlation - 1e-9)
    assert found["p_value"] == pytest.approx(exact, abs=0.05)
