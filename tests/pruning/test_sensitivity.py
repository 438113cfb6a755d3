"""Sensitivity masks channels of one group at a time, and measures the network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning.channels import output_error, remove_channels, resized, select_layerwise, sensitivity
from tests.support import prunable

RATIOS = [0.2, 0.5, 0.8]


@pytest.mark.parametrize("name", ["vgg", "resnet, identity", "resnext"])
def test_the_error_is_that_of_the_network_without_these_channels(name):
    apply, params, x = prunable.model(name)
    groups = pruning.coupled_channels(apply, params, x)
    measure = output_error(jax.jit(apply), params, x)
    found = sensitivity(params, groups, measure=measure, ratios=RATIOS)
    assert found.shape == (len(groups), len(RATIOS))
    whole = np.asarray(apply(params, x))
    for group, scores, row in zip(
        groups, pruning.channels.channel_scores(params, groups), found, strict=True
    ):
        for ratio, error in zip(RATIOS, row, strict=True):
            keep = select_layerwise([scores], ratio=ratio)
            small = remove_channels(params, [group], keep)
            out = np.asarray(resized(apply, [group], keep)(small, x))
            expected = np.linalg.norm(out - whole) / np.linalg.norm(whole)
            np.testing.assert_allclose(error, expected, rtol=1e-7, atol=1e-12)


def test_all_trees_that_are_measured_compile_once():
    apply, params, x = prunable.model("vgg")
    traces = []

    @jax.jit
    def measure(tree):
        traces.append(1)
        return apply(tree, x).sum()

    groups = pruning.coupled_channels(apply, params, x)
    assert np.isfinite(sensitivity(params, groups, measure=measure)).all()
    assert len(traces) == 1


def test_a_ratio_outside_its_range_is_refused_and_no_groups_have_no_rows():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)
    with pytest.raises(ValueError, match=r"ratio must lie in \(0, 1\); got 1"):
        sensitivity(params, groups, measure=lambda tree: 0.0, ratios=[1.0])
    assert sensitivity(params, [], measure=lambda tree: 0.0).shape == (0, 9)


BAD_SCORES = {
    "score must return a list of vectors; got float": lambda scores: 1.0,
    "score must return one vector per group": lambda scores: scores[1:],
    "score must return one number for each of the ": lambda scores: [s[1:] for s in scores],
    "score must return no NaN": lambda scores: [*scores[:-1], scores[-1] * np.nan],
}


@pytest.mark.parametrize("message", BAD_SCORES)
def test_scores_that_do_not_fit_the_groups_are_refused(message):
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)

    def score(params, groups):
        return BAD_SCORES[message]([jnp.ones(group.size) for group in groups])

    with pytest.raises((TypeError, ValueError), match=message):
        sensitivity(params, groups, measure=lambda tree: 0.0, score=score)


def test_channels_go_by_the_score_that_is_given():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)

    def last_first(params, groups):
        return [-jnp.arange(float(group.size)) for group in groups]

    masked = []
    sensitivity(
        params, groups, measure=lambda t: masked.append(t) or 0.0, ratios=[0.5], score=last_first
    )
    left = np.asarray(masked[0]["0"]["w1"]).any(0)
    np.testing.assert_array_equal(left, [True, True, True, False, False, False])


def test_the_error_is_of_all_outputs_and_each_group_is_scanned_alone():
    """Only the given group is masked, and the error includes all outputs, also complex ones."""
    rng = np.random.default_rng(8)
    shapes = {"a": (3, 6), "b": (6, 8), "c": (8, 2), "d": (6, 2)}
    params = {name: rng.normal(3, 5, size=shape) for name, shape in shapes.items()}
    x = rng.normal(3, 1, size=(4, 3))

    def apply(p, x):
        h = jnp.sin(x @ p["a"])
        real, imaginary = h @ p["d"], 9 * jnp.cos(h @ p["d"])
        return jnp.cos(h @ p["b"]) @ p["c"], {"other": jax.lax.complex(real, imaginary)}

    def relative(a, b):
        a, b = (np.concatenate([y.ravel(), z["other"].ravel()]) for y, z in (a, b))
        return np.linalg.norm(a - b) / np.linalg.norm(b)

    other = {name: value + 0.1 for name, value in params.items()}
    measure = output_error(apply, params, x)
    expected = relative(apply(other, x), apply(params, x))
    np.testing.assert_allclose(measure(other), expected, rtol=1e-10)
    groups = pruning.coupled_channels(apply, params, x)
    second = next(group for group in groups if group.size == 8)
    found = sensitivity(params, [second], measure=measure, ratios=[0.5, 0.25])
    order = np.argsort(np.linalg.norm(params["b"], axis=0))
    for error, count in zip(found[0], (4, 2), strict=True):
        masked = params | {"c": params["c"].copy()}
        masked["c"][order[:count]] = 0
        expected = relative(apply(masked, x), apply(params, x))
        np.testing.assert_allclose(error, expected, rtol=1e-10)
