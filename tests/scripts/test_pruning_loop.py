"""The loop that prunes, recalibrates and fine-tunes, with the accuracies of each stage."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

import pruning
from experiments.measures import networks, pruned
from experiments.measures.plan import Plan
from experiments.recipes import Recipe
from experiments.training.step import State
from tests.support.small_runs import random_images


def network_of(seed=0, done=None):
    """A network of two dense layers, with a bias m as a mark of finished stages.

    Recalibration changes m to 2 m + 1, and fine-tuning changes m to m + 10. The accuracy is m plus
    a thousandth for every hidden channel.
    """
    rng = np.random.default_rng(seed)
    done = [] if done is None else done

    def marked(tree, name, change):
        done.append(name)
        return tree | {"b": tree["b"] | {"bias": np.asarray(change(np.asarray(tree["b"]["bias"])))}}

    return SimpleNamespace(
        seed=seed,
        images=random_images()._replace(x_test=np.ones((9, 4)), x_train=rng.normal(size=(40, 4))),
        tree={
            "a": {"kernel": rng.normal(size=(4, 8))},
            "b": {"kernel": rng.normal(size=(8, 2)), "bias": np.zeros(2)},
        },
        apply=lambda p, x: (
            jax.nn.relu(x @ p["a"]["kernel"]) @ p["b"]["kernel"] + p["b"]["bias"][None]
        ),
        accuracy=lambda tree: float(
            round(tree["b"]["bias"][0].item() + tree["a"]["kernel"].shape[1] / 1000, 6)
        ),
        recalibrated=lambda tree: marked(tree, "recalibrated", lambda b: 2 * b + 1),
        fine_tuned=lambda tree: marked(tree, "fine-tuned", lambda b: b + 10),
    )


def test_accuracies_are_of_the_network_of_their_stage_and_step(tmp_path):
    """Pruning keeps the bias m, recalibration makes it 2 m + 1, and fine-tuning makes it m + 10.

    From m = 0, the bias m becomes 0, 1, 11 by the stages of step 1, and 11, 23, 33 by step 2.
    """
    network: Any = network_of()
    plan = Plan(ratio=0.5, steps=2, curve="linear")
    found = pruned.prune_by(network, "l2", plan, tmp_path / "l2-0")
    assert found == [
        {"pruned": 0.006, "recalibrated": 1.006, "fine-tuned": 11.006},
        {"pruned": 11.004, "recalibrated": 23.004, "fine-tuned": 33.004},
    ]
    done: list[str] = []
    again: Any = network_of(done=done)
    assert pruned.prune_by(again, "l2", plan, tmp_path / "l2-0") == found
    assert not done  # nothing is done again, because the results are in the folder


def test_an_interrupted_step_is_made_again_and_earlier_steps_are_not(tmp_path):
    plan, done = Plan(ratio=0.75, steps=3, curve="linear"), []
    whole: Any = network_of()
    expected = pruned.prune_by(whole, "l1", plan, tmp_path / "whole")
    broken: Any = network_of()
    fine_tuned = broken.fine_tuned

    def interrupt(tree):
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt
        return fine_tuned(tree)

    broken.fine_tuned = interrupt
    with pytest.raises(KeyboardInterrupt):
        pruned.prune_by(broken, "l1", plan, tmp_path / "again")
    left: list[str] = []
    again: Any = network_of(done=left)
    assert pruned.prune_by(again, "l1", plan, tmp_path / "again") == expected
    assert left == ["recalibrated", "fine-tuned"] * 2


@pytest.mark.parametrize("criterion", pruning.CRITERIA)
def test_the_channels_with_the_lowest_scores_are_removed(criterion, tmp_path):
    network: Any = network_of(3)
    pruned.prune_by(network, criterion, Plan(ratio=0.5), tmp_path / "x")
    small = pruning.load_pruned(tmp_path / "x", like=network.tree).params
    kernel = network.tree["a"]["kernel"].T  # rows are filters of four weights
    if criterion in ("l1", "l2"):
        scores = np.linalg.norm(kernel, int(criterion[1]), axis=1)
    elif criterion == "gm":  # the sum of the distances to all filters
        scores = np.linalg.norm(kernel[:, None] - kernel[None], axis=2).sum(1)
    # For Fermat, the score is the distance to the geometric median, which Weiszfeld's iteration
    # finds.
    else:
        point = kernel.mean(0)
        for _ in range(2000):
            weights = 1 / np.linalg.norm(kernel - point, axis=1)
            point = weights @ kernel / weights.sum()
        scores = np.linalg.norm(kernel - point, axis=1)
    kept = np.sort(np.argsort(scores)[4:])
    np.testing.assert_array_equal(small["a"]["kernel"], network.tree["a"]["kernel"][:, kept])
    np.testing.assert_array_equal(small["b"]["kernel"], network.tree["b"]["kernel"][kept])


def three_layers():
    """A network of three layers with chosen norms of filters.

    Seven filters of `a` have norms from 1 to 1.06, and the last filter has norm 9. The filters of
    `b` have norms from 1 to 1.07.
    """
    rng = np.random.default_rng(1)
    kernels = [rng.normal(size=shape) for shape in ((4, 8), (8, 8), (8, 2))]
    norms = (np.r_[1 + np.arange(7) / 100, 9], 1 + np.arange(8) / 100, np.ones(2))
    tree = {
        name: {"kernel": norm * kernel / np.linalg.norm(kernel, axis=0)}
        for name, kernel, norm in zip("abc", kernels, norms, strict=True)
    }

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"]["kernel"])
        return jax.nn.relu(h @ p["b"]["kernel"]) @ p["c"]["kernel"]

    network: Any = network_of()
    network.tree, network.apply = tree, apply
    network.accuracy = lambda tree: 0.0
    network.recalibrated = network.fine_tuned = lambda tree: tree
    return network


@pytest.mark.parametrize(
    ("plan", "widths"),
    [
        ({}, (4, 4)),
        ({"exclude": ("b",)}, (4, 8)),
        ({"exclude": ("a",)}, (8, 4)),
        # Each score is divided by the mean score of its layer, which gives approximately 1/2 for
        # seven filters of `a`.
        ({"scope": "globally"}, (1, 7)),
        ({"scope": "globally", "min_channels": 3}, (3, 7)),
        ({"scope": "globally", "round_to": 2}, (2, 8)),
        ({"round_to": 3}, (6, 6)),
        ({"ratio": 0.8, "min_channels": 5}, (5, 5)),
    ],
)
def test_every_option_of_a_plan_decides_the_widths(plan, widths, tmp_path):
    network = three_layers()
    pruned.prune_by(network, "l2", Plan(**{"ratio": 0.5, **plan}), tmp_path / "x")
    found = pruning.load_pruned(tmp_path / "x", like=network.tree).params
    assert (found["a"]["kernel"].shape[1], found["b"]["kernel"].shape[1]) == widths


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ("linear", [0.2, 0.4, 0.6, 0.8]),
        ("cubic", [0.8 * (1 - (1 - t / 4) ** 3) for t in (1, 2, 3, 4)]),
        ("geometric", [1 - 0.2 ** (t / 4) for t in (1, 2, 3, 4)]),
    ],
)
def test_the_ratios_of_steps_follow_the_curve(curve, expected):
    found = pruned.ratios(Plan(ratio=0.8, steps=4, curve=curve))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert pruned.ratios(Plan(budget=9.0)) == ()


def test_the_table_has_the_accuracies_after_the_last_step():
    def rows(*values):
        return [dict(zip(pruned.STAGES, row, strict=True)) for row in values]

    criteria = list(pruning.CRITERIA)
    steps: Any = [
        {c: rows((0.9, 0.9, 0.9), (0.1 * i, 0.2, 0.5 + 0.1 * i)) for i, c in enumerate(criteria)},
        {c: rows((0.9, 0.9, 0.9), (0.2 * i, 0.4, 0.5 - 0.1 * i)) for i, c in enumerate(criteria)},
    ]
    found = pruned.accuracies([0.8, 0.9], steps)
    assert found["trained"]["mean"] == pytest.approx(0.85)
    for i, criterion in enumerate(criteria):
        by_stage = found["by criterion"][criterion]
        assert by_stage["pruned"]["values"] == pytest.approx([0.1 * i, 0.2 * i])
        assert by_stage["recalibrated"]["values"] == [0.2, 0.4]
        assert by_stage["fine-tuned"]["mean"] == pytest.approx(0.5)
    last = len(criteria) - 1
    assert found["spread"]["pruned"]["values"] == pytest.approx([0.1 * last, 0.2 * last])
    assert found["spread"]["fine-tuned"]["values"] == pytest.approx([0.1 * last] * 2)
    # if both networks rank the criteria equally, Friedman's χ² is largest, n (k − 1)
    n, k = 2, len(criteria)
    assert found["friedman"]["pruned"]["statistic"] == pytest.approx(n * (k - 1))
    assert found["friedman"]["fine-tuned"]["statistic"] == pytest.approx(0, abs=1e-9)
    assert found["friedman"]["recalibrated"]["p"] is None
    assert found["steps"] is steps


def test_the_bar_expects_training_and_every_fine_tuning():
    plan, count = Plan(steps=3, fine_tune=7), len(pruning.CRITERIA)
    assert pruned.units(Recipe(epochs=11), 5, plan) == 5 * (11 + count * 21)


@pytest.mark.parametrize(
    ("kind", "function"),
    [("least_squares", pruning.channels.least_squares), ("scale", pruning.channels.rescale)],
)
def test_a_repair_sees_the_first_training_images_in_batches_of_one_size(kind, function):
    x = np.arange(300.0)[:, None]
    images = random_images()._replace(x_train=x, x_test=-1 - x)
    for count, sizes in ((1000, [125, 125]), (260, [125, 125]), (60, [30, 30]), (3, [1, 1, 1])):
        found: Any = pruned.repair(Plan(repair=kind, repair_images=count), images)
        batches = [batch[:, 0].tolist() for (batch,) in found.keywords["batches"]]
        assert found.func is function
        assert [len(batch) for batch in batches] == sizes
        assert np.concatenate(batches).tolist() == list(range(sum(sizes)))
    assert pruned.repair(Plan(), images) is None
    merged: Any = pruned.repair(Plan(repair="merge"), images)
    assert merged.func is pruning.channels.merge_channels
    assert [part.tolist() for part in merged.keywords["inputs"]] == [[[0.0]]]


def made_state(seed):
    """The state of two convolutions with ten and fourteen random filters, and the kernels alone."""
    rng = np.random.default_rng(seed)
    kernels = {"a": rng.normal(size=(3, 3, 2, 10)), "b": rng.standard_cauchy((3, 3, 1, 14))}
    params = nnx.State(
        {
            name: nnx.State({"kernel": nnx.Param(jnp.asarray(w, jnp.float32))})
            for name, w in kernels.items()
        }
    )
    return State(params, nnx.State({}), None, jnp.int32(0), jnp.float32(0)), kernels


def test_networks_of_both_normalizations_are_masked_and_ranked_on_their_own():
    """The accuracy is faked as the sum of squared weights, times a factor for the normalization."""
    made = {
        "batch_norm": [made_state(0), made_state(1)],
        "unitized": [made_state(2), made_state(3)],
    }
    factors = {"batch_norm": 1.0, "unitized": 1e-3}

    def squares(state):
        leaves = jax.tree.leaves(state.params)
        return sum(float(np.square(np.asarray(leaf, float)).sum()) for leaf in leaves)

    programs: Any = {
        name: SimpleNamespace(probe_accuracy=lambda state, f=factor: f * squares(state))
        for name, factor in factors.items()
    }
    states = {name: [state for state, _ in runs] for name, runs in made.items()}
    found = networks.criteria(states, programs, on_network=lambda: None)
    assert [layer["filters"] for layer in found["layers"]] == [10, 14]
    assert [layer["dims"] for layer in found["layers"]] == [18, 9]
    for name, runs in made.items():
        own, factor = found[name], factors[name]
        for seed, (_, kernels) in enumerate(runs):
            flat = [w.reshape(-1, w.shape[-1]) for w in kernels.values()]
            l1, l2 = ([np.linalg.norm(w, k, axis=0) for w in flat] for k in (1, 2))
            rho: Any = [scipy.stats.spearmanr(a, b)[0] for a, b in zip(l1, l2, strict=True)]
            np.testing.assert_allclose(own["spearman"]["l1-l2"][seed], rho, rtol=1e-5)
            halves = [[set(np.argsort(s)[: len(s) // 2]) for s in scores] for scores in (l1, l2)]
            shared = [len(a & b) / len(a) for a, b in zip(*halves, strict=True)]
            np.testing.assert_allclose(own["overlap"]["l1-l2"][seed], shared, rtol=1e-6)
            whole = factor * sum(np.square(w).sum() for w in flat)
            assert own["unmasked"]["values"][seed] == pytest.approx(whole, rel=1e-4)
            for criterion, scores in (("l1", l1), ("l2", l2)):
                for ratio in (0.1, 0.3, 0.5):
                    left = factor * sum(
                        np.square(w[:, np.argsort(s)[int(ratio * len(s) + 1e-9) :]]).sum()
                        for w, s in zip(flat, scores, strict=True)
                    )
                    value = own["masked"][criterion][str(ratio)]["values"][seed]
                    assert value == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("fold", [True, False])
def test_constants_are_folded_only_if_the_plan_says_so(fold, tmp_path):
    """The removed channels have the output 1, which `fold` adds to the bias of the next layer."""
    network: Any = network_of()
    network.apply = lambda p, x: (
        jax.nn.relu(x @ p["a"]["kernel"] + p["a"]["bias"][None]) @ p["b"]["kernel"]
        + p["b"]["bias"][None]
    )
    kernel = np.where(np.arange(8) < 4, 0.0, 3.0) * network.tree["a"]["kernel"]
    network.tree["a"] = {"kernel": kernel, "bias": np.ones(8)}
    network.accuracy = lambda tree: float(tree["b"]["bias"][0])
    (row,) = pruned.prune_by(network, "l2", Plan(ratio=0.5, fold=fold), tmp_path / "x")
    lost = network.tree["b"]["kernel"][:4, 0].sum()
    assert row["pruned"] == pytest.approx(lost if fold else 0, rel=1e-6)


def test_the_size_of_a_checkpoint_is_that_of_all_its_files(tmp_path):
    network: Any = network_of()
    folder = tmp_path / "x"
    pruned.prune_by(network, "l2", Plan(ratio=0.5), folder)
    found = pruned.costs(network, folder, (1,))
    sizes = [
        Path(place, name).stat().st_size for place, _, names in os.walk(folder) for name in names
    ]
    assert found["checkpoint"] == sum(sizes)
    assert any(path.is_dir() for path in folder.iterdir())
