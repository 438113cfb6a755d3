"""Costs equal published costs, and measured times and bytes have the right size."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pruning
from jaxnorm import models
from pruning.channels import cost_at
from pruning.channels._cost import cost as module
from tests.support import prunable


@pytest.mark.parametrize(
    ("build", "side", "macs", "parameters"),
    [
        (lambda rngs: models.VGG(16, classes=1000, norm=None, rngs=rngs), 224, 15.47, 138_357_544),
        (lambda rngs: models.ResNet(18, classes=1000, rngs=rngs), 224, 1.81, 11_689_512),
        (lambda rngs: models.ResNet(50, classes=1000, rngs=rngs), 224, 4.09, 25_557_032),
        (lambda rngs: models.CifarResNet(56, classes=10, rngs=rngs), 32, 0.125, 853_018),
    ],
    ids=["VGG-16", "ResNet-18", "ResNet-50", "ResNet-56"],
)
def test_multiply_accumulates_and_parameters_are_those_of_publications(
    build, side, macs, parameters
):
    """Costs equal all digits of Torchvision's tables, and the published 125 M for ResNet-56."""
    model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    graph, params, rest = nnx.split(
        nnx.view(model, use_running_average=True, raise_if_not_found=False), nnx.Param, ...
    )
    image = jax.ShapeDtypeStruct((1, side, side, 3), np.float32)
    found = pruning.cost(lambda p, s, x: nnx.merge(graph, p, s)(x), params, rest, image)
    assert abs(found.macs / 1e9 - macs) < (0.005 if side == 224 else 0.0006)
    assert found.parameters == parameters
    assert found.size == 4 * parameters
    assert found.timings == {}


def test_every_product_is_counted_by_hand():
    def apply(params, x):
        def layer(h, w):
            return jnp.tanh(h @ w), None

        h = jax.lax.conv_general_dilated(
            x, params["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )  # fmt: skip
        h = jax.lax.scan(layer, h.mean((1, 2)), params["w"])[0]
        fewer = params["v"][:3]
        return jax.lax.cond(h.sum() > 0, lambda h: h @ params["v"], lambda h: h[:, :3] @ fewer, h)

    params = {"k": np.ones((3, 3, 2, 6)), "w": np.ones((5, 6, 6)), "v": np.ones((6, 2))}
    found = pruning.cost(jax.jit(apply), params, np.ones((3, 4, 4, 4)))
    assert found.macs == 3 * (2 * 2 * 6 * 9 * 2 + 5 * 6 * 6 + 6 * 2)


def test_a_pruned_network_costs_less_by_the_product_of_its_widths():
    apply, params, x = prunable.network(
        0, (prunable.conv_norm, prunable.conv_norm, prunable.mean_head)
    )
    pruned = pruning.prune(apply, params, x, ratios=(0.5,))
    large, small = (pruning.cost(apply, p, x[:1]) for p in (params, pruned.params))
    assert large.macs == 16 * 9 * (2 * 6 + 6 * 6) + 6 * 3
    assert small.macs == 16 * 9 * (2 * 3 + 3 * 3) + 3 * 3


def test_calls_are_timed_at_every_batch_size():
    apply, params, x = prunable.model("vgg")
    found = pruning.cost(apply, params, x, batch_sizes=(1, 5)).timings
    assert set(found) == {1, 5}
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    for size, (milliseconds, rate, memory) in found.items():
        np.testing.assert_allclose(rate, 1e3 * size / milliseconds)
        assert milliseconds > 0
        assert memory >= weights + size * x[0].nbytes


def test_a_timing_is_the_median_of_the_calls(monkeypatch):
    lengths = iter(range(1, 100))
    now = [0.0, False]

    def clock():
        """A clock that measures 1, 4, 9, ... seconds for the first, second, third, ... call."""
        now[0] += next(lengths) ** 2 if now[1] else 0
        now[1] = not now[1]
        return now[0]

    monkeypatch.setattr(time, "perf_counter", clock)
    apply, params, x = prunable.model("mlp")
    (timing,) = pruning.cost(apply, params, x, batch_sizes=(2,)).timings.values()
    expected = np.median(np.arange(1, module.RUNS + 1) ** 2)
    np.testing.assert_allclose(timing.milliseconds, 1e3 * expected)


def test_memory_that_a_device_does_not_tell_is_zero(monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: None)
    apply, params, x = prunable.model("mlp")
    (timing,) = pruning.cost(apply, params, x, batch_sizes=(2,)).timings.values()
    assert timing.memory == 0


def test_an_empty_batch_and_an_apply_that_does_not_fit_are_refused():
    apply, params, x = prunable.model("mlp")
    with pytest.raises(ValueError, match="batch_sizes must be at least 1; got 0"):
        pruning.cost(apply, params, x, batch_sizes=(0,))
    with pytest.raises(
        TypeError, match=r"apply must be a function of params and the inputs \(here 0\); got"
    ):
        pruning.cost(apply, params)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("size", [16, np.int64(16)])
def test_one_batch_size_is_a_list_of_one(size: Any):
    with pytest.raises(TypeError, match=r"^batch_sizes must be a list, such as \[16\]; got 16$"):
        pruning.cost(
            lambda params, x: x @ params, np.ones((2, 3)), np.ones((1, 2)), batch_sizes=size
        )


# orders of branches, in which the most expensive branch `b` is first, in the middle or last
SWITCHES = {
    "first": ("b", "few", "none"),
    "middle": ("few", "b", "none"),
    "last": ("none", "few", "b"),
}


@pytest.mark.parametrize("place", SWITCHES)
def test_the_dearest_branch_counts_wherever_it_stands(place):
    """The most expensive branch multiplies 8 channels by a kernel for 3 outputs five times."""

    def apply(params, x):
        branches = {
            "b": lambda h: jax.lax.scan(lambda s, _: (s + h @ params["b"], None), s0, length=5)[0],
            "few": lambda h: h[:, :2] @ params["few"],
            "none": lambda h: jnp.zeros((4, 3)),
        }
        s0 = jnp.zeros((4, 3))
        h = jax.nn.relu(x @ params["a"])
        index = jnp.argmax(x[0])
        return jax.lax.switch(index, [branches[name] for name in SWITCHES[place]], h)

    params = {"a": np.ones((3, 8)), "b": np.ones((8, 3)), "few": np.ones((2, 3))}
    x = np.ones((4, 3))
    expected = 4 * 3 * 8 + 5 * 4 * 8 * 3
    assert pruning.cost(apply, params, x).macs == expected
    assert cost_at(apply, params, (), x)(()).macs == expected


def test_bytes_are_those_of_each_array_s_own_type():
    def apply(p, x):
        h = jax.nn.relu(x @ p["a"] + p["b"].astype(float)[None])
        return h @ p["c"].astype(float) * p["d"].astype(float)[None]

    params = {
        "a": jnp.ones((2, 8)),
        "b": jnp.ones(8, "bfloat16"),
        "c": jnp.ones((8, 3), "float32"),
        "d": jnp.ones(3, "int8"),
    }
    x = jnp.ones((1, 2))
    groups = pruning.coupled_channels(apply, params, x)
    at = cost_at(apply, params, groups, x)
    for n in (8, 5):
        found = at([n])
        assert (found.parameters, found.size) == (
            2 * n + n + 3 * n + 3,
            16 * n + 2 * n + 12 * n + 3,
        )
    assert pruning.cost(apply, params, x) == at([8])


def test_an_axis_may_have_channels_of_several_groups_and_of_none():
    def apply(p, x):
        parts = [jax.nn.relu(x @ p["a"]), x, jax.nn.relu(x @ p["b"])]
        return jnp.concatenate(parts, 1) @ p["c"]

    params, x = {"a": np.ones((2, 6)), "b": np.ones((2, 4)), "c": np.ones((12, 3))}, np.ones((1, 2))
    groups = pruning.coupled_channels(apply, params, x)
    at, first = cost_at(apply, params, groups, x), groups[0].positions[0].path == "a"
    for a, b in ((6, 4), (3, 4), (6, 1), (2, 3)):
        found = at((a, b) if first else (b, a))
        assert found.macs == found.parameters == 2 * (a + b) + 3 * (a + 2 + b)


def test_all_inputs_have_the_batch_size_and_memory_is_that_of_the_width():
    """The bytes of weights, inputs, results and hidden values at the given width are counted."""

    def apply(p, x, y):
        return jnp.tanh(x @ p["a"]) @ p["b"] + y

    params = {"a": np.ones((2, 4096)), "b": np.ones((4096, 2))}
    x, y = np.ones((3, 2)), np.ones((3, 2))
    groups = pruning.coupled_channels(apply, params, x, y)
    at = cost_at(apply, params, groups, x, y, batch_sizes=[2, 65])
    memory = {n: {k: t.memory for k, t in at([n]).timings.items()} for n in (4096, 1024)}
    for n, of_width in memory.items():
        for size, found in of_width.items():
            inputs = 8 * (2 * 2 * n + 3 * 2 * size)  # bytes of the weights, x, y and the result
            hidden = 8 * size * n
            assert inputs + hidden <= found <= inputs + 3 * hidden + 2**16
    whole = pruning.cost(apply, params, x, y, batch_sizes=[2, 65]).timings
    assert {k: t.memory for k, t in whole.items()} == memory[4096]


def test_of_branches_the_one_with_the_most_steps_counts_at_every_width():
    """A loop of five small products costs more than one large product, so its branch counts."""

    def apply(params, x):
        h = jnp.tanh(x @ params["a"])
        looped = lambda h: jax.lax.scan(lambda s, _: (s @ params["s"], None), h, None, length=5)[0]  # noqa: E731
        wide = lambda h: (h @ params["w"])[:, :6]  # noqa: E731
        return jax.lax.cond(x[0, 0] > 0, looped, wide, h) @ params["b"]

    shapes = {"a": (3, 6), "s": (6, 6), "w": (6, 20), "b": (6, 2)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    x = np.ones((4, 3))
    groups = pruning.coupled_channels(apply, params, x)
    at = pruning.channels.cost_at(apply, params, groups, x)
    assert at([g.size for g in groups]).macs == 4 * (3 * 6 + 5 * 6 * 6 + 6 * 2)
    assert pruning.cost(apply, params, x).macs == 4 * (3 * 6 + 5 * 6 * 6 + 6 * 2)


def test_a_loop_of_unknown_length_counts_once_and_its_condition_too():
    """A `while` loop counts as one step and one condition, in a scan of five steps five times."""

    def loop(params, h):
        def goes_on(state):
            return (state[0] @ params["c"]).sum() < 0

        return jax.lax.while_loop(goes_on, lambda s: (s[0] @ params["b"], s[1] + 1), (h, 0))[0]

    def apply(params, x):
        h = jax.nn.relu(x @ params["a"])
        h = jax.lax.scan(lambda h, _: (loop(params, h), None), loop(params, h), length=5)[0]
        return h @ params["c"]

    params = {"a": np.ones((3, 6)), "b": np.ones((6, 6)), "c": np.ones((6, 2))}
    x = np.ones((4, 3))
    expected = 4 * (3 * 6 + 6 * (6 * 6 + 6 * 2) + 6 * 2)
    assert pruning.cost(apply, params, x).macs == expected
    assert cost_at(apply, params, (), x)(()).macs == expected
