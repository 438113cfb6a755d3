"""Tests of selection, of removal in steps, and of checkpoints."""

import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import pruning
from jaxnorm import models
from jaxnorm.nnx import recalibrate
from pruning import prune
from pruning.channels import (
    channel_scores,
    cost_at,
    load_pruned,
    remove_channels,
    resized,
    save_pruned,
    select_globally,
    select_layerwise,
    select_within,
)
from pruning.schedules import iterative
from tests.support import prunable


def sizes(tree):
    return [np.shape(leaf) for leaf in jax.tree.leaves(tree)]


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("criterion", pruning.CRITERIA)
def test_a_layer_is_scored_by_its_filters(criterion):
    apply, params, x = prunable.model("vgg")
    groups = pruning.coupled_channels(apply, params, x)
    score = pruning.CRITERIA[criterion]
    convolution, _, dense = channel_scores(params, groups, criterion=score)
    filters = np.moveaxis(params["0"]["w"], -1, 0).reshape(6, -1)
    np.testing.assert_allclose(convolution, score(jnp.asarray(filters)), rtol=1e-12)
    np.testing.assert_allclose(dense, score(jnp.asarray(params["3"]["w1"].T)), rtol=1e-12)


@pytest.mark.parametrize("reduce", [np.sum, np.mean, np.max])
def test_all_makers_of_a_channel_are_scored_and_reduced(reduce):
    apply, params, x = prunable.model("resnet, identity")
    groups = pruning.coupled_channels(apply, params, x)
    jax_reduce = getattr(jnp, reduce.__name__)
    stream, *_ = channel_scores(params, groups, criterion=pruning.l1_norm, reduce=jax_reduce)
    makers = [params["0"]["w"], params["1"]["body"]["1"]["w"], params["2"]["body"]["1"]["w"]]
    expected = reduce([np.abs(w).sum((0, 1, 2)) for w in makers], axis=0)
    np.testing.assert_allclose(stream, expected, rtol=1e-12)


def test_filters_of_one_channel_in_several_groups_count_together():
    apply, params, x = prunable.model("resnext")
    groups = pruning.coupled_channels(apply, params, x)
    outer = channel_scores(params, groups, reduce=jnp.sum)[2]
    norms = np.sqrt(np.square(params["1"]["1"]["w"]).sum((0, 1, 2)))
    np.testing.assert_allclose(outer, norms[:2] + norms[2:], rtol=1e-12)


def scores(*rows):
    return [jnp.array(row, "float64") for row in rows]


def test_layers_lose_their_ratio_rounded_down():
    masks = select_layerwise(scores(range(10), [3, 1, 2], [1]), ratio=0.4)
    assert [mask.tolist() for mask in masks] == [
        [False] * 4 + [True] * 6,
        [True, False, True],
        [True],
    ]
    assert (
        select_layerwise(scores(range(100)), ratio=0.29)[0].sum() == 71
    )  # in floating point, 0.29 · 100 < 29


def test_min_channels_and_round_to_keep_more():
    assert select_layerwise(scores(range(16)), ratio=0.9, min_channels=3)[0].sum() == 3
    assert select_layerwise(scores(range(16)), ratio=0.6, round_to=4)[0].sum() == 8
    assert select_layerwise(scores(range(6)), ratio=0.5, round_to=8)[0].all()
    assert select_layerwise(scores(range(16)), ratio=0.9, min_channels=5, round_to=4)[0].sum() == 8
    assert select_layerwise(scores(range(2)), ratio=0.5, min_channels=8)[0].all()
    assert np.flatnonzero(select_layerwise(scores(range(16)), ratio=0.6, round_to=4)[0]).min() == 8


def test_the_lowest_of_all_layers_are_removed_but_for_min_channels():
    select = partial(select_globally, normalize=False)
    a, b = select(scores([1, 2, 9], [3, 4, 5, 6]), ratio=0.6)
    assert (a.tolist(), b.tolist()) == ([False, False, True], [False, False, True, True])
    a, b = select(scores([1, 2], [3, 4, 5, 6]), ratio=0.5)
    assert (a.tolist(), b.tolist()) == ([False, True], [False, True, True, True])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "select",
    [
        partial(select_globally, ratio=0.4),
        partial(select_within, budget=20, cost=lambda widths: sum(widths)),
    ],
)
def test_the_unit_of_a_layer_s_scores_does_not_matter_unless_asked_for(select, seed):
    """If `normalize` is False, the unit of a group's scores matters. Scores of −∞ never matter."""
    rng = np.random.default_rng(seed)
    some = [rng.exponential(size=n) for n in (7, 12, 16)]
    other = [10.0 ** rng.integers(-3, 4) * vector for vector in some]
    for normalize, same_masks in ((True, True), (False, False)):
        a, b = ([m.tolist() for m in select(map_of(s), normalize=normalize)] for s in (some, other))
        assert (a == b) is same_masks
    gone = [np.append(vector, -np.inf) for vector in some]
    if "budget" in select.keywords:
        found = select(map_of(gone))
        assert [m.tolist() for m in found] == [[*m.tolist(), False] for m in select(map_of(some))]


def map_of(vectors):
    return [jnp.asarray(vector) for vector in vectors]


def blocks(params, x):
    """Three residual blocks with two groups each; the stream is an input, so it is not pruned."""
    for block in params["blocks"]:
        h = jax.nn.relu(x @ block["in"]) * (x @ block["gate"])
        x = x + h @ block["out"] + jnp.tanh(x @ block["up"]) @ block["down"]
    return x @ params["head"]


def network_of_blocks():
    rng = np.random.default_rng(2)
    shapes = {"in": (4, 12), "gate": (4, 12), "out": (12, 4), "up": (4, 16), "down": (16, 4)}
    repeated = [
        {name: rng.normal(size=shape) * 2.0**i for name, shape in shapes.items()} for i in range(3)
    ]
    return blocks, {"blocks": repeated, "head": rng.normal(size=(4, 2))}, rng.normal(size=(3, 4))


ASKED: Any = {
    "ratio": {"ratios": [0.5]},
    "globally": {"ratios": [0.3, 0.5], "select": select_globally},
    "budget": {"budget": [0.8, 0.5]},
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("round_to", [1, 4, {"in": 3, "up": 8}])
def test_layers_that_repeat_keep_as_many_channels_and_multiples_if_asked(asked, round_to):
    apply, params, x = network_of_blocks()
    options: Any = {"round_to": round_to, "equal_repeats": True, "fold": False}
    pruned = prune(apply, params, x, **ASKED[asked], **options)
    small = pruned.params["blocks"]
    assert len({tuple(sizes(block)) for block in small}) == 1
    for name in ("in", "up"):
        width = small[0][name].shape[1]
        step = round_to if isinstance(round_to, int) else round_to[name]
        assert width < params["blocks"][0][name].shape[1]
        assert width % step == 0
    at = cost_at(apply, params, pruned.groups, x)
    counts = [int(mask.sum()) for mask in pruned.keep]
    if "budget" in ASKED[asked]:
        whole = at([group.size for group in pruned.groups]).macs
        assert at(counts).macs <= 0.5 * whole
    if asked == "ratio":  # the kept channels have the largest scores
        for own, mask in zip(channel_scores(params, pruned.groups), pruned.keep, strict=True):
            assert np.asarray(own)[mask].min() >= np.asarray(own)[~mask].max()


def test_layers_that_repeat_keep_a_multiple_of_all_that_is_asked_of_them():
    apply, params, x = network_of_blocks()
    asked = {"0/in": 2, "1/in": 3}
    pruned = prune(apply, params, x, ratios=[0.35], round_to=asked, equal_repeats=True, fold=False)
    assert {block["in"].shape[1] % 6 for block in pruned.params["blocks"]} == {0}


def test_without_asking_layers_that_repeat_differ():
    apply, params, x = network_of_blocks()
    select = partial(select_globally, normalize=False)
    small = prune(apply, params, x, ratios=[0.5], select=select).params["blocks"]
    assert len({block["in"].shape for block in small}) > 1


def test_schedules_rise_to_the_ratio():
    in_one_step = lambda target, t: target if t >= 0.5 else 0.0  # noqa: E731
    assert iterative(0.5, steps=4, curve=in_one_step) == (0, 0.5, 0.5, 0.5)
    assert iterative(0.5, steps=1) == (0.5,)
    np.testing.assert_allclose(iterative(0.5, steps=2, curve=pruning.schedules.linear), (0.25, 0.5))
    np.testing.assert_allclose(
        iterative(0.5, steps=2, curve=pruning.schedules.cubic), (0.4375, 0.5)
    )
    left = 1 - np.array([0, *iterative(0.5, steps=4)])
    np.testing.assert_allclose(left[1:] / left[:-1], 0.5**0.25)  # each step keeps the same share
    for curve in (pruning.schedules.linear, pruning.schedules.cubic, pruning.schedules.geometric):
        assert iterative(0.37, steps=5, curve=curve)[-1] == 0.37
        assert (curve(0, 1), curve(1, 0), curve(1, 1)) == (0, 0, 1)
        for target, t in ((1.01, 0.5), (-0.01, 0.5), (0.5, 1.01), (0.5, -0.01), (0.5, math.nan)):
            said = f"target and t must lie in [0, 1]; got target {target} and t {t}"
            with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
                curve(target, t)


def test_one_step_of_many_is_one_step_and_removed_is_what_was_scored_lowest():
    apply, params, x = prunable.model("mlp")
    once = prune(apply, params, x, ratios=[0.5], fold=False)
    again = prune(apply, params, x, ratios=iterative(0.5, steps=1), fold=False)
    same(once.params, again.params)
    indices = np.sort(np.argsort(np.linalg.norm(params["0"]["w1"], axis=0))[3:])
    np.testing.assert_array_equal(once.params["0"]["w1"], params["0"]["w1"][:, indices])
    assert once.kept_indices()["0/w1"] == {1: indices.tolist()}
    assert once.kept_indices()["0/w2"] == {0: indices.tolist()}


@pytest.mark.parametrize("criterion", [pruning.l1_norm, pruning.l2_norm])
def test_the_norms_of_one_layer_select_alike_in_one_step_and_in_many(criterion):
    apply, params, x = prunable.network(2, (partial(prunable.flat_head, hidden=24),))
    options: Any = {"score": partial(channel_scores, criterion=criterion), "fold": False}
    once = prune(apply, params, x, ratios=[0.5], **options)
    steps = prune(apply, params, x, ratios=iterative(0.5, steps=2), **options)
    same(once.params, steps.params)


def test_widths_after_each_step_follow_the_schedule_and_callbacks_see_them():
    apply, params, x = prunable.model("mlp")
    seen = []

    def recalibrated(tree):
        seen.append(("recalibrate", tree["0"]["w2"].shape[0]))
        return tree

    def tuned(tree, step):
        seen.append((step, tree["0"]["w2"].shape[0]))
        return jax.tree.map(lambda p: 2 * p, tree)

    ratios = iterative(0.75, steps=2)
    pruned = prune(apply, params, x, ratios=ratios, recalibrate=recalibrated, fine_tune=tuned)
    assert seen == [("recalibrate", 3), (0, 3), ("recalibrate", 2), (1, 2)]
    indices = pruned.kept_indices()["0/w2"][0]
    found = np.asarray(pruned.params["0"]["w2"])
    np.testing.assert_allclose(found, 4 * params["0"]["w2"][indices], rtol=1e-12)


def test_constants_are_folded_unless_switched_off():
    apply, params, x = prunable.model("mlp")
    folded, dropped = (prune(apply, params, x, ratios=(0.5,), fold=fold) for fold in (True, False))
    removed = np.setdiff1d(np.arange(6), folded.kept_indices()["0/w1"][1])
    constant = np.maximum(params["0"]["b1"][removed], 0) @ params["0"]["w2"][removed]
    np.testing.assert_allclose(folded.params["0"]["b2"], params["0"]["b2"] + constant, atol=1e-12)
    np.testing.assert_array_equal(dropped.params["0"]["b2"], params["0"]["b2"])


def test_excluded_layers_keep_their_filters():
    apply, params, x = prunable.model("vgg")
    pruned = prune(apply, params, x, ratios=(0.5,), exclude=["2", "3/w1"])
    assert pruned.params["0"]["w"].shape[-1] == 3
    assert pruned.params["2"]["w"].shape == (3, 3, 3, 6)
    assert pruned.params["3"]["w1"].shape == (24, 6)


def test_a_layer_is_excluded_by_its_whole_name():
    def apply(params, x):
        return jax.nn.relu(jax.nn.relu(x @ params["1"]) @ params["10"]) @ params["2"]

    params = {"1": np.ones((3, 4)), "10": np.ones((4, 6)), "2": np.ones((6, 2))}
    small = prune(apply, params, np.ones((1, 3)), ratios=(0.5,), exclude=["1"]).params
    assert {name: w.shape for name, w in small.items()} == {"1": (3, 4), "10": (4, 3), "2": (3, 2)}


def test_a_layer_that_keeps_all_filters_anyway_may_be_excluded():
    def apply(params, x):
        hidden = jax.nn.relu(x @ params["stem"]["kernel"] * params["norm"]["scale"])
        return hidden @ params["head"]["kernel"] + params["head"]["bias"]

    params = {
        "stem": {"kernel": np.ones((3, 4))},
        "norm": {"scale": np.array([[2.0, 1, 4, 3]])},
        "head": {"kernel": np.ones((4, 2)), "bias": np.ones((1, 2))},
    }
    x = np.ones((1, 3))
    every: list[dict[str, Any]] = [{"exclude": ["head"]}, {"round_to": {"head": 3}}, {}]
    for options in every:
        small = prune(apply, params, x, ratios=(0.5,), **options).params
        np.testing.assert_array_equal(small["norm"]["scale"], [[4, 3]])
    with pytest.raises(ValueError, match="'norm' matches none"):
        prune(apply, params, x, ratios=(0.5,), exclude=["norm"])


def test_channels_that_are_removed_stay_lowest_whatever_the_sign_of_scores():
    apply, params, x = prunable.network(2, (partial(prunable.flat_head, hidden=24),))

    def negative(params, groups):
        return [score - 1000 for score in channel_scores(params, groups)]

    options: Any = {"ratios": iterative(0.5, steps=3), "fold": False}
    pruned = prune(apply, params, x, score=negative, **options)
    same(pruned.params, prune(apply, params, x, **options).params)


@pytest.mark.parametrize("dtype", ["int32", "int8", "float16", "bool"])
def test_scores_may_have_any_dtype(dtype):
    lowest = 0 if dtype == "bool" else -128

    def score(params, groups):
        return [np.r_[[1] * (g.size - 1), lowest].astype(dtype) for g in groups]

    params = {"a": np.eye(2, 8), "b": np.ones((8, 3))}
    apply = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]  # noqa: E731
    (keep,) = prune(apply, params, np.ones((1, 2)), ratios=[0.25, 0.5], score=score).keep
    # Each step removes two channels: the last one, because its score is the lowest, and the first
    # of the others, because their scores are equal.
    assert np.flatnonzero(keep).tolist() == [2, 3, 4, 5]


def test_scores_of_float64_are_not_rounded():
    """The scores differ by 10⁻¹², which is less than the rounding error of float32."""
    scores = 1 + 1e-12 * np.array([3, 1, 6, 0, 7, 2, 5, 4])
    params = {"a": np.eye(2, 8), "b": np.ones((8, 3))}
    apply = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]  # noqa: E731
    score = lambda params, groups: [jnp.asarray(scores)]  # noqa: E731
    (keep,) = prune(apply, params, np.ones((1, 2)), ratios=[0.5], score=score).keep
    assert np.flatnonzero(keep).tolist() == [2, 4, 6, 7]


def test_batch_norm_is_recalibrated_after_each_removal():
    model = nnx.jit(lambda: models.MLP(inputs=4, widths=(8, 8), classes=2, rngs=nnx.Rngs(0)))()
    graph, state = nnx.split(model)
    evaluation = nnx.graphdef(nnx.view(model, use_running_average=True))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 4)).astype("float32"))

    @jax.jit
    def fresh(state):
        small = nnx.merge(graph, state)
        recalibrate(small, [x])
        return nnx.state(small)

    pruned = prune(
        lambda state, x: nnx.merge(evaluation, state)(x),
        state,
        x[:2],
        ratios=iterative(0.75, steps=2),
        recalibrate=fresh,
    )
    small: Any = nnx.merge(graph, pruned.params)
    first = np.asarray(x @ small.layers[0].kernel[...] + small.layers[0].bias[...][None])
    np.testing.assert_allclose(small.norms[0].mean[...], first.mean(0), atol=1e-5)
    np.testing.assert_allclose(small.norms[0].var[...], first.var(0), rtol=1e-4)
    assert small.norms[1].mean[...].shape == (2,)


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    """The checkpoint directory of a run of three steps, and the network that the run pruned."""
    checkpoint_dir = tmp_path_factory.mktemp("pruned")
    pruned = prune(
        *prunable.model("mobilenet"), ratios=iterative(0.6, steps=3), checkpoint_dir=checkpoint_dir
    )
    return checkpoint_dir, pruned


def test_a_checkpoint_is_read_without_the_large_network(saved_run):
    checkpoint_dir, pruned = saved_run
    apply, _, x = prunable.model("mobilenet")
    loaded = load_pruned(checkpoint_dir, apply)
    same(loaded.params, pruned.params)
    assert loaded.params["1"]["deep"].shape == (3, 3, 1, 3)
    assert loaded.kept_indices() == pruned.kept_indices()
    found, expected = (jax.jit(p.apply)(p.params, x) for p in (loaded, pruned))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="load_pruned needs the function that was pruned"):
        load_pruned(checkpoint_dir).apply(loaded.params, x)


def equal_groups(a, b):
    """Assert that groups are equal, and compare their indices by value."""
    for one, other in zip(a, b, strict=True):
        assert (one.size, one.normed, one.parameters) == (
            other.size,
            other.normed,
            other.parameters,
        )
        for p, q in zip(one.positions, other.positions, strict=True):
            np.testing.assert_array_equal(p.indices, q.indices)
            assert p._replace(indices=0) == q._replace(indices=0)


@pytest.mark.parametrize("resize", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("vgg", "scan", "resnext") else [pytest.mark.slow])
        for n in prunable.MODELS
    ],
)
def test_what_was_saved_is_the_same_object_and_runs(tmp_path, name, resize):
    apply, params, x = prunable.model(name)
    pruned = prune(apply, params, x, ratios=[0.5], resize=resize, checkpoint_dir=tmp_path)
    loaded = load_pruned(tmp_path, apply)
    same(loaded.params, pruned.params)
    same(loaded.keep, pruned.keep)
    equal_groups(loaded.groups, pruned.groups)
    assert type(loaded.apply) is type(pruned.apply)
    found, expected = (p.apply(p.params, x) for p in (loaded, pruned))
    np.testing.assert_array_equal(found, expected)


def test_groups_under_a_norm_are_read_as_such(tmp_path):
    def apply(params, x):
        h = x @ params["a"]
        h = h / jnp.sqrt(jnp.square(h).sum(-1, keepdims=True) + 1)
        return jnp.tanh(h @ params["b"]) @ params["c"]

    params = {"a": np.ones((2, 6)), "b": np.ones((6, 4)), "c": np.ones((4, 2))}
    x = np.ones((3, 2))
    pruned = prune(apply, params, x, ratios=[0.5], resize=True, checkpoint_dir=tmp_path)
    assert {group.size: group.normed for group in pruned.groups} == {6: True, 4: False}
    equal_groups(load_pruned(tmp_path, apply).groups, pruned.groups)


def test_trees_of_lists_tuples_and_none_are_read_as_they_were(tmp_path):
    params = {"a": [jnp.ones((3, 6)), None, (jnp.ones((6, 2)), {2: jnp.ones(2), 10: jnp.ones(2)})]}

    def apply(params, x):
        a, _, (b, c) = params["a"]
        return jax.nn.relu(x @ a) @ b + c[2][None] * c[10][None]

    pruned = prune(apply, params, jnp.ones((1, 3)), ratios=[0.5], checkpoint_dir=tmp_path)
    same(load_pruned(tmp_path, apply).params, pruned.params)


def test_a_checkpoint_of_the_first_version_is_read(saved_run, monkeypatch, tmp_path):
    """Version 0.1 stored kept indices, not groups; a group is made from each axis with indices."""
    _, pruned = saved_run
    apply, _, x = prunable.model("mobilenet")
    save = ocp.args.JsonSave
    kept = {p: {str(k): v for k, v in axes.items()} for p, axes in pruned.kept_indices().items()}

    def of_the_first_version(metadata):
        new = ("groups", "structure", "resized")
        return save({k: v for k, v in metadata.items() if k not in new} | {"kept": kept})

    monkeypatch.setattr(ocp.args, "JsonSave", of_the_first_version)
    save_pruned(tmp_path, pruned)
    loaded = load_pruned(tmp_path, apply)
    assert loaded.kept_indices() == pruned.kept_indices()
    found = resized(apply, loaded.groups, loaded.keep)(loaded.params, x)
    for expected in (loaded.apply(loaded.params, x), pruned.apply(pruned.params, x)):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_module_is_not_saved_as_a_pruned(tmp_path):
    with pytest.raises(TypeError, match=r"got a Linear: save a module with pruning\.weights\.save"):
        save_pruned(tmp_path, nnx.Linear(2, 3, rngs=nnx.Rngs(0)))  # pyright: ignore[reportArgumentType]


def test_keys_and_small_floats_are_kept(tmp_path):
    params = {"a": jnp.ones((2, 6), "bfloat16"), "b": jnp.ones((6, 1)), "key": jax.random.key(3)}

    def apply(params, x):
        return jax.nn.relu(x @ params["a"].astype("float64")) @ params["b"]

    prune(apply, params, np.ones((1, 2)), ratios=(0.5,), checkpoint_dir=tmp_path)
    loaded = load_pruned(tmp_path, like=params).params
    assert loaded["a"].dtype == "bfloat16"
    assert loaded["key"] == params["key"]


def test_a_checkpoint_takes_the_structure_of_shapes_before_and_after(saved_run):
    checkpoint_dir, pruned = saved_run
    before = jax.eval_shape(lambda: prunable.model("mobilenet").params)
    for like in (before, pruned.params):
        same(
            load_pruned(checkpoint_dir, like=like).params, jax.tree.map(jnp.asarray, pruned.params)
        )


def test_wrong_widths_are_refused_by_the_first_array_that_differs(saved_run):
    checkpoint_dir, pruned = saved_run
    other = prune(*prunable.model("mobilenet"), ratios=(0.3,)).params
    said = r"0/n/bias must have shape \(3,\), or \(6,\) as before pruning, got \(5,\)"
    with pytest.raises(ValueError, match=said):
        load_pruned(checkpoint_dir, like=other)
    with pytest.raises(
        ValueError, match="the arrays that were saved; 0/n/bias was saved, but is not in like"
    ):
        load_pruned(checkpoint_dir, like={"1": pruned.params["1"]})
    with pytest.raises(ValueError, match="the arrays that were saved; pear was not saved"):
        load_pruned(checkpoint_dir, like=pruned.params | {"pear": np.ones(1)})


def parts(params, x):
    """A network whose kernel `a` makes two groups of channels."""
    h, first = x @ params["a"], params["c"].shape[0]
    return jnp.tanh(h[:, first:]) @ params["b"] + jax.nn.relu(h[:, :first]) @ params["c"]


def network_of_parts():
    shapes = {"a": (4, 12), "b": (5, 2), "c": (7, 2)}
    rng = np.random.default_rng(5)
    return parts, {n: rng.normal(size=s) for n, s in shapes.items()}, rng.normal(size=(3, 4))


RESUMED = {"parts": network_of_parts} | {
    name: partial(prunable.model, name) for name in prunable.MODELS
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("parts", "vgg") else [pytest.mark.slow])
        for name in RESUMED
    ],
)
def test_an_interrupted_run_resumes(tmp_path, name):
    apply, params, x = RESUMED[name]()
    steps = []

    def tuned(tree, step, stop=None):
        if step == stop:
            raise KeyboardInterrupt
        steps.append(step)
        return jax.tree.map(lambda p: 1.1 * p, tree)

    ratios = iterative(0.6, steps=3)
    run = partial(prune, apply, params, x, ratios=ratios, checkpoint_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(fine_tune=partial(tuned, stop=2))
    resumed = run(fine_tune=tuned)
    assert steps == [0, 1, 2]
    whole = prune(apply, params, x, ratios=ratios, fine_tune=tuned)
    same(jax.tree.leaves(resumed.params), jax.tree.leaves(whole.params))
    assert resumed.kept_indices() == whole.kept_indices()
    assert [path.name for path in tmp_path.iterdir()] == ["3"]
    for other in ((0.5,), (*ratios[:-1], 0.7)):
        with pytest.raises(ValueError, match="checkpoint_dir must hold a run with the ratios"):
            prune(apply, params, x, ratios=other, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("fold", [False, True])
def test_a_repair_takes_the_place_of_folding(fold):
    """The pruned parameters are the repaired ones, without the removed channels."""
    apply, params, x = prunable.model("vgg")
    repaired = lambda f, params, groups, keep: jax.tree.map(lambda p: 2 * p + 1, params)  # noqa: E731
    pruned = prune(apply, params, x, ratios=[0.5], fold=fold, repair=repaired)
    expected = remove_channels(
        repaired(apply, params, pruned.groups, pruned.keep), pruned.groups, pruned.keep
    )
    same(jax.tree.leaves(pruned.params), jax.tree.leaves(expected))


def test_a_callback_finds_the_checkpoint_of_its_step(tmp_path):
    apply, params, x = prunable.model("mlp")
    seen = []

    def read(step, pruned):
        same(load_pruned(tmp_path).params, jax.tree.map(jnp.asarray, pruned.params))
        seen.append(step)

    prune(apply, params, x, ratios=[0.2, 0.5], checkpoint_dir=tmp_path, callback=read)
    assert seen == [0, 1]


def test_results_with_the_same_parts_are_trees_of_one_structure():
    apply, params, x = prunable.model("mlp")
    pruned = prune(apply, params, x, ratios=[0.5])
    doubled = pruned._replace(params=jax.tree.map(lambda p: 2 * p, pruned.params))
    same(jax.tree.map(lambda a, b: a - b, doubled, pruned), pruned)
    traces = []
    run = jax.jit(lambda tree: traces.append(1) or tree.apply(tree.params, x))
    np.testing.assert_allclose(run(pruned), apply(pruned.params, x))
    run(doubled)
    assert len(traces) == 1
    other = pruned._replace(keep=tuple(map(np.copy, pruned.keep)))
    assert jax.tree.structure(other) != jax.tree.structure(pruned)


@pytest.mark.parametrize("equal_repeats", [False, True])
def test_a_choice_may_have_arguments_before_the_scores(equal_repeats):
    """The first argument of `choose` is the largest allowed ratio, 0.4."""

    def choose(largest, scores, *, ratio):
        return select_layerwise(scores, ratio=min(ratio, largest))

    apply, params, x = prunable.model("mlp")
    options = {"ratios": [0.9], "equal_repeats": equal_repeats}
    small = prune(apply, params, x, select=partial(choose, 0.4), **options).params
    assert small["0"]["w1"].shape[1] == 4  # 4 of 6 channels are kept


def test_a_killed_save_is_done_again_and_a_reader_leaves_a_save_that_runs(tmp_path):
    left = [tmp_path / f"{step}.orbax-checkpoint-tmp" / "arrays" for step in (1, 9)]
    for folder in left:
        folder.mkdir(parents=True)
    run = partial(prune, *prunable.model("vgg"), ratios=(0.5,), checkpoint_dir=tmp_path)
    pruned = run()
    assert not any(folder.parent.exists() for folder in left)
    same(jax.tree.leaves(run().params), jax.tree.leaves(pruned.params))
    written = tmp_path / "2.orbax-checkpoint-tmp" / "arrays"  # another process writes this folder
    written.mkdir(parents=True)
    load_pruned(tmp_path)
    assert written.is_dir()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ratios": ()}, r"ratios, such as \[0\.5\], or a budget must be given; got neither"),
        ({"ratios": (0.5, 0.5)}, "ratios must be ascending numbers"),
        ({"ratios": (1.0,)}, "ratios must be ascending numbers"),
        ({"ratios": (0.0,)}, "ratios must be ascending numbers"),
        ({"ratios": (0.5,), "exclude": ["pear"]}, "'pear' matches none"),
        ({"ratios": (0.5,), "batch_sizes": [1]}, "batch_sizes must be omitted if ratios are"),
        ({"ratios": (0.5,), "cost": lambda cost: cost.size}, "cost must be omitted if ratios are"),
        ({"ratios": (0.01, 0.02)}, "the last of ratios must remove a channel; 0.02 removes none"),
        ({"ratios": (0.5,), "round_to": 64}, "channels in a group: give a larger ratio, or a smal"),
        ({"ratios": (0.5,), "exclude": ["0"]}, "apply must have channels that can be removed"),
        (
            {"ratios": (0.5,), "select": partial(select_layerwise, min_channels=0)},
            "min_channels must be at",
        ),
        (
            {"ratios": (0.5,), "select": partial(select_globally, round_to=0)},
            "round_to must be at least",
        ),
    ],
)
def test_bad_options_are_refused(options, said):
    apply, params, x = prunable.model("mlp")
    before = jax.tree.map(np.copy, params)
    with pytest.raises(ValueError, match=said):
        prune(apply, params, x, **options)
    same(params, before)


def test_a_first_ratio_may_remove_nothing():
    apply, params, x = prunable.model("mlp")
    steps: list[pruning.Pruned] = []
    prune(apply, params, x, ratios=(0.01, 0.5), callback=lambda _, pruned: steps.append(pruned))
    assert [[mask.sum() for mask in pruned.keep] for pruned in steps] == [[6], [3]]


NAME: Any = "l1"  # tests pass this name instead of a function


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ratios": 0.5}, r"ratios must be a list, such as \[0.5\]; got 0.5"),
        ({"budget": None}, "budget must be a number, such as .*; got None"),
        ({"ratios": [0.5], "score": "l1"}, "score must be a function, such as partial.*; got 'l1'"),
        (
            {"ratios": [0.5], "score": partial(channel_scores, criterion=NAME)},
            "criterion must be a function, such as .*CRITERIA.*; got 'l1'",
        ),
    ],
)
def test_options_of_another_type_are_refused(options, said):
    with pytest.raises(TypeError, match=said):
        prune(*prunable.model("mlp"), **options)


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5])
def test_ratios_outside_their_range_are_refused(ratio):
    with pytest.raises(ValueError, match=r"ratio must lie in \(0, 1\); got"):
        select_layerwise(scores([1, 2]), ratio=ratio)
    with pytest.raises(ValueError, match=r"target must lie in \(0, 1\); got"):
        iterative(ratio, steps=1)
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        iterative(0.5, steps=0)


def test_a_model_with_nothing_to_cut_names_what_stands_in_the_way():
    def apply(params, x):
        return jax.nn.softmax(x @ params["a"]) @ params["b"]

    params = {"a": np.ones((2, 6)), "b": np.ones((6, 3))}
    said = r"apply must have channels .*; reduce_max needs all of them at .*test_prune\.py:\d+"
    with pytest.raises(ValueError, match=said):
        prune(apply, params, np.ones((1, 2)), ratios=(0.5,))
    said = r"channels that can be removed; input needs all of them at \[0\]: only channels that a l"
    with pytest.raises(ValueError, match=said):  # a residual stream has the channels of the input
        prune(lambda p, x: x + jax.nn.relu(x @ p), np.ones((3, 3)), np.ones((1, 3)), ratios=(0.5,))
    with pytest.raises(ValueError, match=said):  # no group has a name to match
        prune(lambda p, x: x * p, np.ones((1, 3)), np.ones((1, 3)), ratios=(0.5,), exclude=["pear"])


def test_what_a_norm_holds_together_is_said_to_be_removed_with_resize():
    def apply(params, x):
        h = x @ params["a"]
        return (h / jnp.sqrt(jnp.square(h).sum(-1, keepdims=True))) @ params["b"]

    params = {"a": np.ones((2, 6)), "b": np.ones((6, 3))}
    said = r"reduce_sum needs all of them at .*; pruning.prune with resize=True also removes"
    with pytest.raises(ValueError, match=said):
        prune(apply, params, np.ones((1, 2)), ratios=(0.5,))
    small = prune(apply, params, np.ones((1, 2)), ratios=(0.5,), resize=True).params
    assert small["a"].shape == (2, 3)


@pytest.mark.parametrize(("resize", "first"), [(False, "reduce_sum"), (True, "reduce_max")])
def test_with_resize_a_refusal_names_only_what_resize_cannot_change(resize, first):
    def apply(params, x):
        h = x @ params["a"]
        h = h - h.mean(1, keepdims=True)
        return jax.nn.relu(h) @ params["b"] / h.max(1, keepdims=True)

    params = {"a": np.ones((2, 6)), "b": np.ones((6, 3))}
    said = rf"^apply must have channels that can be removed; {first} needs all of them at"
    with pytest.raises(ValueError, match=said):
        prune(apply, params, np.ones((1, 2)), ratios=(0.5,), resize=resize)


def test_resize_is_no_cure_where_all_layers_are_excluded():
    apply, params, x = prunable.model("mlp")
    said = r"^apply must have channels that can be removed; exclude matches all layers .* layers$"
    with pytest.raises(ValueError, match=said):
        prune(apply, params, x, ratios=(0.5,), exclude=["0"])


def test_every_step_refines_the_network_that_the_step_before_has_cut():
    """Each call of `refine` gets a network that still divides by the original width, six."""

    def apply(params, x):
        h = x @ params["a"]
        return (h - h.mean(-1, keepdims=True)) @ params["b"]

    rng = np.random.default_rng(0)
    params, x = (
        {"a": rng.normal(size=(2, 6)), "b": rng.normal(size=(6, 3))},
        rng.normal(size=(4, 2)),
    )
    seen = []

    def refine(run, small, groups, some):
        h = x @ small["a"]
        expected = (h - h.sum(-1, keepdims=True) / 6) @ small["b"]
        np.testing.assert_allclose(run(small, x), expected, rtol=1e-12)
        seen.append(h.shape[1])
        return some

    prune(apply, params, x, ratios=[1 / 3, 2 / 3], resize=True, refine=refine, fold=False)
    assert seen == [6, 4]


def test_a_model_that_writes_its_widths_down_is_refused():
    def apply(params, x):
        h = jax.nn.relu(x @ params["a"])
        return h.reshape(len(h), 6) @ params["b"]

    params = {"a": np.ones((2, 6)), "b": np.ones((6, 3))}
    said = (
        r"apply must take its widths from params, as modules .*fit_widths; .*resize=True\)\); "
        r"with fewer .* at .*test_prune\.py:\d+ \(apply\)"
    )
    with pytest.raises(ValueError, match=said):
        prune(apply, params, np.ones((1, 2)), ratios=(0.5,))


def test_a_directory_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="checkpoint_dir must hold a checkpoint of a pruned network"
    ):
        load_pruned(tmp_path / "none")
    with pytest.raises(ValueError, match="holds none"):
        load_pruned(tmp_path)


def test_nan_scores_are_refused_with_the_layer_s_name():
    apply, params, x = prunable.model("vgg")
    params["3"]["w1"][0, 2] = np.nan
    with pytest.raises(ValueError, match=r"^score must return no NaN; .* 3/w1"):
        prune(apply, params, x, ratios=[0.5], fold=False)


@pytest.mark.parametrize("name", ["recalibrate", "fine_tune"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_retrains_must_return_the_smaller_tree(name, whole):
    params = {"a": np.ones((2, 8)), "b": np.ones((8, 3))}

    def mlp(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    retrain: dict[str, Any] = {name: lambda *_: params if whole else None}
    got = r"\[\(2, 8\), \(8, 3\)\]" if whole else "None"
    with pytest.raises(
        ValueError,
        match=rf"^{name} must return a tree with the shapes of the tree it gets, .*; got {got}$",
    ):
        pruning.prune(mlp, params, np.ones((1, 2)), ratios=[0.5], **retrain)


def centred(params, x):
    """A network that subtracts the mean over channels."""
    h = jax.nn.relu(x @ params["a"] + params["b"][None])
    h = h - h.mean(-1, keepdims=True)
    return h @ params["c"] + params["d"][None]


def centred_in_numpy(params, x):
    """The network `centred` in NumPy; its mean divides by six, also if there are fewer channels."""
    h = np.maximum(x @ params["a"] + params["b"], 0)
    return (h - h.sum(-1, keepdims=True) / 6) @ params["c"] + params["d"]


def centred_network():
    shapes = {"a": (2, 6), "b": (6,), "c": (6, 3), "d": (3,)}
    rng = np.random.default_rng(0)
    params = {name: rng.normal(1, 2, size=shape) for name, shape in shapes.items()}
    return params, rng.normal(3, 5, size=(4, 2))


def test_each_function_of_a_step_gets_what_the_one_before_has_made(tmp_path):
    """A resized network of six channels is pruned to four and then to two channels."""
    params, x = centred_network()
    calls: list[Any] = []

    def runs(run, tree):
        np.testing.assert_allclose(run(tree, x), centred_in_numpy(tree, x), rtol=1e-12)
        return tree["a"].shape[1]

    def score(tree, groups):
        calls.append(("score", tree["a"].shape[1], [g.size for g in groups]))
        return [jnp.arange(5.0, 5 + tree["a"].shape[1])[::-1]]

    def select(scores, *, ratio):
        left = np.isfinite(np.asarray(scores[0]))
        calls.append(("select", left.tolist(), round(6 * ratio)))
        return select_layerwise(scores, ratio=ratio)

    def refine(run, tree, groups, keep):
        calls.append(("refine", runs(run, tree), keep[0].tolist()))
        return [keep[0][::-1].copy()]  # refining removes the first channels instead of the last

    def repair(run, tree, groups, keep):
        calls.append(("repair", runs(run, tree), keep[0].tolist()))
        return tree | {"d": tree["d"] + 10}

    def recalibrate(tree, pruned):
        calls.append(("recalibrate", runs(pruned.apply, tree), pruned.keep[0].tolist()))
        return tree | {"d": 2 * tree["d"]}

    def fine_tune(tree, step, pruned):
        calls.append(("fine_tune", step, runs(pruned.apply, tree), pruned.keep[0].tolist()))
        return tree | {"d": tree["d"] + 1}

    def callback(step, pruned):
        calls.append(("callback", step, runs(pruned.apply, pruned.params)))
        saved = load_pruned(tmp_path, centred)
        same(saved.params, pruned.params)
        same(saved.keep, pruned.keep)
        runs(saved.apply, saved.params)

    functions = (score, select, refine, repair, recalibrate, fine_tune, callback)
    options: Any = {function.__name__: function for function in functions}
    options |= {"ratios": [1 / 3, 2 / 3], "resize": True, "checkpoint_dir": tmp_path}
    pruned = prune(centred, params, x, **options)
    six, four, two = ([True] * 6, [False] * 2 + [True] * 4, [False] * 4 + [True] * 2)
    last = [[True] * 4 + [False] * 2, [True] * 2 + [False] * 2]
    assert calls == [
        *(("score", 6, [6]), ("select", six, 2), ("refine", 6, last[0]), ("repair", 6, four)),
        *(("recalibrate", 4, four), ("fine_tune", 0, 4, four), ("callback", 0, 4)),
        *(("score", 4, [4]), ("select", four, 4), ("refine", 4, last[1]), ("repair", 4, four[:4])),
        *(("recalibrate", 2, two), ("fine_tune", 1, 2, two), ("callback", 1, 2)),
    ]
    np.testing.assert_allclose(pruned.params["d"], 2 * (2 * (params["d"] + 10) + 1 + 10) + 1)
    np.testing.assert_array_equal(pruned.params["a"], params["a"][:, 4:])
    calls.clear()
    again = prune(centred, params, x, **options)  # this call resumes after the last step
    assert calls == []
    same(again.params, pruned.params)
    assert again.kept_indices() == pruned.kept_indices()
    runs(again.apply, again.params)


def test_no_step_folds_a_constant_under_a_norm():
    params, x = centred_network()
    pruned = prune(centred, params, x, ratios=[1 / 3, 2 / 3], resize=True)
    np.testing.assert_array_equal(pruned.params["d"], params["d"])
    assert [group.normed for group in pruned.groups] == [True]


def test_a_checkpoint_of_other_widths_is_not_resumed(tmp_path):
    params, x = centred_network()
    options: Any = {"ratios": [1 / 3], "resize": True, "checkpoint_dir": tmp_path}
    prune(centred, params, x, **options)
    wider = params | {"a": params["a"].repeat(2, 1), "b": params["b"].repeat(2)}
    wider |= {"c": params["c"].repeat(2, 0)}
    said = (
        r"^checkpoint_dir must hold a run that began with these params; .* another checkpoint_dir$"
    )
    others = [wider, params | {"e": np.ones(1)}, params | {"a": params["a"] + 1}]
    for other in others:
        with pytest.raises(ValueError, match=said):
            prune(centred, other, x, **options)
    prune(centred, params, x, **options)


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path):
    params, x = centred_network()
    options: Any = {"ratios": [1 / 3], "resize": True}
    file = tmp_path / "file"
    file.write_text("")
    for call in (
        partial(load_pruned, file),
        partial(prune, centred, params, x, checkpoint_dir=file, **options),
    ):
        with pytest.raises(
            ValueError, match=r"^checkpoint_dir must .*file (holds none|is a file)$"
        ):
            call()
    folder = tmp_path / "folder"
    prune(centred, params, x, checkpoint_dir=folder, **options)
    for path in filter(Path.is_file, folder.rglob("*")):
        os.truncate(path, path.stat().st_size // 2)
    for call in (
        partial(load_pruned, folder, centred),
        partial(prune, centred, params, x, checkpoint_dir=folder, **options),
    ):
        with pytest.raises(ValueError, match=r"^checkpoint_dir must hold a whole checkpoint of"):
            call()


def test_a_training_that_donates_its_arrays_can_be_saved_and_resumed(tmp_path):
    """Until training donates them, arrays without removed channels are the caller's own."""
    params, x = centred_network()
    train = jax.jit(partial(jax.tree.map, lambda leaf: 0.5 * leaf), donate_argnums=0)
    found = [
        prune(
            centred,
            jax.tree.map(jnp.array, params),
            x,
            ratios=[1 / 3, 2 / 3],
            resize=True,
            fine_tune=lambda params, step, pruned: train(params),
            checkpoint_dir=tmp_path,
        )
        for _ in range(2)
    ]
    jax.tree.map(np.testing.assert_array_equal, found[0].params, found[1].params)


def test_a_function_without_its_options_is_told_how_to_set_them():
    params, x = centred_network()
    options: Any = {"ratios": [1 / 3], "resize": True}
    repair: Any = pruning.channels.merge_channels
    with pytest.raises(
        TypeError, match=r"got merge_channels\(.*\): set inputs by functools\.partia"
    ):
        prune(centred, params, x, repair=repair, **options)
    score: Any = pruning.channels.reconstruction_scores
    with pytest.raises(TypeError, match=r"got reconstruction_scores\(.*\): set apply, batches by "):
        prune(centred, params, x, score=score, **options)


def test_numbers_of_other_kinds_are_refused():
    params, x = centred_network()
    with pytest.raises(TypeError, match=r"round_to must be .*int.*3\.0"):
        prune(centred, params, x, ratios=[1 / 3], resize=True, round_to=3.0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("shape", [(6, 1), (1, 6), (5,), ()])
def test_scores_of_another_shape_are_refused(shape):
    params = {"a": np.ones((3, 6)), "b": np.ones((6, 2))}
    with pytest.raises(ValueError, match=r"one number for each of the 6 channels of a; it returns"):
        prune(
            lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"],
            params,
            np.ones((1, 3)),
            ratios=[0.5],
            score=lambda params, groups: [jnp.zeros(shape)],
        )


@pytest.mark.parametrize("held", [lambda: jnp.nan, lambda: np.where(np.eye(5, 1), np.nan, 2)])
def test_a_program_that_holds_nan_is_the_same_program_after_a_removal(held):
    def apply(p, x):
        h = x @ p["a"]
        return jnp.tanh(jnp.where(h > -1e9, h, held())) @ p["b"]

    rng = np.random.default_rng(7)
    params = {"a": rng.normal(1, 2, (3, 6)), "b": rng.normal(1, 2, (6, 2))}
    x = rng.normal(3, 2, (5, 3))
    step = prune(apply, params, x, ratios=[0.5])
    assert step.params["a"].shape == (3, 3)
    assert np.isfinite(step.apply(step.params, x)).all()
