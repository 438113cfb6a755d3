"""Residual streams: channels that a norm reads are removed, and means are over all channels."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pruning import coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import check_program, resized
from tests.support.architectures.streams import STREAMS
from tests.support.random_blocks.constants import CONSTANTS as TABLES, TAKEN
from tests.support.random_networks import WRONG, outcome, random_transformer
from tests.support.reasons import pinning
from tools.architecture_table import PAGE, compiled, cut
from tools.stream_table import HEADER, rows
from tools.tables import table_of

QUICK = ("GPT, scan and remat (Equinox)", "LLaMA, halves turned (a function)")
# In these models, no norm is over all channels.
WHOLE = ("group norm of two groups (Linen)", "batch norm (Linen)")


pytestmark = pytest.mark.usefixtures("promotion")


@pytest.mark.parametrize("name", QUICK)
def test_removed_is_masked(name):
    assert cut(STREAMS[name](np.float64), 0.5, resize=True).error <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.3, 0.5])
@pytest.mark.parametrize("name", STREAMS)
def test_removed_is_masked_in_float64(name, ratio):
    model = STREAMS[name](np.float64)
    assert cut(model, ratio, resize=True).error <= 1e-12
    groups = coupled_channels(model.apply, model.params, *model.inputs, resize=True)
    normed = [group.size for group in groups if group.normed]
    assert (8 in normed) == (name not in WHOLE)
    plain = coupled_channels(model.apply, model.params, *model.inputs)
    assert not any(group.normed for group in plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_removed_is_masked_in_float32_compiled(name):
    assert cut(STREAMS[name](np.float32), 0.5, compiled, resize=True).error <= 1e-5


@pytest.mark.slow
def test_the_page_has_the_table():
    """The table in the docs is current, except for its line numbers and rounding errors."""

    def plain(row):
        family, alone, whole, parameters, _, stays = row.split(" | ")
        return family, alone, whole, parameters, re.sub(r":\d+", "", stays)

    assert list(map(plain, table_of(PAGE, HEADER))) == list(map(plain, rows()))


def assert_transformer_cut_rightly(seed):
    found = outcome(random_transformer(seed), seed, resize=True)
    assert found.kind not in WRONG, found


@pytest.mark.parametrize("seed", range(2))
def test_random_transformers_are_cut_rightly(seed):
    assert_transformer_cut_rightly(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 103))
def test_many_random_transformers_are_cut_rightly(seed):
    assert_transformer_cut_rightly(seed)


PARAMS = {
    name: np.random.default_rng(i).normal(size=shape)
    for i, (name, shape) in enumerate(
        {"a": (4, 8), "scale": (8,), "bias": (8,), "b": (8, 3), "square": (8, 8)}.items()
    )
}
X = np.random.default_rng(9).normal(size=(5, 4))
KEEP = np.array([1, 0, 0, 1, 1, 0, 1, 0], bool)


def layer_norm(h, d=8):
    """A layer norm that divides by the constant d = 8, even if fewer channels remain."""
    centred = h - h.sum(-1, keepdims=True) / d
    return centred * jax.lax.rsqrt(jnp.square(centred).sum(-1, keepdims=True) / d + 1e-3)


def network(norm, p, x):
    return norm(x @ p["a"]) @ p["b"]


def test_a_layer_norm_is_the_one_of_the_whole_width():
    """The result equals a formula with the whole width d = 8 and the k = 4 remaining channels."""
    apply = partial(network, layer_norm)
    (group,) = coupled_channels(apply, PARAMS, X, resize=True)
    assert group.normed
    small = remove_channels(PARAMS, [group], [KEEP])
    h, d, k = X @ small["a"], 8, 4
    mean = h.sum(-1, keepdims=True) / d
    var = np.square(h - mean).sum(-1, keepdims=True) / d + (d - k) * np.square(mean) / d
    expected = (h - mean) / np.sqrt(var + 1e-3) @ small["b"]
    run = jax.jit(resized(apply, [group], [KEEP]))
    np.testing.assert_allclose(run(small, X), expected, rtol=1e-12)
    masked = apply(mask_channels(PARAMS, [group], [KEEP]), X)
    np.testing.assert_allclose(run(small, X), masked, rtol=1e-12)


def test_its_derivative_is_that_of_the_masked_network():
    apply = partial(network, layer_norm)
    groups = coupled_channels(apply, PARAMS, X, resize=True)
    small, masked = (f(PARAMS, groups, [KEEP]) for f in (remove_channels, mask_channels))
    total = lambda f: jax.jit(jax.grad(lambda p: jnp.square(f(p, X)).sum()))  # noqa: E731
    whole = remove_channels(total(apply)(masked), groups, [KEEP])
    found = total(resized(apply, groups, [KEEP]))(small)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10), found, whole)


def test_a_network_is_pruned_in_two_steps():
    apply = partial(network, layer_norm)
    pruned = prune(apply, PARAMS, X, ratios=(0.25, 0.5), resize=True)
    assert pruned.params["a"].shape == (4, 4)
    masked = jax.jit(apply)(mask_channels(PARAMS, pruned.groups, pruned.keep), X)
    run = jax.jit(resized(apply, pruned.groups, pruned.keep))
    np.testing.assert_allclose(run(pruned.params, X), masked, rtol=1e-12)
    with pytest.raises(ValueError, match=r"apply must have channels .*; reduce_sum needs all"):
        prune(apply, PARAMS, X, ratios=[0.5])


def test_a_written_width_is_not_enough_for_the_model_itself():
    """The smaller network divides by the whole width, but its sums lack the removed channels."""
    apply = partial(network, layer_norm)
    groups = coupled_channels(apply, PARAMS, X, resize=True)
    small = remove_channels(PARAMS, groups, [KEEP])
    with pytest.raises(ValueError, match=r"channels that are not zero .* of reduce_sum at .*layer"):
        check_program(apply, small, groups, [KEEP], X)
    assert coupled_channels(apply, PARAMS, X) == ()
    (report,) = pinning(apply, PARAMS, X)
    assert report.primitive == "reduce_sum"
    assert "layer_norm" in report.line
    assert pinning(apply, PARAMS, X, resize=True) == ()


def test_sums_of_what_is_zero_need_no_more():
    def apply(p, x):
        h = x @ p["a"]
        return h * jax.lax.rsqrt(jnp.square(h).sum(-1, keepdims=True) + 1) @ p["b"]

    groups = coupled_channels(apply, PARAMS, X, resize=True)
    small = remove_channels(PARAMS, groups, [KEEP])
    check_program(apply, small, groups, [KEEP], X)
    masked = apply(mask_channels(PARAMS, groups, [KEEP]), X)
    np.testing.assert_allclose(apply(small, X), masked, rtol=1e-12)


def outer(h):
    return h[:, :, None] * h[:, None]


# Functions whose channels cannot be removed, and the primitive that the report names.
STAY = {
    "softmax": (lambda h: jax.nn.softmax(h, -1), "reduce_max"),
    "numbers of channels": (lambda h: layer_norm(h + np.arange(8.0)[None]), "reduce_sum"),
    "sorted": (lambda h: layer_norm(jnp.sort(h, -1)), "sort"),
    "running": (lambda h: layer_norm(jnp.cumsum(h, -1)), "cumsum"),
    "two axes": (lambda h: h * jnp.cos(outer(h)).sum((1, 2))[:, None], "reduce_sum"),
    "a product that is not zero": (
        lambda h: h * jnp.einsum("ij,ij->i", jnp.cos(h), h + 1)[:, None],
        "dot_general",
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_what_must_stay_stays(name):
    change, primitive = STAY[name]
    apply = partial(network, change)
    assert coupled_channels(apply, PARAMS, X, resize=True) == ()
    reports = pinning(apply, PARAMS, X, resize=True)
    assert [primitive] == [report.primitive for report in reports][:1]


# The smaller network computes these norms exactly, although they sum terms that are not zero at
# removed channels.
NOT_ZERO = {
    "a part that is gone": lambda h: (
        layer_norm(h) / jax.nn.sigmoid(h[:, 1:3]).sum(-1, keepdims=True)
    ),
    "sigmoids": lambda h: h / jax.nn.sigmoid(h).sum(-1, keepdims=True),
    "exponents": lambda h: layer_norm(jnp.exp(h)),
    "one of two axes": lambda h: layer_norm(h * jnp.cos(outer(h)).sum(1)),
    "a turned axis": lambda h: layer_norm(jnp.cos(h).T.T),
    "positions of a product": lambda h: layer_norm(
        jnp.exp(jnp.einsum("nc,ns->ncs", jnp.cos(h), X).swapaxes(1, 2))
    ),
    "several positions": lambda h: layer_norm(jnp.exp(X @ X.T @ jnp.tanh(h) + X[:, :1])),
}
TABLE = np.random.default_rng(8).normal(size=8)


def over_a_constant(h):
    return jax.lax.scan(lambda c, x: (c, x * TABLE), 0.0, h)[1]


def turned(h):
    """Pairs of neighboring channels, rotated by angles that depend on the width."""
    angles = jnp.arange(4.0)[None] / h.shape[-1]
    a, b = h[:, ::2], h[:, 1::2]
    pairs = a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)
    return jnp.stack(pairs, -1).reshape(h.shape)


# These constants vary along channels. The smaller network has only their elements at kept channels.
CONSTANTS = {
    "factor": lambda h: h * TABLE[None],
    "under a norm": lambda h: layer_norm(h * TABLE[None]),
    "divisor": lambda h: h / (jnp.square(TABLE) + jnp.arange(1.0, 9))[None],
    "addend": lambda h: jnp.tanh(h + TABLE[None]),
    "mask": lambda h: jnp.where(jnp.arange(8)[None] % 3 == 0, h, jnp.exp(h)),
    "exponent": lambda h: jnp.exp(h) ** TABLE[None],
    "of two axes": lambda h: h @ (jnp.ones((8, 8)) * jnp.eye(8) * (h.T @ h)),
    "in a loop": over_a_constant,
    "turned": lambda h: jnp.exp(turned(h)),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_cut_with_the_channels(name):
    apply = partial(network, CONSTANTS[name])
    assert coupled_channels(apply, PARAMS, X) == ()
    (group,) = coupled_channels(apply, PARAMS, X, resize=True)
    assert group.normed
    assert group.size == (4 if name == "turned" else 8)
    keep = [KEEP[: group.size]]
    small, masked = (f(PARAMS, [group], keep) for f in (remove_channels, mask_channels))
    run = resized(apply, [group], keep)
    np.testing.assert_allclose(run(small, X), apply(masked, X), rtol=1e-12)


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("name", TABLES)
def test_a_norm_over_constants_is_refused_or_exact(name, taken):
    """If a constant that varies along channels precedes a norm, removal is exact or forbidden."""

    def apply(p, x):
        return layer_norm(TAKEN[taken](x @ p["a"], TABLES[name](5, 8))) @ p["b"]

    groups = coupled_channels(apply, PARAMS, X, resize=True)
    assert bool(groups) == (taken in ("multiplied", "dividing", "choosing"))
    keep = [KEEP[: group.size] for group in groups]
    small, masked = (f(PARAMS, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)
    np.testing.assert_allclose(run(small, X), apply(masked, X), rtol=1e-12)


POWERS = {
    "a number": lambda h, p: h**p,
    "an array": lambda h, p: jnp.power(h, jnp.asarray(p)),
    "an array of the shape": lambda h, p: jnp.power(h, jnp.full_like(h, p)),
    "an array of one element": lambda h, p: jnp.power(h, jnp.full(1, p).reshape(1, 1).squeeze()),
    "in jit": lambda h, p: jax.jit(jnp.power)(h, p),
}


@pytest.mark.parametrize("power", [3.0, 2.0, 1.0, 0.5, 0.0, -0.5, -2.0])
@pytest.mark.parametrize("form", POWERS)
def test_powers_keep_zero_above_zero(form, power):
    """Channels under a power can be removed exactly if the exponent is not negative.

    If the exponent is 0, each removed channel adds 1 to the sum. The derivative of a root is
    infinite at masked channels, so the masked network is differentiated with another root.
    """

    def safe(h, p):
        """h to the power p, where a square root has derivative zero at zero."""
        of = POWERS[form]
        return jnp.where(h > 0, of(jnp.where(h > 0, h, 1), p), 0) if p == 0.5 else of(h, p)

    def apply(p, x, power_of=POWERS[form]):
        h = x @ p["a"]
        return h / (1 + power_of(jnp.abs(h), power).sum(-1, keepdims=True)) @ p["b"]

    groups = coupled_channels(apply, PARAMS, X, resize=True)
    assert [group.size for group in groups] == ([8] if power >= 0 else [])
    keep = [KEEP for _ in groups]
    small, masked = (f(PARAMS, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)
    np.testing.assert_allclose(run(small, X), apply(masked, X), rtol=1e-10)
    found = jax.grad(lambda p: run(p, X).sum())(small)
    expected = jax.grad(lambda p: apply(p, X, safe).sum())(masked)
    expected = remove_channels(expected, groups, keep)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10), found, expected)


def attention(p, x):
    """Attention with one head, in which neighbors of queries and keys are rotated as pairs."""
    q, k = turned(x @ p["q"]), turned(x @ p["k"])
    return jax.nn.softmax(q @ k.T / 8**0.5) @ x


def test_queries_and_keys_that_are_turned_are_cut_by_pairs():
    params = {"q": PARAMS["a"], "k": PARAMS["a"][::-1]}
    (group,) = coupled_channels(attention, params, X, resize=True)
    assert {(p.path, p.axis, p.indices.shape) for p in group.positions} == {
        ("q", 1, (4, 2)),
        ("k", 1, (4, 2)),
    }
    small, masked = (f(params, [group], [KEEP[:4]]) for f in (remove_channels, mask_channels))
    assert small["q"].shape == (4, 4)
    run = resized(attention, [group], [KEEP[:4]])
    np.testing.assert_allclose(run(small, X), attention(masked, X), rtol=1e-12)


@pytest.mark.parametrize("name", NOT_ZERO)
def test_what_is_not_zero_is_counted(name):
    apply = partial(network, NOT_ZERO[name])
    groups = coupled_channels(apply, PARAMS, X, resize=True)
    assert [group.size for group in groups] == [8]
    small, masked = (f(PARAMS, groups, [KEEP]) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, [KEEP])
    np.testing.assert_allclose(run(small, X), apply(masked, X), rtol=1e-12)
