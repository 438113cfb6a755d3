"""Tests of the widths that save cost, by the compiler's counts and by measured times."""

import time
from functools import partial

import jax
import numpy as np
import pytest

import pruning
from pruning import widths_for
from pruning.channels import (
    Executable,
    compiled_bytes,
    compiled_cycles,
    compiled_flops,
    milliseconds,
)
from tests.support import prunable

COSTS = {2: 5.0, 4: 4.0, 6: 4.0, 8: 7.0, 10: 8.0, 12: 10.0}


def stepped(costs, **options):
    """The result of `widths_for` with a measure that returns the given `costs` by width."""
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 12)), "b": rng.normal(size=(12, 2))}
    apply, x = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"], np.ones((1, 3))

    def measure(programs):
        return [costs[program.arguments[0]["b"].shape[0]] for program in programs]

    (group,) = pruning.coupled_channels(apply, params, x)
    widths = list(costs)[::-1]
    return widths_for(apply, params, group, x, widths=widths, measure=measure, **options)


def test_a_width_is_worth_having_where_no_wider_one_is_as_cheap():
    found = stepped(COSTS)
    assert {f.width: f.cost for f in found} == COSTS
    assert [f.width for f in found] == sorted(COSTS)
    assert [f.width for f in found if f.worth] == [6, 8, 10, 12]


@pytest.mark.parametrize(("margin", "worth"), [(0.2, [6, 8, 12]), (0.35, [6, 12])])
def test_a_margin_leaves_out_what_saves_too_little(margin, worth):
    costs = {width: COSTS[width] for width in (6, 8, 10, 12)}
    assert [f.width for f in stepped(costs, margin=margin) if f.worth] == worth


@pytest.mark.parametrize("abstract", [False, True])
def test_the_compiler_counts_less_for_fewer_channels(abstract):
    apply, params, x = prunable.model("mlp")
    if abstract:
        params, x = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params, x))
    (group,) = pruning.coupled_channels(apply, params, x)
    found = widths_for(apply, params, group, x, widths=[2, 6], measure=compiled_flops)
    # There are two images of 32 elements, and three classes.
    macs = [2 * (32 * n + n * 3) for n in (2, 6)]
    assert [f.worth for f in found] == [True, True]
    for (_, flops, _), expected in zip(found, macs, strict=True):
        # A multiply-accumulate counts as 2 operations. The biases add a few operations.
        assert 2 * expected <= flops <= 2.5 * expected
    few, many = widths_for(apply, params, group, x, widths=[2, 6], measure=compiled_bytes)
    assert many.cost - few.cost >= 8 * 4 * (32 + 1 + 3)  # the weights of 4 channels in float64


def test_programs_are_called_in_turn_after_one_call_that_does_not_count(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call(k, seconds):
        first = k not in calls
        calls.append(k)
        clock[0] += 1000 * seconds if first else seconds

    programs = [Executable(partial(call, k), (seconds,)) for k, seconds in enumerate((0.002, 0.02))]
    assert milliseconds(programs, runs=2) == pytest.approx([2, 20])
    assert calls == [0, 1] * 3
    calls.clear()
    assert milliseconds(programs, runs=1) == pytest.approx([2, 20])


def test_the_network_at_hand_is_measured():
    apply, params, x = prunable.model("mlp")
    (group,) = pruning.coupled_channels(apply, params, x)
    measure = partial(milliseconds, runs=2)
    found = widths_for(apply, params, group, x, widths=[1, 6, 6], measure=measure)
    assert [f.width for f in found] == [1, 6]
    assert all(f.cost > 0 for f in found)
    assert found[-1].worth


def test_a_compiler_that_does_not_count_is_refused():
    class Silent:
        def __init__(self, counted):
            self.counted = counted

        def cost_analysis(self):
            return self.counted

    for counted, known in (
        ({"utilization": 1.0}, "utilization"),
        ({}, "nothing"),
        (None, "nothing"),
    ):
        with pytest.raises(ValueError, match=f"the compiler must report flops; it reports {known}"):
            compiled_flops([Executable(Silent(counted), ())])


def test_cycles_are_those_that_a_tpu_s_compiler_estimates():
    class Compiled:
        def as_text(self):
            return """ENTRY
              a = fusion, backend_config={"window_config":{},"estimated_cycles":"113841"}
              b = fusion, backend_config={"estimated_cycles":"190005","used":"1"}"""

    assert compiled_cycles([Executable(Compiled(), ())]) == [303846.0]
    apply, params, x = prunable.model("mlp")
    (group,) = pruning.coupled_channels(apply, params, x)
    with pytest.raises(
        ValueError, match="must be compiled for a TPU, because only the TPU compiler estimates cy"
    ):
        widths_for(apply, params, group, x, widths=[6], measure=compiled_cycles)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": []}, "widths must hold at least one width; got none"),
        ({"widths": [0]}, r"widths must lie in 1..6 for .*; got 0"),
        ({"widths": [7]}, r"widths must lie in 1..6 for .*; got 7"),
        ({"widths": [6], "margin": 1.0}, r"margin must lie in \[0, 1\); got 1.0"),
    ],
)
def test_widths_that_are_none_are_refused(options, message):
    apply, params, x = prunable.model("mlp")
    (group,) = pruning.coupled_channels(apply, params, x)
    with pytest.raises(ValueError, match=message):
        widths_for(apply, params, group, x, **options)


def test_shapes_have_no_milliseconds():
    apply, params, x = prunable.model("mlp")
    (group,) = pruning.coupled_channels(apply, params, x)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    with pytest.raises(ValueError, match="milliseconds must be measured on arrays; got shapes"):
        widths_for(apply, shapes, group, x, widths=[6])


def test_programs_are_of_the_group_s_first_channels_and_of_the_whole_rest():
    """Each width is compiled once, in ascending order, with the given inputs."""
    rng = np.random.default_rng(1)
    shapes = {"a": (3, 8), "b": (8, 6), "c": (6, 2)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    apply = lambda p, x, y: jax.nn.relu(jax.nn.relu(x @ p["a"]) @ p["b"]) @ p["c"] + y  # noqa: E731
    group = next(g for g in pruning.coupled_channels(apply, params, x, y) if g.size == 6)
    seen = []

    def measure(programs):
        for program in programs:
            tree, *inputs = program.arguments
            n = tree["c"].shape[0]
            seen.append(n)
            for found, given in zip(inputs, (x, y), strict=True):
                np.testing.assert_array_equal(found, given)
            expected = {"a": params["a"], "b": params["b"][:, :n], "c": params["c"][:n]}
            jax.tree.map(np.testing.assert_array_equal, tree, expected)
            whole = np.maximum(np.maximum(x @ params["a"], 0) @ expected["b"], 0)
            result = program.compiled(tree, *inputs)
            np.testing.assert_allclose(result, whole @ expected["c"] + y, rtol=1e-9)
        return [10.0 * n for n in seen]

    found = widths_for(apply, params, group, x, y, widths=[4, 2, 6, 4], measure=measure)
    assert seen == [2, 4, 6]
    assert [tuple(f) for f in found] == [(2, 20.0, True), (4, 40.0, True), (6, 60.0, True)]
