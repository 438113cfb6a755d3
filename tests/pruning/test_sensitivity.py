"""One group at a time loses channels: what is measured is that of the smaller network."""

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
