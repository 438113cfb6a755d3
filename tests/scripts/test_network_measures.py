"""Measurements of trained networks for the report, from made-up networks."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

import geometry
from experiments.data import datasets
from experiments.measures import networks, odd_point, report
from experiments.recipes import Recipe, replace
from experiments.training import paired_runs
from experiments.training.networks import graphs
from experiments.training.step import State
from pruning import CRITERIA
from tests.support.other_values import with_one_other_value
from tests.support.recorded import assert_as_recorded, condense
from tests.support.small_runs import random_images


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 8, 8, 1)).astype(np.float32), rng.integers(0, 10, 600)
    images = datasets.Images("noise", "", 10, x, y, x[:40], y[:40])
    recipe = Recipe(model="preact8", epochs=1)
    program = paired_runs.program(recipe, images)
    _, inference = graphs(recipe, images)

    @jax.jit
    def logits(state):
        return nnx.merge(inference, state.params, state.statistics)(jnp.asarray(x[:40]))

    return program.init_state(0), logits


def test_the_mean_over_seeds_has_a_standard_error_from_two_on():
    assert networks.mean([1, 2, 3]) == {
        "mean": 2.0,
        "stderr": pytest.approx(3**-0.5),
        "values": [1, 2, 3],
    }
    assert networks.mean([4])["stderr"] is None


def test_a_report_has_the_rates_of_its_recipe_and_the_range_of_alpha():
    recipe = Recipe(epochs=4, learning_rate=0.1, drops=(0.25, 0.75), drop_factor=5.0)

    def history(accuracy):
        # The last accuracy of a run counts, not the best accuracy 0.9.
        accuracies = np.array([0.1, 0.2, 0.9, accuracy])
        return paired_runs.History(np.arange(4.0), accuracies, np.zeros(0), np.zeros(0))

    alpha = nnx.State({"norm": nnx.State({"alpha": nnx.Param(jnp.array([0.2, 1.5, -0.5, 0.9]))})})
    histories = {"batch_norm": [history(0.5), history(0.7)], "unitized": [history(0.4)] * 2}
    states: Any = {"unitized": [SimpleNamespace(params=alpha)]}
    found = networks.training(states, histories, recipe)
    assert found["learning_rate"] == pytest.approx([0.1, 0.02, 0.02, 0.004], rel=1e-5)
    assert found["drops"] == [2, 4]
    assert found["difference"]["values"] == pytest.approx([-0.1, -0.3])
    assert found["batch_norm"]["accuracy"]["mean"] == pytest.approx(0.6)
    assert found["batch_norm"]["train_loss"] == [[0, 1, 2, 3]] * 2
    range_of_alpha = {"min": -0.5, "max": 1.5, "outside": 0.5}
    assert found["unitized"]["alpha"] == pytest.approx(range_of_alpha)


def test_every_convolution_is_scored(network):
    kernels = networks.conv_kernels(network[0].params)
    shapes = [kernel.shape for kernel in kernels.values()]
    assert sorted(kernels)[:2] == ["blocks.0.conv1", "blocks.0.conv2"]
    assert len(shapes) == 1 + 3 * 2 + 2
    assert {shape[-1] for shape in shapes} == {16, 32, 64}


def test_histograms_are_of_the_first_a_middle_and_the_last_kernel_of_several_pixels():
    """The first, the middle and the last of five kernels are 1 × 1, so they have no histogram."""
    kernels = {f"layer{i}": nnx.Conv(1, 4, (1, 1), rngs=nnx.Rngs(0)) for i in (0, 2, 4)}
    kernels |= {f"layer{i}": nnx.Conv(1, 4, (3, 3), rngs=nnx.Rngs(0)) for i in (1, 3)}
    state: Any = SimpleNamespace(params=nnx.state(nnx.Dict(kernels), nnx.Param))
    names = [histogram["layer"] for histogram in networks.histograms(state)]
    assert names == ["layer1", "layer3", "layer3"]


def test_a_masked_channel_of_a_block_is_absent(network):
    state, logits = network
    keep = ~np.isin(np.arange(32), [3, 17])
    masked = networks.mask_filters(state, {"blocks.1.conv1": keep})
    # A masked channel must have no effect. The reference has zeros in the kernel of the only layer
    # that reads the channel.
    flat = [
        (path, leaf.replace(leaf[...].at[:, :, ~keep].set(0)))
        if path == ("blocks", 1, "conv2", "kernel")
        else (path, leaf)
        for path, leaf in nnx.to_flat_state(state.params)
    ]
    blind = state._replace(params=nnx.from_flat_state(flat))
    outputs, expected = logits(masked), logits(blind)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    assert jnp.abs(outputs - logits(state)).max() > 1e-3


def test_masking_nothing_changes_nothing_and_masking_keeps_the_original(network):
    state, _ = network
    keep = {
        name: np.ones(k.shape[-1], bool) for name, k in networks.conv_kernels(state.params).items()
    }
    for a, b in zip(
        *map(jax.tree.leaves, (networks.mask_filters(state, keep), state)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    before = np.array(networks.conv_kernels(state.params)["stem"])
    without = networks.mask_filters(state, {"stem": np.zeros(16, bool)})
    assert (np.array(networks.conv_kernels(without.params)["stem"]) == 0).all()
    np.testing.assert_array_equal(networks.conv_kernels(state.params)["stem"], before)


@jax.enable_x64(False)
@jax.numpy_dtype_promotion("standard")
def test_all_networks_of_a_report_are_as_recorded(monkeypatch):
    """The report is of two untrained networks of each normalization, with random histories."""
    monkeypatch.setattr(paired_runs, "PROBE", 9)
    rng, names = np.random.default_rng(0), ("batch_norm", "unitized")
    recipe = Recipe(model="preact8", epochs=5, learning_rate=0.2, drops=(0.3, 0.7))
    programs = {
        name: paired_runs.program(replace(recipe, normalization=name), random_images())
        for name in names
    }
    states = {name: [programs[name].init_state(seed) for seed in (1, 2)] for name in names}
    for i, state in enumerate(states["unitized"]):
        for path, leaf in nnx.to_flat_state(state.params):
            if path[-1] == "alpha":
                leaf[...] += jnp.float32(rng.uniform(0.7 * i - 0.1, 0.7 * i + 0.6))
    shapes = (5,), (5,), (6, 4, 3), (5, 3)  # losses, accuracies, moments, distances
    histories = {
        name: [paired_runs.History(*(rng.normal(i, 1, s) for s in shapes)) for i in range(2)]
        for name in names
    }
    found = {
        "training": networks.training(states, histories, recipe),
        "moments": networks.moments(histories),
        "distances": networks.distances(histories),
        "criteria": networks.criteria(states, programs, lambda: None),
        "histograms": networks.histograms(states["unitized"][1]),
    }
    assert_as_recorded("runs/networks", condense(found), rtol=2e-3, atol=1e-5)


def test_every_pair_of_criteria_and_every_masked_network_of_a_report_is_measured(network):
    """The made-up accuracy is the share of the filters of all convolutions that remain."""
    states, done = [network[0]] * 2, []

    def share(state):
        kernels = networks.conv_kernels(state.params).values()
        left = np.concatenate([np.abs(np.array(k)).sum((0, 1, 2)) > 0 for k in kernels])
        return float(left.mean())

    program: Any = SimpleNamespace(probe_accuracy=share)
    found = networks.criteria(
        {"batch_norm": states}, {"batch_norm": program}, lambda: done.append(1)
    )
    assert len(done) == 2
    kernels = networks.conv_kernels(states[0].params)
    assert [layer["name"] for layer in found["layers"]] == list(kernels)
    ours = found["batch_norm"]
    for i, kernel in enumerate(map(np.asarray, kernels.values())):
        l1, l2 = (np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]), k, axis=0) for k in (1, 2))
        rho = scipy.stats.spearmanr(l1, l2)[0]
        assert [run[i] for run in ours["spearman"]["l1-l2"]] == pytest.approx([rho] * 2)
    assert ours["unmasked"]["values"] == [1, 1]
    for masked in ours["masked"].values():
        for ratio, left in masked.items():
            counts = [int(kernel.shape[-1] * float(ratio)) for kernel in kernels.values()]
            expected = 1 - sum(counts) / sum(kernel.shape[-1] for kernel in kernels.values())
            assert left["values"] == pytest.approx([expected] * 2)


def test_criteria_rank_and_mask_the_filters_of_every_network_of_a_report(monkeypatch):
    """A made-up accuracy sums the numbers of the filters that remain, so it names these filters.

    The largest weight stands for the geometric median, which takes a second to compile.
    """
    monkeypatch.setitem(CRITERIA, "fermat", lambda v: jnp.abs(v).max(1))
    rng = np.random.default_rng(0)
    sizes = {"blocks.0.conv1": 10, "blocks.0.conv2": 10}
    numbers = 2.0 ** np.arange(20).reshape(2, 10)

    def state(seed):
        rng = np.random.default_rng(seed)
        kernels = [
            nnx.Dict(kernel=nnx.Param(jnp.asarray(rng.laplace(size=(1, 2, 3, 10)), jnp.float32)))
            for _ in sizes
        ]
        block = nnx.Dict(conv1=kernels[0], conv2=kernels[1])
        params = nnx.state(nnx.Dict(blocks=nnx.List([block])), nnx.Param)
        step, loss = jnp.int32(0), jnp.float32(0)
        return State(params, nnx.State({}), None, step, loss)

    def accuracy_of(factor):
        def accuracy(state):
            kernels = networks.conv_kernels(state.params)
            assert list(kernels) == list(sizes)
            left = np.array([np.abs(np.asarray(k)).sum((0, 1, 2)) > 0 for k in kernels.values()])
            return float(factor * (numbers * left).sum())

        return SimpleNamespace(probe_accuracy=accuracy)

    states = {"batch_norm": [state(1), state(2), state(3)], "unitized": [state(4), state(5)]}
    programs: Any = {"batch_norm": accuracy_of(1.0), "unitized": accuracy_of(0.5)}
    done: list[int] = []
    found = networks.criteria(states, programs, lambda: done.append(1))
    assert len(done) == 5
    assert found["layers"] == [{"name": name, "filters": 10, "dims": 6} for name in sizes]
    assert found["pairs"] == ["-".join(pair) for pair in itertools.combinations(CRITERIA, 2)]
    for name, factor in (("batch_norm", 1.0), ("unitized", 0.5)):
        ours = found[name]
        whole = factor * numbers.sum()
        assert ours["unmasked"]["values"] == [whole] * len(states[name])
        for i, one in enumerate(states[name]):
            kernels = [np.array(k, float) for k in networks.conv_kernels(one.params).values()]
            rows = [k.reshape(6, 10).T for k in kernels]
            scores = {
                "l1": [np.abs(v).sum(1) for v in rows],
                "l2": [np.linalg.norm(v, axis=1) for v in rows],
                "fermat": [np.abs(v).max(1) for v in rows],
                "gm": [np.linalg.norm(v[:, None] - v, axis=2).sum(1) for v in rows],
            }
            for pair in found["pairs"]:
                first, second = pair.split("-")
                both = list(zip(scores[first], scores[second], strict=True))
                correlations: Any = [scipy.stats.spearmanr(*given)[0] for given in both]
                np.testing.assert_allclose(ours["spearman"][pair][i], correlations, rtol=1e-5)
                lowest = [[set(np.argsort(s)[:5]) for s in given] for given in both]
                shares = [len(a & b) / 5 for a, b in lowest]
                np.testing.assert_allclose(ours["overlap"][pair][i], shares, rtol=1e-6)
            for criterion, of_layers in scores.items():
                for ratio, removed in (("0.1", 1), ("0.3", 3), ("0.5", 5)):
                    masked = ours["masked"][criterion][ratio]["values"]
                    lost = [
                        numbers[j, np.argsort(s)[:removed]].sum() for j, s in enumerate(of_layers)
                    ]
                    assert masked[i] == whole - factor * sum(lost)
    # The expected ρ of l1 and l2 for filters of six weights, by Monte Carlo
    v = rng.normal(size=(4000, 10, 6))
    ranks = [norms.argsort(1).argsort(1) for norms in (np.abs(v).sum(2), (v**2).sum(2))]
    rho = 1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum(1) / (10 * 99)
    five_errors = 5 * rho.std() / len(rho) ** 0.5
    assert five_errors < 0.02
    assert found["expected_spearman"]["l1-l2"] == pytest.approx([rho.mean()] * 2, abs=0.02)
    assert found["overlap_ratio"] == 0.5


def test_distances_of_a_run_are_means_over_channels():
    rng = np.random.default_rng(0)
    distances = rng.uniform(1, 2, (3, 4, 6)).astype(np.float32)
    runs = [paired_runs.History(np.zeros(4), np.zeros(4), np.zeros(0), d) for d in distances]
    found = networks.distances({"batch_norm": runs[:1], "unitized": runs[1:]})
    expected = [[epoch.sum(dtype=float) / 6 for epoch in run] for run in distances]
    assert found["batch_norm"] == [pytest.approx(expected[0], rel=1e-12)]
    assert found["unitized"] == [pytest.approx(run, rel=1e-12) for run in expected[1:]]


def test_the_plane_of_the_odd_point_is_that_of_the_largest_variance():
    """The points have spreads 5, 2 and ½ along three axes, about a center far from the origin."""
    rng = np.random.default_rng(0)
    axes, _ = np.linalg.qr(rng.normal(size=(7, 7)))
    spread = rng.normal(size=(40, 3))
    spread, _ = np.linalg.qr(spread - spread.mean(0))
    scaled = spread * (5, 2, 0.5)
    found = odd_point._principal_plane(scaled @ axes[:3] + 9)
    np.testing.assert_allclose(np.abs(found), np.abs(scaled[:, :2]), atol=1e-9)


def test_odd_points_are_as_recorded(monkeypatch):
    for name, size in {"POINTS": 9, "WIDTH": 12, "DEPTH": 6, "TREE_POINTS": 5}.items():
        monkeypatch.setattr(odd_point, name, size)
    found = odd_point.odd_point(3)
    found["network"]["projection"] = np.abs(found["network"]["projection"])
    assert_as_recorded("runs/odd_point", condense(found), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("norm_ratio", "angle", "spread", "is_odd"),
    [
        (3.5, 80.1, 44.9, True),
        (3.49, 80.1, 44.9, False),
        (3.5, 79.9, 44.9, False),
        (3.5, 80.1, 45.1, False),
    ],
)
def test_a_point_is_odd_at_half_its_limit_at_a_right_angle_to_a_cluster(
    norm_ratio, angle, spread, is_odd, monkeypatch, key
):
    """For n = 8 samples, the ratio of norms has the limit n − 1 = 7; half of it is 3.5."""
    for name, size in (("POINTS", 8), ("WIDTH", 6), ("DEPTH", 2)):
        monkeypatch.setattr(odd_point, name, size)

    def stub(gram):
        angles = np.radians((angle, spread))
        return geometry.OddPoint(jnp.int32(3), *map(jnp.asarray, (norm_ratio, 1.0, *angles)))

    monkeypatch.setattr(odd_point.geometry, "odd_point", stub)
    found = odd_point._network(key, jax.random.normal(key, (8, 5)))
    assert (found["is_odd"], found["index"]) == (is_odd, 3)
    assert len(found["norm_ratio"]) == 2


def test_moments_are_quartiles_over_channels_and_seeds():
    values = np.arange(2 * 5 * 4 * 3, dtype=float).reshape(2, 5, 4, 3)
    runs = [paired_runs.History(np.zeros(4), np.zeros(4), v, np.zeros((4, 3))) for v in values]
    moments = networks.moments({"batch_norm": runs, "unitized": runs})
    in_epoch = [*values[0, 2, 1], *values[1, 2, 1]]
    assert moments["unitized"]["var"]["median"][2] == np.median(in_epoch)
    assert moments["unitized"]["var"]["low"][2] == np.quantile(in_epoch, 0.25)
    # Every moment changes by 12 from each epoch to the next, so also after the first quarter of
    # epochs.
    assert moments["change"]["kurtosis"]["batch_norm"]["values"] == [12, 12]
    assert moments["change"]["kurtosis"]["difference"]["mean"] == 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_change_of_a_moment_counts_the_last_epoch_of_a_short_training(epochs):
    """The moment changes by 1, then by 4; after two epochs, only the second change counts."""
    values = np.array([0.0, 1.0, 5.0])[: epochs + 1, None, None] * np.ones((epochs + 1, 4, 3))
    runs = [paired_runs.History(np.zeros(epochs), np.zeros(epochs), values, np.zeros((epochs, 3)))]
    change = networks.moments({"batch_norm": runs, "unitized": runs})["change"]
    assert change["kurtosis"]["unitized"]["values"] == [{1: 1, 2: 4}[epochs]]
    down = [run._replace(moments=-values) for run in runs]
    fallen = networks.moments({"batch_norm": runs, "unitized": down})["change"]
    assert fallen == change  # the sign of a change does not count


def test_networks_of_a_report_are_trained_one_after_the_other_and_named(monkeypatch, tmp_path):
    said, trained, reached = [], [], []

    def program(recipe, images):
        return SimpleNamespace(name=recipe.normalization, trainer=SimpleNamespace(steps=10))

    def train(program, seed, out, view):
        trained.append((program.name, seed, out.name, view.log))
        for epoch in (1, 4):
            view.update(10 * (4 * seed + epoch), "", "")
        return f"state {program.name} {seed}", "history"

    monkeypatch.setattr(paired_runs, "program", program)
    monkeypatch.setattr(paired_runs, "train", train)
    stages: Any = SimpleNamespace(describe=said.append, reach=reached.append, log=print)
    images: Any = None
    programs, states, _ = report.train(Recipe(epochs=4), 2, images, tmp_path, stages)
    assert list(programs) == ["batch_norm", "unitized"]
    assert states["unitized"] == ["state unitized 0", "state unitized 1"]
    assert trained == [
        (name, seed, name, print) for name in ("batch_norm", "unitized") for seed in (0, 1)
    ]
    assert said == [
        f"training {name}, seed {seed} of 2"
        for name in ("batch norm", "unitized")
        for seed in (1, 2)
    ]
    assert reached == [done + epoch for done in (0, 4, 8, 12) for epoch in (1, 4)]


def test_the_bar_of_a_report_is_full_when_all_is_done(monkeypatch, tmp_path):
    """Training is faked, so the other stages must advance the bar by the rest of `units`."""
    moved, seeds = [], 3

    class Stages:
        seconds: ClassVar = {}
        stage = staticmethod(nullcontext)
        advance = staticmethod(moved.append)

    def criteria(states, programs, on_network):
        for _ in range(2 * seeds):
            on_network()

    for module, names in {
        networks: ("training", "moments", "distances", "histograms"),
        report: ("same_data", "run_folder"),
        report.claims: ("quick_results",),
        report.odd_point: ("odd_point",),
        report.provenance: ("describe",),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, **__: {})
    monkeypatch.setattr(networks, "criteria", criteria)
    monkeypatch.setattr(report, "train", lambda *_: ({}, {"batch_norm": [None]}, {}))
    stages: Any = Stages
    found = report.measure("reproduce.py", Recipe(epochs=4), seeds, None, tmp_path, stages)
    assert sum(moved) == report.units(4, seeds) - 2 * seeds * 4
    assert found["settings"]["seeds"] == seeds


def test_every_field_of_a_recipe_decides_the_folder_of_a_report_s_checkpoints(tmp_path):
    recipes = [Recipe(), *(other for _, other in with_one_other_value(Recipe()))]
    folders = [report.run_folder(recipe, tmp_path) for recipe in recipes]
    assert len(set(folders)) == len(folders)


def test_a_channel_without_a_moment_is_left_out_of_the_quartiles():
    """Quartiles are taken over seeds and channels; one of the six values of a moment is NaN."""
    runs = 3 + np.arange(24.0).reshape(2, 1, 4, 3) ** 2
    runs[1, 0, :, 1] = np.nan
    found = networks._quartiles(runs)
    for i, moment in enumerate(networks.MOMENTS):
        numbers = np.sort(np.delete(np.concatenate([runs[0, 0, i], runs[1, 0, i]]), 4))
        expected = {"low": numbers[1], "median": numbers[2], "high": numbers[3]}
        assert found[moment] == {part: [number] for part, number in expected.items()}
