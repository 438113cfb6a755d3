"""Channels that an elementwise primitive combines with a number are removed exactly, or kept.

A sum without a kernel then reads the channels. Therefore a channel can be removed only if the
primitive maps zero to zero.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pruning import coupled_channels, mask_channels, remove_channels

NUMBERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
WITH_ONE = {
    "add": lax.add,
    "subtract": lax.sub,
    "subtract from": lambda h, c: c - h,
    "maximum": lax.max,
    "minimum": lax.min,
    "multiply": lax.mul,
    "divide": lambda h, c: h / (c or 3.0),
    "remainder": lambda h, c: lax.rem(h, jnp.full_like(h, c or 3.0)),
    "power": lambda h, c: jnp.abs(h) ** abs(c),
    "power of a number": lambda h, c: (abs(c) + 1.0) ** h,
    "arctangent": lax.atan2,
    "arctangent of a number": lambda h, c: lax.atan2(jnp.full_like(h, c), h),
    "next": lambda h, c: lax.nextafter(h, jnp.full_like(h, c)),
    "selected": lambda h, c: jnp.where(h > c, h, 0.0),
    "else a number": lambda h, c: jnp.where(h > 0.3, h, c),
    "at most": lambda h, c: (h <= c).astype(h.dtype),
    "heaviside": lambda h, c: h * (h > c).astype(h.dtype) + (h >= c).astype(h.dtype),
}
WITH_TWO = {
    "clamp": lambda h, low, high: lax.clamp(low, h, high),
    "hard tanh": lambda h, low, high: jnp.minimum(jnp.maximum(h, low), high),
    "of minima": lambda h, low, high: jnp.maximum(jnp.minimum(h, high), low),
    "shifted relu": lambda h, low, high: jax.nn.relu(h - low) - high,
}
ACTIVATIONS = (
    *(jax.nn.relu, jax.nn.relu6, jax.nn.elu, jax.nn.selu, jax.nn.celu, jax.nn.gelu, jax.nn.silu),
    *(jax.nn.mish, jax.nn.softplus, jax.nn.soft_sign, jax.nn.sigmoid, jax.nn.log_sigmoid),
    *(jax.nn.hard_tanh, jax.nn.hard_sigmoid, jax.nn.hard_silu, jax.nn.leaky_relu),
    *(jax.nn.squareplus, jax.nn.sparse_plus, jax.nn.sparse_sigmoid, jax.nn.identity),
)


DIVISORS = {  # functions that are zero at h = 0
    "one minus an exponential": lambda h: -jnp.exp(-jnp.abs(h)) + 1.0,
    "one minus a cosine": lambda h: -jnp.cos(h) + 1.0,
    "a number that goes and comes": lambda h: (jnp.abs(h) - 1.0) + 1.0,
    "logarithm of a sigmoid": lambda h: jnp.log(jax.nn.sigmoid(jnp.abs(h)) + 0.5),
    "magnitude": jnp.abs,
}


def by_product(h, kernel):
    return h @ kernel


def by_sum(h, kernel):
    return jnp.einsum("btc,bsc->bts", h, h) @ kernel  # the sum over channels has no kernel


def is_cut(f, read=by_sum):
    """Whether the channels that `f` reads can be removed. If so, check that removal is exact."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(8 if read is by_product else 6, 3))
    params = {"a": rng.normal(size=(4, 8)), "b": kernel}
    x = rng.normal(size=(5, 6, 4))

    def apply(p, x):
        return read(f(jnp.asarray(x @ p["a"])), p["b"])

    groups = coupled_channels(apply, params, x)
    if not groups:
        return False
    keep = [np.arange(8) % 3 > 0]
    small, masked = (g(params, groups, keep) for g in (remove_channels, mask_channels))
    expected = apply(masked, x)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(apply(small, x), expected, rtol=1e-12, atol=1e-12)
    return True


@pytest.mark.parametrize("name", WITH_ONE)
def test_channels_below_a_primitive_with_a_number_are_cut_exactly_or_kept(name):
    for number in NUMBERS:
        is_cut(lambda h, c=number: WITH_ONE[name](h, c))


@pytest.mark.parametrize("name", WITH_TWO)
def test_channels_below_two_limits_are_cut_exactly_or_kept(name):
    for low, high in itertools.combinations_with_replacement(NUMBERS, 2):
        is_cut(lambda h, low=low, high=high: WITH_TWO[name](h, low, high))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda f: f.__name__)
def test_channels_below_an_activation_are_cut_exactly_or_kept(activation):
    is_cut(activation)


def test_what_is_zero_at_zero_is_cut():
    cut = [
        *(lambda h, c=c: jnp.maximum(h, c) for c in (-2.0, -0.5, 0.0)),
        *(lambda h, c=c: jnp.minimum(h, c) for c in (0.0, 0.5, 2.0)),
        *(jax.nn.relu, jax.nn.relu6, jax.nn.silu, jnp.tanh, lambda h: h * 2, lambda h: h / 2),
    ]
    assert all(map(is_cut, cut))


@pytest.mark.parametrize("divisor", DIVISORS)
def test_a_divisor_that_is_zero_at_zero_is_never_made_zero(divisor):
    is_cut(lambda h: h / DIVISORS[divisor](h), by_sum)
    assert is_cut(lambda h: h / DIVISORS[divisor](h), by_product)


@pytest.mark.parametrize("divisor", [lambda h: 1 + jnp.exp(-h), lambda h: 2 - jnp.exp(-jnp.abs(h))])
def test_a_divisor_that_is_a_number_at_zero_lets_channels_go(divisor):
    assert is_cut(lambda h: h / divisor(h))
