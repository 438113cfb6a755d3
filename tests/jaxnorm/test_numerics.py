import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxnorm import internal
from jaxnorm.internal import CentralMoments, _numerics


@pytest.mark.parametrize("square", [0.0, 4.0])
def test_the_square_root_has_a_finite_gradient_which_is_zero_at_zero(square):
    value, gradient = jax.value_and_grad(_numerics.safe_sqrt)(square)
    assert value == square**0.5
    assert gradient == (0.25 if square else 0)


def test_the_square_root_of_what_has_none_is_nan():
    assert np.isnan(_numerics.safe_sqrt(jnp.array([-1.0, jnp.nan]))).all()


@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30])
def test_norms_in_any_unit_of_float32(unit):
    """Norms of rows and of columns, including rows with zeros, ∞ and NaN."""
    x = np.array([[3.0, 4.0], [0.0, 0.0], [-12.0, 5.0]], np.float32) * np.float32(unit)
    rows, columns = (internal.norm(jnp.asarray(x), axis) for axis in (-1, 0))
    np.testing.assert_allclose(rows / np.float32(unit), [[5], [0], [13]], rtol=1e-6)
    np.testing.assert_allclose(columns / np.float32(unit), [[153**0.5, 41**0.5]], rtol=1e-6)
    odd = internal.norm(jnp.array([[math.inf, 1.0], [math.nan, 1.0], [math.inf, math.nan]]))
    np.testing.assert_array_equal(odd[:, 0], [math.inf, math.nan, math.nan])


def test_a_unit_is_the_largest_element_within_a_64th_of_the_largest_float():
    top = float(np.finfo(np.float32).max)
    largest = jnp.array([0.0, 7.0, top / 64, top / 2, math.inf, math.nan], "float32")
    found = internal.unit_of(largest)
    expected = [1, 7, top / 64, top / 64, math.nan, math.nan]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert jax.grad(internal.unit_of)(7.0) == 0


def test_inverse_roots_are_1_without_a_positive_square():
    value, gradient = jax.vmap(jax.value_and_grad(_numerics.inverse_root))(
        jnp.array([0.0, -3.0, 4.0, math.nan])
    )
    np.testing.assert_allclose(value, [1, 1, 0.5, math.nan])
    np.testing.assert_allclose(gradient[:3], [0, 0, -1 / 16])


@pytest.mark.parametrize("dims", [1, 2, 3, 50, 10**6])
def test_means_and_variances_of_chi_variables(dims):
    chi = scipy.stats.chi(dims)
    np.testing.assert_allclose(internal.chi_mean(dims), chi.mean(), rtol=1e-13)
    # A series of half of the variance of chi, up to order 1/dims².
    series = 0.25 - 1 / (16 * dims) - 1 / (32 * dims**2)
    expected = series if dims > 10**5 else chi.var() / 2
    np.testing.assert_allclose(internal.chi_defect(dims), expected, rtol=1e-11)


@pytest.mark.parametrize(("n", "m"), [(3, 8), (0, 8), (3, 0), (0, 0)])
def test_central_moments_of_a_union(n, m):
    """Merging an empty set changes no moment, whatever mean the empty set has."""

    def central(x):
        count, x = len(x), x if len(x) else np.full((1, 2), 1e9)
        parts = [((x - x.mean(0)) ** k).mean(0) for k in (2, 3, 4)]
        return CentralMoments(*map(jnp.asarray, (1.0 * count, x.mean(0), *parts)))

    x = np.random.default_rng(0).gamma(2.0, 3.0, (11, 2)) + 5
    first, second = x[:n], x[11 - m :]
    found = internal.merge_central_moments(central(first), central(second))
    expected = central(np.concatenate([first, second]))
    for part, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, right, rtol=1e-12)


def test_centering_subtracts_the_mean_of_the_named_axes():
    x = np.random.default_rng(0).normal(3, 5, (4, 3, 2))
    for axis, axes in ((0, 0), (-1, 2), ((0, -2), (0, 1)), ([2, 0], (0, 2))):
        found = internal.center(jnp.asarray(x), axis)
        np.testing.assert_allclose(found, x - x.mean(axes, keepdims=True), atol=1e-14)
    assert (internal.center(jnp.full((7, 2), 0.1), 0) == 0).all()
    with pytest.raises(ValueError, match=r"one sample; got shape \(0, 3\), axis -2"):
        internal.center(jnp.ones((0, 3)), -2)


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        *((name, None, name) for name in ("bfloat16", "float16", "float32")),
        *((name, name, name) for name in ("bfloat16", "float16", "float32")),
        ("float16", "bfloat16", "float32"),  # neither dtype has all numbers of the other dtype
        ("bfloat16", "float16", "float32"),
        ("float16", "float32", "float32"),
        ("bfloat16", "float64", "float64"),
        ("float32", "float64", "float64"),
        ("float32", "bfloat16", "float32"),
        ("float64", "float16", "float64"),
    ],
)
def test_inputs_are_precise_enough_for_the_dtype_of_the_result(given, wanted, expected):
    found = internal.promote_to(jnp.asarray([1.0, 1 / 3]).astype(given), wanted)
    assert found.dtype == expected
    np.testing.assert_array_equal(found, jnp.asarray([1.0, 1 / 3]).astype(given).astype(expected))


def test_promotion_is_to_at_least_float32():
    for dtype, wide in (("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")):
        assert internal.promote_to_float32(jnp.ones(2, dtype)).dtype == wide
        assert internal.floating(jnp.ones(2, dtype)).dtype == dtype
    assert internal.floating(3).dtype == jnp.zeros(()).dtype


NAN, INF = math.nan, math.inf
ANY: Any = internal


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            partial(ANY.check_range, name="b", highest=2.0),
            [0, 2, 0.0, jnp.array(2.0), np.array([1.0])],
            {
                "b must lie in [0, 2.0]; got -0.5": -0.5,
                "b must lie in [0, 2.0]; got 2.5": 2.5,
                "b must lie in [0, 2.0]; got nan": NAN,
                "b must be a number; got '1'": "1",
                "b must be a number; got True": True,
                "b must be one number; got shape (2,)": np.ones(2),
                "b must be real; got complex128": np.complex128(1),
            },
        ),
        (
            partial(ANY.check_eps, name="b"),
            [0, 0.0, 1e-5],
            {
                "b must lie in [0, inf]; got -1": -1,
                "b must be finite; got inf": INF,
                "b must be finite; got a larger int": 10**400,
            },
        ),
        (
            partial(ANY.check_positive, name="b"),
            [1, 1e-300],
            {
                "b must be positive; got 0": 0,
                "b must be positive; got nan": NAN,
                "b must be finite; got inf": INF,
            },
        ),
        (
            lambda x: internal.check_whole(b=x),
            [0, -3, np.int32(4)],
            {
                "b must be an int; got 2.0": 2.0,
                "b must be an int; got False": False,
                "b must be an int; got None": None,
            },
        ),
        (
            lambda axis: internal.check_axes(tuple(axis), (4, 3), axis),
            [(0,), (-1, 0), [1, -2]],
            {
                "axis must be an int or a tuple of them; got (0, 1.0)": (0, 1.0),
                "axis must name axes of an array of shape (4, 3); got ()": (),
                "axis must name axes of an array of shape (4, 3); got (2,)": (2,),
                "axis must name axes of an array of shape (4, 3); got (0, -3)": (0, -3),
                "axis must name each axis once; got (-1, 1) for shape (4, 3)": (-1, 1),
            },
        ),
        (
            partial(ANY.check_fits, name="b"),
            [0, -(10**308), -INF, NAN],
            {
                "b must fit a float; got a number of 401 digits": 10**400,
                "b must fit a float; got a number of 402 digits": -(10**400),
            },
        ),
        (
            lambda x: internal.check_flags(b=x),
            [True, False, np.bool_(True)],
            {"b must be True or False; got 1": 1, "b must be True or False; got None": None},
        ),
        (
            partial(ANY.check_dtype, name="b"),
            ["bfloat16", jnp.float32, np.dtype("float64")],
            {
                "b must be a floating dtype, such as jnp.bfloat16; got 'int8'": "int8",
                "b must be a floating dtype, such as jnp.bfloat16; got 'bool'": "bool",
                "b must be a floating dtype, such as jnp.bfloat16; got 'uint32'": "uint32",
                "b must be a floating dtype, such as jnp.bfloat16; got 'complex64'": "complex64",
                "b must be a floating dtype, such as jnp.bfloat16; got 'half a float'": (
                    "half a float"
                ),
            },
        ),
        (
            partial(ANY.check_function, name="b", example="jnp.tanh"),
            [len, jnp.tanh],
            {
                "b must be a function, such as jnp.tanh; got 'tanh'": "tanh",
                "b must be a function, such as jnp.tanh; got None": None,
                "b must be a function, such as jnp.tanh; got list": [len],
            },
        ),
        (
            partial(ANY.check_finite, name="b"),
            [jnp.ones(2), jnp.zeros(0)],
            {"b must be finite; 2 of 3 elements are not": jnp.array([INF, 1.0, NAN])},
        ),
        (
            partial(ANY.check_array, name="b"),
            [jnp.ones(2), np.float32(3), np.ones(2, int)],
            {
                "b must be an array; got float": 1.0,
                "b must be an array; got ShapeDtypeStruct": jax.ShapeDtypeStruct((2,), "float32"),
                "b must hold numbers; got object": np.array([None]),
                "b must have this machine's byte order; got >f4: convert by b.astype('float32')": (
                    np.ones(2, ">f4")
                ),
            },
        ),
    ],
    ids=lambda x: getattr(getattr(x, "func", x), "__name__", ""),
)
def test_a_check_takes_what_is_right_and_names_what_is_wrong(check, right, wrong):
    for x in right:
        check(x)
    for message, x in wrong.items():
        with pytest.raises((TypeError, ValueError)) as raised:
            check(x)
        assert str(raised.value) == message


def test_checked_numbers_are_floats_and_arrays_stay_arrays():
    for check in (internal.check_eps, internal.check_positive):
        found = check(3, "b")
        assert (found, type(found)) == (3.0, float)
        one = jnp.array(3.0)
        assert check(one, "b") is one
        # Traced values are not checked.
        assert jax.jit(lambda x, check=check: check(x, "b"))(-1.0) == -1


@pytest.mark.parametrize(("axis", "axes"), [(0, (0,)), (-1, (2,)), ((0, -1), (0, 2)), ([-2], (1,))])
def test_axes_are_counted_from_the_front(axis, axes):
    assert internal.axis_tuple(jnp.zeros((2, 3, 4)), axis) == axes


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_a_row_does_not_depend_on_other_rows(shape, dtype):
    row = np.random.default_rng(0).integers(-9, 9, shape[1:])
    for index in (0, 2):
        x = np.full(shape, [math.nan, math.inf][index // 2])
        x[index] = row
        found = jax.jit(internal.row_at)(jnp.asarray(x, dtype), index)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, row)
