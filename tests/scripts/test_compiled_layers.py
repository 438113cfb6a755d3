"""Rows of compiled layers and of the compiled block, from made-up measurements."""

import itertools
import json
import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec, SingleDeviceSharding

import jaxnorm
from experiments.compiled import (
    block as compiled_block,
    layers as compiled_layers,
    normalizers as compiled_normalizers,
)
from experiments.compiled.compile_only import Measured
from experiments.compiled.layers import LAYERS, layer_rows, limits
from experiments.compiled.traffic import Collective

PAGE = Path(__file__).parents[2] / "docs/results/compiled/results.json"
SHAPES = ((2, 4, 4, 3), (8, 5))

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module")
def committed():
    return json.loads(PAGE.read_text(encoding="utf-8"))["targets"]


@pytest.fixture
def programs(monkeypatch):
    """The arguments and traced result of each call of a fake `measure`, whose costs increase."""
    traced: list[tuple[Any, Any]] = []

    def measure(program, *arguments):
        traced.append((arguments, jax.eval_shape(program, *arguments)))
        i = len(traced) - 1
        found = [Collective("all-reduce", ("f32",), 8.0)] * (i % 2 + 1)
        return Measured(1e6 * (i + 1), 500 * i, 0, i, Counter(), 0, found, 0.5)

    for module in (compiled_layers, compiled_block, compiled_normalizers):
        monkeypatch.setattr(module, "measure", measure)
    return traced


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_every_layer_writes_the_dtype_that_it_reads_and_has_statistics_in_float32(name, mode):
    params, given = compiled_layers.parameters(name, 5)
    x = jax.ShapeDtypeStruct((8, 5), "bfloat16")
    y, running = jax.eval_shape(lambda p, r, x: LAYERS[name](p, r, x, mode), params, given, x)
    assert y.dtype == x.dtype
    assert [statistic.dtype for statistic in running] == ["float32", "float32"]


def test_every_layer_is_measured_forward_and_backward_at_every_size(programs):
    sharding = SingleDeviceSharding(jax.devices()[1])
    rows = list(layer_rows("v5e", sharding, SHAPES, ("bfloat16", "float32")))
    assert [(r["dtype"], r["shape"], r["mode"], r["layer"]) for r in rows] == [
        (dtype, shape, mode, name)
        for dtype in ("bfloat16", "float32")
        for shape in SHAPES
        for mode in ("training", "inference")
        for name in LAYERS
    ]
    for i, (row, (arguments, results)) in enumerate(zip(rows, programs, strict=True)):
        x = arguments[2]
        assert (x.shape, x.dtype) == (row["shape"], row["dtype"])
        assert {leaf.sharding for leaf in jax.tree.leaves(arguments)} == {sharding}
        assert ("alpha" in arguments[0]) == row["layer"].startswith("unitized")
        n = x.size * x.dtype.itemsize
        first = i - i % len(LAYERS)  # index of Flax's layer in the same group of rows
        assert row["traffic"] == 1e6 * (i + 1) / n
        assert row["ratio_to_flax"] == (i + 1) / (first + 1)
        assert row["temporary"] == 500 * (i - first) / n
        assert (row["kernels"], row["seconds"]) == (i, 0.5)
        assert row["limits"].keys() == {"traffic", "temporary"}
        if row["mode"] == "inference":
            assert (results.shape, results.dtype) == (x.shape, x.dtype)
            continue
        y, (gradients, dx), running = results
        assert [(a.shape, a.dtype) for a in (y, dx)] == 2 * [(x.shape, x.dtype)]
        assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, arguments[0])
        assert [a.shape for a in running] == 2 * [x.shape[-1:]]


def holds_back_the_cotangent(step, *arguments):
    """Check that the output and its cotangent pass one optimization barrier.

    In a network, the cotangent of an output is computed only after the output.
    """
    (barrier,) = (
        e
        for e in jax.make_jaxpr(step)(*arguments).eqns
        if e.primitive.name == "optimization_barrier"
    )
    shapes = [variable.aval.shape for variable in barrier.invars]
    assert shapes == 2 * [arguments[-1].shape]


def test_every_normalizer_is_measured_forward_and_backward_at_every_size(programs, monkeypatch):
    sharding = SingleDeviceSharding(jax.devices()[1])
    monkeypatch.setattr(compiled_normalizers, "SHAPES", SHAPES)
    rows = list(compiled_normalizers.rows(sharding))
    norms = compiled_normalizers.NORMS
    assert [(r["shape"], r["normalizer"]) for r in rows] == [*itertools.product(SHAPES, norms)]
    for i, (row, (arguments, results)) in enumerate(zip(rows, programs, strict=True)):
        x = arguments[-1]
        assert (x.shape, x.dtype) == (row["shape"], jnp.bfloat16)
        assert {leaf.sharding for leaf in jax.tree.leaves(arguments)} == {sharding}
        n = 2 * x.size
        assert (row["traffic"], row["temporary"]) == (1e6 * (i + 1) / n, 500 * i / n)
        assert (row["kernels"], row["seconds"]) == (i, 0.5)
        y, (gradients, dx), new = results
        assert [a.shape for a in (y, dx)] == 2 * [x.shape]
        for before, after in ((arguments[0], gradients), (arguments[1], new)):
            assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, before)


def test_the_backward_pass_of_a_normalizer_follows_its_forward_pass():
    model = compiled_normalizers.NORMS["DyT"](3, rngs=nnx.Rngs(0))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    x = jax.ShapeDtypeStruct((8, 3), jnp.bfloat16)
    holds_back_the_cotangent(partial(compiled_normalizers.training, graph), params, rest, x, x)


@pytest.mark.parametrize("name", LAYERS)
def test_the_backward_pass_of_a_layer_follows_its_forward_pass(name):
    params, running = compiled_layers.parameters(name, 3)
    x = jax.ShapeDtypeStruct((8, 3), jnp.float32)
    step = partial(compiled_layers.training, LAYERS[name])
    holds_back_the_cotangent(step, params, running, x, x)


def test_limits_and_floors_are_those_of_the_committed_page(committed):
    for target, tables in committed.items():
        for row in tables["layers"]:
            name, shape, mode = row["layer"], tuple(row["shape"]), row["mode"]
            assert limits(target, name, shape, row["dtype"], mode)._asdict() == row["limits"]
            assert compiled_layers.floor(name, shape, mode) == row["floor"]
        assert {tuple(row["shape"]) for row in tables["layers"]} == {*compiled_layers.SHAPES}
        assert {row["dtype"] for row in tables["layers"]} == {*compiled_layers.DTYPES}
    for row in committed["v5e"]["bottleneck"]:
        assert compiled_block.NORMS[row["layer"]][1]._asdict() == row["limits"]
        assert tuple(row["shape"]) == compiled_block.SHAPE


def test_limits_of_a_gpu_are_its_own():
    found = [
        limits("h100", name, shape, "bfloat16", "training")
        for name, shape in (
            ("BatchNorm", (256, 112, 112, 64)),
            ("unitized, Eq. 9", (256, 112, 112, 64)),
            ("unitized, Eq. 9", (8192, 4096)),
            ("unitized, Eq. 9", (256, 1024)),
        )
    ]
    assert found == [(0.9, 0.1), (0.95, 0.1), (1.45, 1.0), (1.7, 1.0)]


def test_small_vectors_of_batch_norm_have_no_limit():
    assert limits("v5e", "BatchNorm", (256, 1024), "float32", "training") == (None, None)
    assert limits("v5e", "unitized, Eq. 9", (4, 4), "float32", "training") == (None, None)
    for name in ("Flax", "BatchNorm"):
        assert limits("h100", name, (8192, 4096), "float32", "inference") == (None, None)


def test_the_batch_of_collectives_is_sharded_and_the_rest_replicated(programs, committed):
    rows = list(compiled_layers.collective_rows(jax.devices()[:4]))
    assert [(r["layer"], r["devices"]) for r in rows] == 2 * [(name, 4) for name in LAYERS]
    measured = [(row["layer"], tuple(row["shape"])) for row in committed["v5e"]["collectives"]]
    assert [(row["layer"], row["shape"]) for row in rows] == measured
    for row, ((params, running, x), _) in zip(rows, programs, strict=True):
        assert (x.shape, x.dtype) == (row["shape"], jnp.bfloat16)
        assert x.sharding.spec == PartitionSpec("data")
        assert x.sharding.mesh.devices.tolist() == jax.devices()[:4]
        leaves = jax.tree.leaves((params, running))
        assert all(leaf.sharding.spec == PartitionSpec() for leaf in leaves)
        assert {leaf.shape for leaf in leaves} == {x.shape[-1:]}
    # The fake `measure` returns one collective for Flax's layer. For our layers, it alternately
    # returns one collective and two.
    assert [len(row["collectives"]) for row in rows] == 4 * [1, 2]
    assert [row["as_few_as_flax"] for row in rows] == 4 * [True, False]
    assert rows[1]["collectives"][0] == {"op": "all-reduce", "dtypes": ("f32",), "bytes": 8.0}


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "Flax"])
def test_a_layer_is_the_public_function_and_its_running_statistics_follow(name, key):
    x = 1 + jax.random.normal(key, (6, 3))
    params = {"scale": jnp.full(3, 2.0), "bias": jnp.ones(3), "alpha": jnp.full(3, 0.3)}
    normalize: Any = jaxnorm.unitized_batch_norm
    if name == "BatchNorm":
        normalize = jaxnorm.batch_norm
        del params["alpha"]
    elif name.endswith("Eq. 9"):
        normalize = partial(normalize, factor=jaxnorm.bounded)
    running = jnp.zeros(3), jnp.ones(3)
    forward = jax.jit(partial(compiled_layers.forward, LAYERS[name]))
    y, (mean, var) = forward(params, running, x)
    expected, statistics = jax.jit(normalize)(x, **params)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    kept = compiled_layers.MOMENTUM
    np.testing.assert_allclose(mean, (1 - kept) * statistics.mean, rtol=1e-5)
    np.testing.assert_allclose(var, kept + (1 - kept) * statistics.var, rtol=1e-5)


def test_rows_of_the_block_are_beside_flax_s(monkeypatch):
    sharding, asked = SingleDeviceSharding(jax.devices()[0]), []
    n = 2 * math.prod(compiled_block.SHAPE)  # a bfloat16 has 2 bytes

    def measure_step(norm, where):
        asked.append((norm, where))
        i = len(asked)
        return Measured(4e6 * i, i * n, 0, i, Counter(), 0, [], 0.5)

    monkeypatch.setattr(compiled_block, "measure_step", measure_step)
    rows = list(compiled_block.block_rows(sharding))
    layers = nnx.BatchNorm, jaxnorm.nnx.BatchNorm, jaxnorm.nnx.UnitizedBatchNorm
    assert asked == [(layer, sharding) for layer in layers]
    assert [row["megabytes"] for row in rows] == [4, 8, 12]
    assert [row["ratio_to_flax"] for row in rows] == [1, 2, 3]
    assert [row["temporary"] for row in rows] == [0, 1, 2]
    assert [row["kernels"] for row in rows] == [1, 2, 3]
    assert [row["holds"] for row in rows] == [None, False, False]
    assert {row["seconds"] for row in rows} == {0.5}


def test_a_step_of_the_block_is_one_of_sgd(monkeypatch, key):
    """The second block of a small network replaces the bottleneck of a ResNet-50."""
    shape, found = (2, 4, 4, 8), {}

    class Block(nnx.Module):
        def __init__(self, norm):
            self.norm, self.scale = norm(8, rngs=nnx.Rngs(0)), nnx.Param(jnp.float32(2))

        def __call__(self, x):
            return x + self.norm(x) * self.scale[...]

    def measure(step, *arguments):
        found["arguments"], found["step"] = arguments, step
        return "measured"

    class Network:
        def __init__(self, depth, *, classes, norm, rngs):
            assert (depth, classes) == (50, 1000)
            self.blocks = [None, Block(norm)]

    monkeypatch.setattr(jaxnorm.models, "ResNet", Network)
    monkeypatch.setattr(compiled_block, "SHAPE", shape)
    monkeypatch.setattr(compiled_block, "measure", measure)
    sharding = SingleDeviceSharding(jax.devices()[0])
    assert compiled_block.measure_step(nnx.BatchNorm, sharding) == "measured"
    params, statistics, x, dy = found["arguments"]
    assert (x.shape, x.dtype, dy.shape, dy.dtype) == 2 * (shape, jnp.bfloat16)
    assert {leaf.sharding for leaf in jax.tree.leaves(found["arguments"])} == {sharding}
    block = Block(partial(nnx.BatchNorm, dtype=jnp.bfloat16))
    graph, params, statistics = nnx.split(block, nnx.Param, ...)
    x, dy = jax.random.normal(key, (2, *shape), jnp.bfloat16)
    y, dx, new, new_statistics = jax.jit(found["step"])(params, statistics, x, dy)

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params, statistics, copy=True)(x) * dy).astype(jnp.float32)

    gradient, expected_dx = jax.jit(jax.grad(loss, (0, 1)))(params, x)
    # Values are sums of 32 bfloat16 numbers.
    close = partial(np.testing.assert_allclose, rtol=0.05, atol=0.05)
    as_float32 = lambda tree: jax.tree.map(lambda a: np.asarray(a, np.float32), tree)  # noqa: E731
    jax.tree.map(
        close,
        as_float32(new),
        as_float32(
            jax.tree.map(lambda p, g: p - compiled_block.LEARNING_RATE * g, params, gradient)
        ),
    )
    close(as_float32(dx), as_float32(expected_dx))
    close(as_float32(y), as_float32(block(x)))
    jax.tree.map(close, as_float32(new_statistics), as_float32(nnx.state(block, nnx.BatchStat)))
    assert y.dtype == dx.dtype == jnp.bfloat16
    holds_back_the_cotangent(found["step"], params, statistics, x, dy)
    assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {np.dtype(np.float32)}
