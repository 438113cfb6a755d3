"""All functions that read programs also read JAX's next formats of calls, remat and scans."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxnorm.models import CifarResNet
from pruning import cost, coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import (
    check_program,
    cost_at,
    fold_batch_norms,
    fold_constants,
    least_squares,
    merge_channels,
    resized,
    wanda_scores,
)

EACH = ("jax_custom_jvp3", "jax_custom_vjp3", "jax_remat3", "jax_scan3")
NEXT = {**{flag.removeprefix("jax_"): (flag,) for flag in EACH}, "all": EACH}
OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12)
pytestmark = pytest.mark.skipif(OLD, reason="this JAX has not all of them yet")
RNG = np.random.default_rng(0)
SHAPES = {"a": (4, 8), "bias": (8,), "gain": (8,), "c": (8, 8), "b": (8, 3), "o": (3,)}
PARAMS = {name: jnp.asarray(RNG.normal(size=shape)) for name, shape in SHAPES.items()}
X = jnp.asarray(RNG.normal(size=(16, 4)))
KEEP = [np.arange(8) % 3 > 0]


@jax.custom_vjp
def straight(x):
    return jnp.round(4 * x) / 4


straight.defvjp(lambda x: (straight(x), None), lambda _, g: (3 * g,))


def calls(p, x):
    """A network with nested calls, custom derivative rules and a checkpoint, but without loops."""
    h = jax.nn.relu((x @ p["a"] + p["bias"][None]) * p["gain"][None])
    h = jax.checkpoint(lambda h: h + jax.nn.silu(straight(h) @ p["c"]))(h)
    return h @ p["b"] + p["o"][None]


def looped(p, x):
    h = jax.nn.relu(x @ p["a"] + p["bias"][None])
    layer = jax.checkpoint(lambda h, w: (h + jax.nn.gelu(h @ w), None))
    return jax.lax.scan(layer, h, jnp.stack([p["c"], p["c"].T]))[0] @ p["b"]


def cut(apply):
    groups = coupled_channels(apply, PARAMS, X)
    return groups, *(f(PARAMS, groups, KEEP) for f in (remove_channels, mask_channels))


def positions(apply):
    return {f"{p.path} {p.axis}": p.indices for p in cut(apply)[0][0].positions}


def values(apply):
    groups, small, masked = cut(apply)
    check_program(apply, small, groups, KEEP, X)
    run = resized(apply, groups, KEEP)
    return [f(p, X) for f, p in ((apply, small), (run, small), (apply, masked))]


def gradient(apply):
    groups, small, masked = cut(apply)
    total = lambda f: jax.jit(jax.grad(lambda p: jnp.square(f(p, X)).sum()))  # noqa: E731
    whole = remove_channels(total(apply)(masked), groups, KEEP)
    return total(resized(apply, groups, KEEP))(small), whole


def tangent(apply):
    """The tangents of a resized network and of the masked network, both with a `custom_jvp`."""
    apply = partial(lambda f, p, x: f(p, x), lambda p, x: jax.nn.silu(x @ p["a"]) @ p["b"])
    groups, small, masked = cut(apply)
    run = resized(apply, groups, KEEP)
    return jax.jvp(lambda p: run(p, X), (small,), (small,)), jax.jvp(
        lambda p: apply(p, X), (masked,), (masked,)
    )


def folding(apply):
    groups, *_ = cut(apply)
    run, arrays = fold_batch_norms(calls, PARAMS, X)
    return fold_constants(apply, PARAMS, groups, KEEP, X), arrays, jax.jit(run)(arrays, X)


def repair(apply):
    groups, *_ = cut(apply)
    repaired = least_squares(apply, PARAMS, groups, KEEP, [(X[:8],), (X[8:],)])
    return repaired, merge_channels(apply, PARAMS, groups, KEEP, inputs=(X,))


def counts(apply):
    groups, *_ = cut(apply)
    scores = wanda_scores(PARAMS, groups, apply=apply, inputs=[X])
    return scores, cost(apply, PARAMS, X).macs, cost_at(apply, PARAMS, groups, X)([5]).macs


def pruned(apply):
    return prune(apply, PARAMS, X, ratios=[0.25, 0.5]).params


ACTIONS = (positions, values, gradient, tangent, folding, repair, counts, pruned)
LOOPED = (positions, values, gradient)
CASES = {f"{f.__name__}": (f, calls) for f in ACTIONS}
CASES |= {f"{f.__name__} of a loop": (f, looped) for f in LOOPED}

# Reasons why JAX itself does not support some cases if a flag is set.
GRADIENT_OF_SCAN = "JAX cannot yet differentiate its next scan"
COMPILED_SCAN = "JAX's next scan gives different numbers with and without jit"
NOT_YET = {}
for name in ("scan3", "all"):
    NOT_YET |= {(name, case): GRADIENT_OF_SCAN for case in ("gradient of a loop", "a gradient")}
    NOT_YET[name, "a compiled scan"] = COMPILED_SCAN


@pytest.fixture
def flags(request):
    for flag in request.param:
        jax.config.update(flag, True)
    yield
    for flag in request.param:
        jax.config.update(flag, False)


def parameters(cases):
    found = []
    for name, flags in NEXT.items():
        for case in cases:
            reason = NOT_YET.get((name, case))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            found.append(pytest.param(flags, case, marks=marks, id=f"{name}-{case}"))
    return found


@pytest.mark.parametrize(("flags", "case"), parameters(CASES), indirect=["flags"])
def test_it_is_what_it_is_today(flags, case):
    function, apply = CASES[case]
    found = function(apply)
    for flag in EACH:
        jax.config.update(flag, False)
    near = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10)
    jax.tree.map(near, found, function(apply))


@pytest.mark.parametrize("flags", NEXT.values(), ids=NEXT, indirect=True)
def test_a_residual_network_keeps_its_groups(flags):
    model = CifarResNet(20, classes=10, rngs=nnx.Rngs(0))
    graph, state = nnx.split(nnx.view(model, use_running_average=True))
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), "float32")
    apply = lambda s, x: nnx.merge(graph, s)(x)  # noqa: E731
    assert [g.size for g in coupled_channels(apply, state, x)] == [16] * 4 + [32] * 3 + [64] * 3


def steps(x):
    weights = jnp.stack([x, x.T])
    return jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), jnp.ones((2, 3)), weights)[0]


JAX_ALONE = {
    "a gradient": lambda x: jax.grad(lambda x: steps(x).sum())(x),
    "a compiled scan": lambda x: np.testing.assert_allclose(jax.jit(steps)(x), steps(x)),
}


@pytest.mark.parametrize(("flags", "case"), parameters(JAX_ALONE), indirect=["flags"])
def test_jax_itself_can(flags, case):
    """If this test fails, JAX itself cannot run the case, which then belongs to `NOT_YET`."""
    JAX_ALONE[case](PARAMS["a"][:3, :3])
