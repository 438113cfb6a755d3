"""Tests of every rule: removal is exact up to rounding, and reports name channels that are kept."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pruning import coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import check_program, resized
from tests.support.reasons import pinning

N = 8  # the number of channels of the layer `a`


class Case(NamedTuple):
    """A network of the dense layer `a`, the function `middle`, and the dense layer `b`.

    Attributes:
      middle: A function of the parameters and of x a, whose result `b` reads.
      sizes: The sizes of the groups, in any order.
      shapes: The shapes of additional parameters.
      out: The number of input channels of `b`.
      plain: Whether the network takes all sizes from its arrays.
    """

    middle: Callable[[dict, jax.Array], jax.Array]
    sizes: Sequence[int] = (N,)
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    out: int = N
    plain: bool = True


def network(case: Case) -> tuple[Callable[..., jax.Array], dict[str, np.ndarray], np.ndarray]:
    shapes = {"a": (4, N), "b": (case.out, 3), **case.shapes}
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}

    def apply(p, x):
        return case.middle(p, jnp.asarray(x @ p["a"])) @ p["b"]

    return apply, params, rng.normal(size=(5, 6, 4))


def kept(groups, seed, *, together):
    """Random masks. If `together`, each group keeps half of its channels."""
    rng = np.random.default_rng(seed)
    masks = []
    for group in groups:
        count = max(group.size // 2, 1) if together else rng.integers(1, group.size + 1)
        masks.append(rng.permutation(group.size) < count)
    return masks


def assert_exact(apply, params, x, *, plain):
    """Assert that the smaller network equals the masked network.

    If `plain`, also assert that `apply` runs the smaller network without `resized`.
    """
    groups = coupled_channels(apply, params, x)
    run = jax.jit(apply)
    for seed in range(2):
        keep = kept(groups, seed, together=plain)
        small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
        expected = run(masked, x)
        near = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
        near(jax.jit(resized(apply, groups, keep))(small, x), expected)
        if plain:
            check_program(apply, small, groups, keep, x)
            near(run(small, x), expected)


def whole(f: Callable[[jax.Array], jax.Array], **options: Any) -> Case:
    return Case(lambda p, h: f(h), **options)


def glu(h):
    one, two = jnp.split(h, 2, axis=-1)
    return jax.nn.sigmoid(one) * two


def sliced(h):
    half = h.shape[-1] // 2
    return jnp.exp(h[..., :half]) * h[..., half:]


def alternating(h):
    return jnp.exp(h[..., ::2]) * h[..., 1::2]


def chunks(h):
    """Three parts of the channels, the first two of which are multiplied."""
    one, two, three = jnp.split(h, [2, 4], -1)
    return jnp.concatenate([one * two, three], -1)


def shuffled(h, groups):
    return h.reshape(*h.shape[:-1], groups, -1).swapaxes(-1, -2).reshape(h.shape)


def shuffled_and_summed(h):
    """For heads of four channels: their channels in another order, and the sum of each head."""
    heads = h.reshape(*h.shape[:-1], -1, 4)
    return jnp.concatenate([heads.swapaxes(-1, -2).reshape(h.shape), heads.sum(-1)], -1)


def largest_of_pairs(h):
    """For each pair of neighbors, the larger one times its index, by a window over two arrays."""

    def larger(a, b):
        return tuple(jnp.where(a[0] >= b[0], x, y) for x, y in zip(a, b, strict=True))

    arrays, start = (h, lax.broadcasted_iota(h.dtype, h.shape, 1)), (-jnp.inf, 0.0)
    start = tuple(jnp.asarray(x, h.dtype) for x in start)
    return jnp.multiply(*lax.reduce_window(arrays, start, larger, (1, 2, 1), (1, 2, 1), "VALID"))


def looped(h):
    def small(carry):
        step, y = carry
        return (step < 5) & (jnp.abs(y[:, 0, :0]).sum() < 9)

    return lax.while_loop(small, lambda carry: (carry[0] + 1, 2 * carry[1]), (0, h))[1]


def over_time(step, start, x):
    """The last state of a scan over time, the second axis of `x`."""
    return lax.scan(lambda carry, now: (step(carry, now), None), start, x.swapaxes(0, 1))[0]


def while_over_time(step, start, x):
    x = x.swapaxes(0, 1)
    return lax.fori_loop(0, len(x), lambda i, carry: step(carry, x[i]), start)


def gates(count, width=4):
    shapes = {"x": N, "h": width, "n": 1}
    return {name: (n, count * width) for name, n in shapes.items()}


def recurrent(p, x, width=None):
    start = jnp.zeros((len(x), width or p["h"].shape[0]))
    return over_time(lambda h, x: jax.nn.sigmoid(x + h @ p["h"]), start, x)


def gated(p, x):
    """A GRU whose gates are slices of two products."""

    def step(h, x):
        r, z, n = jnp.split(x @ p["x"] + p["n"], 3, -1)
        s, y, m = jnp.split(h @ p["h"], 3, -1)
        z = jax.nn.sigmoid(z + y)
        return (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + s) * m) + z * h

    return over_time(step, jnp.zeros((len(x), p["h"].shape[0])), x)


def long_short(p, x, loop=over_time):
    """An LSTM whose gates are slices of one array."""

    def step(carry, x):
        c, h = carry
        gates = x @ p["x"] + h @ p["h"] + p["n"]
        n = gates.shape[-1] // 4
        i, f, g, o = (gates[:, k * n : (k + 1) * n] for k in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return c, jax.nn.sigmoid(o) * jnp.tanh(c)

    zeros = jnp.zeros((len(x), p["h"].shape[0]))
    return loop(step, (zeros, zeros), x)[1]


def averaged(h):
    mean = jax.vmap(lambda y: lax.pmean(jnp.exp(y), "i") + lax.psum(y, "i"), axis_name="i")
    return mean(h)


def standardized(w):
    w = w - w.mean(0, keepdims=True)
    return w * lax.rsqrt(jnp.square(w).mean(0, keepdims=True) + 1e-3)


def standardized_at_once(w):
    mean, square = w.mean(0, keepdims=True), jnp.square(w).mean(0, keepdims=True)
    return (w - mean) * lax.rsqrt(square - jnp.square(mean) + 1e-3)


def modulated(p, h):
    """A product with a different kernel for each sample, scaled to unit norm, as in StyleGAN2."""
    style = jax.nn.sigmoid(h[:, 0] @ p["s"])
    w = p["w"][None] * style[:, :, None]
    w = w * lax.rsqrt(jnp.square(w).sum(1, keepdims=True) + 1e-8)
    return jnp.cos(jnp.einsum("btc,bcd->btd", jnp.cos(h), w))


def modulated_towards_fixed(p, h):
    """A kernel that is normalized over its inputs, and whose outputs a softmax reads."""
    w = p["w"][None] * jax.nn.sigmoid(h[:, 0] @ p["s"])[:, :, None]
    w = w * lax.rsqrt(jnp.square(w).sum(1, keepdims=True) + 1e-8)
    w = w.swapaxes(0, 1).reshape(len(p["w"]), -1).reshape(len(p["w"]), 5, -1)
    return jax.nn.softmax(jnp.einsum("btc,cbd->btd", jnp.cos(h), w))


def attend(q, k, v, scale=0.5):
    shares = jax.nn.softmax(scale * jnp.einsum("bthd,bshd->bhts", q, k))
    return jnp.einsum("bhts,bshd->bthd", shares, v)


def heads(h):
    return h.reshape(5, 6, 2, 4)


def heads_by_reshape(p, h, sizes=(-1, 4)):
    """Attention with two heads of width 4, by a reshape."""
    q, k, v = ((h @ p[name]).reshape(5, 6, *sizes) for name in "qkv")
    return attend(q, k, v).reshape(5, 6, -1)


def heads_by_transposition(p, h):
    """Attention with two heads of width 4, whose axis comes before the axis of positions."""
    q, k, v = ((h @ p[name]).reshape(5, 6, -1, 4).transpose(0, 2, 1, 3) for name in "qkv")
    return (jax.nn.softmax(q @ k.swapaxes(2, 3)) @ v).transpose(0, 2, 1, 3).reshape(5, 6, -1)


def fused(p, h):
    q, k, v = jnp.moveaxis((h @ p["qkv"]).reshape(5, 6, 3, 2, 4), 2, 0)
    return attend(q, k, v).reshape(5, 6, -1)


def split_in_three(p, h):
    q, k, v = (y.reshape(5, 6, -1, 4) for y in jnp.split(h @ p["qkv"], 3, -1))
    return attend(q, k, v).reshape(5, 6, -1)


def grouped_queries(p, h):
    """Attention with two heads of keys, each of which is repeated for two heads of queries."""
    q, k, v = ((h @ p[name]).reshape(5, 6, -1, 2) for name in "qkv")
    return attend(q, jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)).reshape(5, 6, -1)


def groups_of_queries(p, h):
    """Grouped queries without repeated keys."""
    k, v = ((h @ p[name]).reshape(5, 6, -1, 2) for name in "kv")
    q = (h @ p["q"]).reshape(5, 6, -1, 2).reshape(5, 6, k.shape[2], -1, 2)
    shares = jax.nn.softmax(jnp.einsum("btgrd,bsgd->bgrts", q, k))
    return jnp.einsum("bgrts,bsgd->btgrd", shares, v).reshape(5, 6, -1)


def heads_of_kernels(p, h, scaled=False):
    """Attention as in Flax, with an axis of heads in kernels, and biases for queries and keys."""
    q, k = (jnp.einsum("btc,chd->bthd", h, p[name]) + p[f"{name}0"][None, None] for name in "qk")
    v = jnp.einsum("btc,chd->bthd", h, p["v"])
    y = attend(q, k, v, q.shape[-1] ** -0.5 if scaled else 0.5)
    return jnp.exp(jnp.einsum("bthd,hdc->btc", y, p["o"]))


KERNELS = dict.fromkeys("qkv", (N, 2, 4)) | {"o": (2, 4, 5), "q0": (2, 4), "k0": (2, 4)}


def maps(p, h):
    """A dense layer whose outputs are reshaped to a feature map, as in a generator of images."""
    y = jnp.exp((h[:, 0] @ p["w"]).reshape(5, 2, 2, -1))
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(y, p["k"], (1, 1), "SAME", dimension_numbers=numbers)
    return jnp.exp(y).reshape(5, 4, -1)


def embedded(p, h):
    """exp of the table row with the index of the largest channel; no channel of `h` is removed."""
    return jnp.exp(p["e"][jnp.argmax(h, -1)])


def beside_itself(h):
    one = jnp.exp(h.reshape(*h.shape, 1)).reshape(h.shape)
    h, y = lax.optimization_barrier((h, one.swapaxes(1, 2)))
    first, *_, last = jnp.unstack(y, axis=2)
    return h + (first * last)[:, None]


def windows(p, h):
    """A window along time that is read, multiplied by a kernel, and written at another index."""
    window = jnp.exp(lax.dynamic_slice_in_dim(h, 1, 3, 1)) @ p["w"]
    return lax.dynamic_update_slice_in_dim(h, window, 2, 1)


def branched(p, h):
    return lax.cond(p["t"][0] > 9, jnp.zeros_like, jnp.exp, h)


def convolved_over_groups_of_samples(p, h):
    numbers = ("NWC", "WIO", "NWC")
    options: Any = {"dimension_numbers": numbers, "batch_group_count": 2}
    return jnp.exp(lax.conv_general_dilated(h.swapaxes(0, 1), p["k"], (1,), "SAME", **options))


def steps_from_zeros(p, h, zeros=lambda h: jnp.zeros_like(h[:, 0])):
    """A recurrent layer, without a loop, whose first state is zero."""
    state = zeros(h)
    for t in range(3):
        state = jnp.tanh(h[:, t] + state @ p["w"])
    return state[:, None]


CUT: dict[str, Case] = {
    "transposed by a reshape": whole(lambda h: lax.reshape(h, (h.shape[-1], 30), (2, 1, 0)).T),
    "spectrum of positions": whole(lambda h: jnp.abs(jnp.fft.rfft(h, axis=1))),
    "stack": whole(lambda h: jnp.stack([h, jnp.exp(h)], 1).sum(1)),
    "tile": whole(lambda h: jnp.tile(h, (1, 1, 2)), out=2 * N),
    "barrier and an axis of one": whole(beside_itself),
    "branches": Case(branched, shapes={"t": (1,)}),
    "windows": Case(windows, shapes={"w": (N, N)}),
    "tile, another axis": whole(lambda h: jnp.tile(jnp.exp(h), (1, 3, 1))),
    "pmean and psum": whole(averaged),
    "while": whole(looped),
    "stop gradient of a weight": Case(
        lambda p, h: jnp.exp(h) @ lax.stop_gradient(p["w"]), (3, N), {"w": (N, 3)}, 3
    ),
    "window of pairs": whole(largest_of_pairs),
    "real and imaginary": whole(
        lambda h: (lax.complex(h, 2 * h) ** 2).real + lax.complex(h, h).imag
    ),
    "set": whole(lambda h: jnp.exp(h).at[:, 0].set(0.0)),
    "set to channels": whole(lambda h: jnp.zeros_like(h).at[:, 1].set(jnp.exp(h[:, 2]))),
    "add": whole(lambda h: h.at[:, 1].add(h[:, 2])),
    "gathered, and NaN if outside": whole(
        lambda h: self_product(h.at[:, jnp.arange(3)].get(mode="fill")), out=3
    ),
    "gathered, and a written NaN if outside": whole(
        lambda h: self_product(h.at[:, jnp.arange(3)].get(mode="fill", fill_value=np.nan)), out=3
    ),
    "class token": Case(
        lambda p, h: jnp.concatenate([jnp.tile(p["t"], (5, 1, 1)), h], 1), shapes={"t": (1, 1, N)}
    ),
    "split": whole(glu, sizes=(N // 2,), out=N // 2),
    "slice": whole(sliced, sizes=(N // 2,), out=N // 2),
    "every other": whole(alternating, sizes=(N // 2,), out=N // 2),
    "parts": whole(chunks, sizes=(2, 4), out=6, plain=False),
    "roll": whole(lambda h: h + jnp.roll(jnp.exp(h), h.shape[-1] // 2, -1), sizes=(4,)),
    "heads that are mixed": Case(
        lambda p, h: jnp.einsum("bthd,hk->btkd", jnp.exp(h).reshape(5, 6, -1, 4), p["w"]).reshape(
            5, 6, -1
        ),
        (2, 3),
        {"w": (2, 3)},
        out=12,
    ),
    "heads that are doubled 40 times": whole(
        lambda h: reduce(lambda y, _: y + y, range(40), h.reshape(5, 6, -1, 4)).reshape(5, 6, -1),
        sizes=(2,),
    ),
    "a reshaped number": whole(lambda h: h * jnp.full((2, 4), 3.0).reshape(1, 1, N), plain=False),
    "roll alone": whole(lambda h: jnp.roll(jnp.exp(h), 3, -1), plain=False),
    "simple recurrent": Case(recurrent, shapes={"h": (N, N)}),
    "written width": Case(partial(recurrent, width=N), shapes={"h": (N, N)}, plain=False),
    "gates of a GRU": Case(gated, (N, 4), gates(3), out=4),
    "gates of an LSTM": Case(long_short, (N, 4), gates(4), out=4),
    "while, over time": Case(
        partial(long_short, loop=while_over_time), (N, 4), gates(4), out=4, plain=False
    ),
    "merged LoRA": Case(
        lambda p, h: jnp.exp(jnp.exp(h) @ (p["w"] + p["r"] @ p["s"])),
        (N, 6, 2),
        {"w": (N, 6), "r": (N, 2), "s": (2, 6)},
        out=6,
    ),
    "low rank": Case(
        lambda p, h: jnp.exp(h) @ (p["r"] @ p["s"]), (N, 2, 6), {"r": (N, 2), "s": (2, 6)}, out=6
    ),
    "relu to six": whole(lambda h: self_product(jax.nn.relu6(h)), out=6),
    "silu by hand": whole(lambda h: self_product(h / (1 + jnp.exp(-h))), out=6),
    "a transposed divisor": whole(
        lambda h: self_product(h / jnp.cos(h.swapaxes(0, 1)).swapaxes(0, 1)), out=6
    ),
    "a divisor of branches": Case(
        lambda p, h: self_product(h / (-2 * lax.cond(p["t"][0] > 9, jnp.exp, jnp.cosh, h))),
        shapes={"t": (1,)},
        out=6,
    ),
    "zeros of another dtype": whole(
        lambda h: self_product(h + jnp.zeros_like(h, "float32").astype(h.dtype)), out=6
    ),
    "rows that no rule makes": Case(
        lambda p, h: (lax.top_k(p["t"], 6)[0][:, None] * h[0, 0][None]).reshape(1, -1),
        shapes={"t": (6,)},
        out=6 * N,
    ),
    "a maximum with -1": whole(lambda h: self_product(jnp.maximum(h, -1.0)), out=6),
    "relu of a weight": Case(
        lambda p, h: jnp.exp(h) @ jax.nn.relu(p["w"]), (N, 6), {"w": (N, 6)}, out=6
    ),
    "a divisor in the next weight": Case(
        lambda p, h: jnp.tanh(jnp.exp(h) @ (p["w"] / p["v"])) @ (p["u"] * p["v"].T),
        (N, 3),
        {"w": (N, 3), "v": (N, 3), "u": (3, N)},
    ),
    "signs": Case(
        lambda p, h: jnp.exp(h) @ (p["w"] * jnp.sign(p["w"])), (N, 6), {"w": (N, 6)}, out=6
    ),
    "standardized weights": Case(
        lambda p, h: jnp.exp(h @ standardized(p["w"])), (6,), {"w": (N, 6)}, out=6
    ),
    "standardized weights, the square of their mean": Case(
        lambda p, h: jnp.exp(jax.nn.relu(h) @ standardized_at_once(p["w"])),
        (N, 6),
        {"w": (N, 6)},
        out=6,
        plain=False,
    ),
    "modulated": Case(modulated, (N, 6), {"s": (N, N), "w": (N, 6)}, out=6),
    "modulated, then fixed": Case(modulated_towards_fixed, (N,), {"s": (N, N), "w": (N, 6)}, out=6),
    "heads": Case(heads_by_reshape, (N, 2), dict.fromkeys("qkv", (N, 8))),
    "heads before positions": Case(
        heads_by_transposition, (N, 2), dict.fromkeys("qkv", (N, 8)), plain=False
    ),
    "heads, their number": Case(
        partial(heads_by_reshape, sizes=(2, -1)), (N, 2), dict.fromkeys("qkv", (N, 8)), plain=False
    ),
    "heads of one kernel": Case(fused, (N, 2), {"qkv": (N, 24)}, plain=False),
    "heads of thirds": Case(split_in_three, (N, 2), {"qkv": (N, 24)}),
    "grouped queries": Case(grouped_queries, (N, 2), {"q": (N, 8), "k": (N, 4), "v": (N, 4)}),
    "groups of queries": Case(groups_of_queries, (N, 2), {"q": (N, 8), "k": (N, 4), "v": (N, 4)}),
    "kernels with heads": Case(heads_of_kernels, (N, 5, 2, 4, 4), KERNELS, out=5),
    "a scale of the width": Case(
        partial(heads_of_kernels, scaled=True), (N, 5, 2, 4, 4), KERNELS, out=5, plain=False
    ),
    "a layer of maps": Case(maps, (N, 3, 6), {"w": (N, 12), "k": (3, 3, 3, 6)}, out=6),
    "embedding": Case(embedded, (6,), {"e": (N, 6)}, out=6),
    "shuffle": whole(partial(shuffled, groups=2), sizes=(4,)),
    "a shuffle beside sums over heads": whole(shuffled_and_summed, sizes=(2,), out=N + 2),
    "a shuffle of more copies than channels": whole(
        lambda h: jnp.repeat(h, 10, -1).reshape(5, 6, -1, 10).swapaxes(2, 3).reshape(5, 6, -1),
        out=10 * N,
    ),
    "taken from each sample": whole(
        lambda h: jax.vmap(lambda y, i: y[i])(jnp.exp(h), jnp.arange(10).reshape(5, 2) % 6)
    ),
    "stacked by a scan of one step": whole(
        lambda h: lax.scan(lambda c, y: (c + y, jnp.exp(c + y)), h, h[None])[1][0]
    ),
    "steps from zeros": Case(steps_from_zeros, shapes={"w": (N, N)}),
    "steps from as many zeros as in the code": Case(
        partial(steps_from_zeros, zeros=lambda h: jnp.zeros((5, N))),
        shapes={"w": (N, N)},
        plain=False,
    ),
    "written into each sample": whole(
        lambda h: jax.vmap(lambda y, i: jnp.exp(y).at[i].set(y[0]))(h, jnp.arange(5))
    ),
}


# Only slow tests include these cases, because other cases also test loops, splits and reshapes.
REPEATED = ("gates of a GRU", "while, over time", "heads, their number", "heads of thirds")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in REPEATED else n for n in CUT]
)
def test_what_is_cut_is_exact(name):
    apply, params, x = network(CUT[name])
    groups = coupled_channels(apply, params, x)
    assert tuple(sorted(group.size for group in groups)) == tuple(sorted(CUT[name].sizes))
    assert_exact(apply, params, x, plain=CUT[name].plain)


@pytest.mark.parametrize(
    "name",
    [
        *("parts", "gates of an LSTM", "shuffle"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("modulated", "heads")),
    ],
)
def test_what_is_cut_is_pruned_in_two_steps(name):
    apply, params, x = network(CUT[name])
    pruned = prune(apply, params, x, ratios=(0.5, 0.75), fold=False, resize=True)
    expected = jax.jit(apply)(mask_channels(params, pruned.groups, pruned.keep), x)
    run = jax.jit(resized(apply, pruned.groups, pruned.keep))
    np.testing.assert_allclose(run(pruned.params, x), expected, rtol=1e-12, atol=1e-12)
    folded = prune(apply, params, x, ratios=(0.5, 0.75), resize=True)
    run = jax.jit(resized(apply, folded.groups, folded.keep))
    assert np.isfinite(run(folded.params, x)).all()


def conflicting(h):
    return jnp.einsum("btc,bsc->bts", h, h) + jnp.einsum("btc,bsc->bts", jnp.exp(1 / h), h)


def self_product(h):
    return jnp.einsum("btc,bsc->bts", h, h)


def maxima_of_nothing(h):
    """Maxima over padded windows. The first window has only padding, so −9 replaces −∞."""
    pads = [(0, 0), (2, 0), (0, 0)]
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 1), (1, 1, 1), pads)
    return self_product(jnp.maximum(h, -9.0))


def convolved_counts(p, h):
    """A division by a depthwise convolution of ones, which sums the kernel inside the image."""
    ones = jnp.ones_like(h)
    options = {"dimension_numbers": ("NWC", "WIO", "NWC"), "feature_group_count": N}
    return h / lax.conv_general_dilated(ones, jnp.exp(p["k"]), (1,), "SAME", **options)


KEPT: dict[str, tuple[Case, str]] = {
    "a depthwise convolution of ones": (
        Case(convolved_counts, (), {"k": (3, 1, N)}),
        "conv_general_dilated",
    ),
    "part of a stride": (whole(lambda h: h[..., 1:7:2], sizes=(), out=3), "slice"),
    "a stride that is no divisor": (whole(lambda h: h[..., ::3], sizes=(), out=3), "slice"),
    "a stride of windows": (
        whole(
            lambda h: lax.reduce_window(h, -jnp.inf, lax.max, (1,) * 3, (1, 1, 2), "VALID"),
            sizes=(),
            out=4,
        ),
        "reduce_window_max",
    ),
    "padding of windows": (
        whole(
            lambda h: lax.reduce_window(
                h, -9.0, lax.max, (1,) * 3, (1,) * 3, [(0, 0), (0, 0), (1, 0)]
            ),
            sizes=(),
            out=N + 1,
        ),
        "reduce_window",
    ),
    "sorted over channels": (whole(lambda h: lax.sort(h, dimension=2), sizes=()), "sort"),
    "sorted by another array": (
        whole(
            lambda h: self_product(lax.sort((h, jnp.exp(h)), dimension=1, num_keys=1)[1]),
            sizes=(),
            out=6,
        ),
        "dot_general",
    ),
    "stacked on what is not zero": (
        whole(lambda h: self_product(jnp.stack([h, jnp.cos(h)], 1).sum(1)), sizes=(), out=6),
        "dot_general",
    ),
    "a reshape of nothing": (
        whole(lambda h: h + h[:, :0].reshape(-1, N).sum(0)[None, None], sizes=()),
        "reshape",
    ),
    "a count of channels": (
        whole(lambda h: h * jnp.cumsum(jnp.ones(N))[None, None], sizes=()),
        "mul",
    ),
    "a product with ones": (whole(lambda h: h @ jnp.ones((N, 3)), sizes=(), out=3), "dot_general"),
    **{
        name: (
            Case(
                lambda p, h, by=by: (
                    self_product(h) + jnp.einsum("btc,bsc->bts", h / by(p["t"][0] > 9, h), h)
                ),
                (),
                {"t": (1,)},
                out=6,
            ),
            primitive,
        )
        for name, (primitive, by) in {
            "a divisor of two branches": (
                "dot_general",
                lambda t, h: lax.cond(t, lambda: h, lambda: jnp.exp(h)),
            ),
            "twice a divisor of two branches": (
                "dot_general",
                lambda t, h: 2.0 * lax.cond(t, lambda: h, lambda: jnp.exp(h)),
            ),
            "a divisor of two factors": (
                "div",
                lambda t, h: h * lax.cond(t, lambda: jnp.exp(h), lambda: jnp.exp(-h)),
            ),
            "a divisor plus zero": (
                "dot_general",
                lambda t, h: lax.cond(t, lambda: h, lambda: jnp.cos(h)) + 0.0,
            ),
        }.items()
    },
    "samples in groups": (
        Case(convolved_over_groups_of_samples, (), {"k": (3, N, 4)}, out=4),
        "conv_general_dilated",
    ),
    "unstacked channels": (
        whole(lambda h: jnp.add(*jnp.unstack(jnp.exp(h), axis=2)[:2])[..., None], sizes=(), out=1),
        "unstack",
    ),
    "zeros between channels": (
        whole(lambda h: lax.pad(h, 0.0, [(0, 0, 0)] * 2 + [(0, 0, 1)]), sizes=(), out=2 * N - 1),
        "pad",
    ),
    "cropped channels": (
        whole(lambda h: lax.pad(h, 0.0, [(0, 0, 0)] * 2 + [(-1, 0, 0)]), sizes=(), out=N - 1),
        "pad",
    ),
    "window of channels": (
        whole(lambda h: lax.dynamic_slice_in_dim(h, 1, 4, 2), sizes=(), out=4),
        "dynamic_slice",
    ),
    "window of channels written": (
        whole(lambda h: lax.dynamic_update_slice_in_dim(h, jnp.exp(h[..., 4:]), 1, 2), sizes=()),
        "dynamic_update_slice",
    ),
    "one channel": (whole(lambda h: jnp.exp(h).at[..., 0].set(0.0), sizes=()), "scatter"),
    "written at some places": (
        whole(
            lambda h: jnp.zeros((5, 6, 2 * N)).at[..., 2 * jnp.arange(N)].set(jnp.exp(h)),
            sizes=(),
            out=2 * N,
        ),
        "scatter",
    ),
    "norm": (
        whole(lambda h: h * lax.rsqrt(jnp.square(h).sum(-1, keepdims=True)), sizes=()),
        "reduce_sum",
    ),
    "products of what is not zero": (
        whole(lambda h: jnp.einsum("btc,bsc->bts", jnp.exp(h), jnp.cos(h)), sizes=(), out=6),
        "dot_general",
    ),
    "zero and a divisor": (whole(conflicting, sizes=(), out=6), "div"),
    "inputs of standardized weights": (
        Case(lambda p, h: jnp.exp(h) @ standardized(p["w"]), (6,), {"w": (N, 6)}, out=6),
        "reduce_sum",
    ),
    "as long as a sum": (
        whole(
            lambda h: lax.while_loop(lambda y: jnp.exp(y).sum() < 999, lambda y: y + 1, h), sizes=()
        ),
        "reduce_sum",
    ),
    "a part of one channel": (
        whole(lambda h: jnp.exp(h[..., :1]) * h[..., 1:], sizes=(N - 1,), out=N - 1),
        "slice",
    ),
    **{
        f"a part of one channel, {name}": (
            whole(lambda h, part=part: jnp.exp(part(h)) * h, sizes=(N - 1,)),
            primitive,
        )
        for name, (primitive, part) in {
            "the first of a split": ("split", lambda h: jnp.split(h, [1], -1)[0]),
            "the second of a split": ("split", lambda h: jnp.split(h, [2, 3], -1)[1]),
            "the last of a split": ("split", lambda h: jnp.split(h, [5, N - 1], -1)[2]),
            "an index": ("slice", lambda h: h[..., 4, None]),
        }.items()
    },
    "a divisor without eps": (
        Case(
            lambda p, h: h @ (p["w"] / jnp.sqrt(jnp.square(p["w"]).sum(1, keepdims=True))),
            (6,),
            {"w": (N, 6)},
            out=6,
        ),
        "div",
    ),
    "threes before heads": (
        Case(
            lambda p, h: attend(
                *jnp.moveaxis((h @ p["w"].reshape(N, -1)).reshape(5, 6, 3, 2, 4), 2, 0)
            ).reshape(5, 6, -1),
            (N, 2),
            {"w": (N, 3, 2, 4)},
        ),
        "reshape",
    ),
    "filled rows": (
        whole(
            lambda h: self_product(h.at[:, jnp.arange(4, 8)].get(mode="fill", fill_value=7.0)),
            sizes=(),
            out=4,
        ),
        "dot_general",
    ),
    "set to what is not zero": (
        whole(lambda h: self_product(h.at[:, 0].set(jnp.cos(h[:, 1]))), sizes=(), out=6),
        "dot_general",
    ),
    "set to one parameter": (
        Case(
            lambda p, h: self_product(h.at[:, 0].set(jnp.broadcast_to(p["t"], (5, N)))),
            (),
            {"t": (1,)},
            out=6,
        ),
        "dot_general",
    ),
    "applied in place": (
        whole(lambda h: self_product(h.at[:, 0].apply(jnp.cos)), sizes=(), out=6),
        "dot_general",
    ),
    "written in place": (
        whole(
            lambda h: self_product(lax.dynamic_update_slice_in_dim(h, jnp.cos(h[:, :2]), 1, 1)),
            sizes=(),
            out=6,
        ),
        "dot_general",
    ),
    "maxima of nothing": (whole(maxima_of_nothing, sizes=(), out=7), "dot_general"),
    "a maximum with 1": (
        whole(lambda h: self_product(jnp.maximum(h, 1.0)), sizes=(), out=6),
        "dot_general",
    ),
    "a minimum with -1": (
        whole(lambda h: self_product(jnp.minimum(h, -1.0)), sizes=(), out=6),
        "dot_general",
    ),
    "heads of what is kept": (
        Case(
            lambda p, h: (heads(jax.nn.softmax(h)) + heads(h @ p["w"])).reshape(5, 6, -1),
            (),
            {"w": (N, N)},
        ),
        "reduce_max",
    ),
    "one of two axes": (
        Case(
            lambda p, h: jnp.einsum("btc,chd->bthd", h, p["w"]).reshape(5, 6, -1),
            (N, 2),
            {"w": (N, 2, 4)},
        ),
        "reshape",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_a_rule_keeps_is_named(name):
    case, primitive = KEPT[name]
    apply, params, x = network(case)
    groups = coupled_channels(apply, params, x)
    assert tuple(sorted(group.size for group in groups)) == tuple(sorted(case.sizes))
    reports = pinning(apply, params, x)
    assert primitive in [report.primitive for report in reports]
    assert all("test_rules.py:" in report.line for report in reports)
    assert_exact(apply, params, x, plain=False)


def convolved_channels(p, h):
    """A convolution whose batch axis has the channels, followed by a sum over channels."""
    y = jnp.exp(h).transpose(2, 1, 0)
    y = lax.conv_general_dilated(y, p["k"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return y.sum(0)[None]


def outer_product(p, h):
    """An outer product of two layers' channels, times a constant that varies along both axes."""
    table = jnp.arange(1.0, 1 + 6 * N).reshape(N, 6)
    y = h[..., None] * (h @ p["w"])[:, :, None] * table[None, None]
    return jnp.einsum("btcd,cde->bte", y, p["v"])


def sums_of_states(h):
    """A loop whose state is zero at removed channels only before the first step."""
    return lax.while_loop(lambda y: y.sum() < 999, lambda y: y + 1, h)


# Networks of norms and constants, and the sizes of their groups with `resize=True`.
RESIZED: dict[str, Case] = {
    "layer norm": whole(
        lambda h: (
            (h - h.mean(-1, keepdims=True)) / jnp.sqrt(1 + jnp.square(h).sum(-1, keepdims=True))
        )
    ),
    "a count of channels": whole(lambda h: h * jnp.cumsum(jnp.ones(N))[None, None]),
    "a sum of what is 1": whole(lambda h: h / jnp.exp(h).sum(-1, keepdims=True)),
    "a sum of what is 1 in a call": whole(
        lambda h: h / jax.checkpoint(jnp.exp)(h).sum(-1, keepdims=True), sizes=()
    ),
    "a sum of different numbers": whole(
        lambda h: h / (jnp.exp(h) * jnp.arange(1.0, 1 + N)[None, None]).sum(-1, keepdims=True),
        sizes=(),
    ),
    "a sum in a call of what is 1": whole(
        lambda h: h / jax.checkpoint(lambda y: y.sum(-1, keepdims=True))(jnp.exp(h)), sizes=()
    ),
    "a sum over two axes": whole(lambda h: h / jnp.exp(h).sum((1, 2), keepdims=True)),
    "a sum of products": whole(
        lambda h: jnp.einsum("btc,bsc->cbts", jnp.exp(h), jnp.cos(h)).sum(0), out=6
    ),
    "a sum over two layers": Case(
        lambda p, h: h / jnp.exp(h[..., None] + (h @ p["w"])[:, :, None]).sum((-1, -2))[..., None],
        (N,),
        {"w": (N, 6)},
    ),
    "a constant along two layers": Case(
        outer_product, (N, 6, 4), {"w": (N, 6), "v": (N, 6, 4)}, out=4
    ),
    "a sum of convolved channels": Case(convolved_channels, (4,), {"k": (3, 5, 4)}, out=4),
    "a sum of a loop's results": whole(
        lambda h: (
            h / lax.scan(lambda y, _: (y, jnp.exp(y)), h, None, length=2)[1].sum((0, 3))[..., None]
        ),
        sizes=(),
    ),
    "as long as a sum": whole(sums_of_states, sizes=()),
}


@pytest.mark.parametrize("name", RESIZED)
def test_what_runs_resized_is_exact(name):
    """Removed channels are not zero after the activation, so they contribute to sums."""
    apply, params, x = network(RESIZED[name])
    groups = coupled_channels(apply, params, x, resize=True)
    assert tuple(sorted(group.size for group in groups)) == tuple(sorted(RESIZED[name].sizes))
    keep = kept(groups, 1, together=True)
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    found = resized(apply, groups, keep)(small, x)
    np.testing.assert_allclose(found, apply(masked, x), rtol=1e-12, atol=1e-12)
