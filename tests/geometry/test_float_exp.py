from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from geometry.tree._float_exp import FloatExp, add, at_exponent, multiply, renormalize, top_exponent

numbers = st.tuples(st.floats(-8, 8, width=16), st.integers(-30, 30))


def exact(x):
    exponents = np.broadcast_to(x.exponent, x.mantissa.shape)
    return [
        Fraction(float(m)) * Fraction(2) ** int(e) if m else 0  # a zero has a huge exponent
        for m, e in zip(np.ravel(x.mantissa), np.ravel(exponents), strict=True)
    ]


def array(pairs):
    mantissas, exponents = zip(*pairs, strict=True)
    return FloatExp(jnp.array(mantissas), jnp.array(exponents, jnp.int32))


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=3, max_size=3), st.lists(numbers, min_size=3, max_size=3))
def test_products_and_sums_are_those_of_fractions(first, second):
    a, b = array(first), array(second)
    pairs = list(zip(exact(a), exact(b), strict=True))
    assert exact(jax.jit(multiply)(a, b)) == [x * y for x, y in pairs]
    # If the exponents of two numbers differ by 66, their exact sum does not fit into one float64.
    total, expected = exact(jax.jit(add)(a, b)), [x + y for x, y in pairs]
    largest = max(map(abs, [*exact(a), *exact(b)]))
    assert all(abs(x - y) <= largest / 2**48 for x, y in zip(total, expected, strict=True))
    assert exact(jax.jit(renormalize)(a)) == exact(a)


def test_a_renormalized_array_has_its_largest_mantissa_in_one_half_to_one():
    a = renormalize(FloatExp(jnp.array([3.0, -80.0]), jnp.array(5, jnp.int32)))
    assert a.mantissa.tolist() == [3 / 128, -0.625]
    assert a.exponent == 12
    rows = FloatExp(jnp.array([[1.0, 8.0], [4.0, 0.0]]), jnp.zeros((1, 2), jnp.int32))
    columns = renormalize(rows, axis=0, where=jnp.array([[True, False]]))
    assert columns.mantissa.tolist() == [[0.125, 8.0], [0.5, 0.0]]
    assert columns.exponent.tolist() == [[3, 0]]


def test_zeros_of_any_exponent_leave_a_sum_unchanged():
    a = FloatExp(jnp.array([0.75, 0.0]), jnp.array([-100_000, 90_000], jnp.int32))
    zeros = FloatExp(jnp.zeros(2), jnp.array(10**9, jnp.int32))
    assert top_exponent(a) == -100_000
    total = add(zeros, a)
    assert total.mantissa.tolist() == [0.75, 0.0]
    assert total.exponent == -100_000
    assert (add(zeros, zeros).mantissa == 0).all()
    assert at_exponent(a, top_exponent(a) + 2).tolist() == [0.1875, 0.0]
    of_sum = jax.grad(lambda m: add(zeros, a._replace(mantissa=m)).mantissa.sum())
    assert jnp.isfinite(of_sum(a.mantissa)).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_gradients_take_exponents_as_constants(dtype):
    def value(x):
        a = FloatExp(x, jnp.array(3, jnp.int32))
        return at_exponent(renormalize(add(a, multiply(a, a))), jnp.array(12, jnp.int32)).sum()

    x = jnp.array([0.5, 2.0], dtype)
    gradient = jax.grad(value)(x)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, (8 + 2 * 64 * x) / 2**12, rtol=1e-6)
