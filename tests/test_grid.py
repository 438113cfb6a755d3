"""Calls all public functions of arrays with dtypes, sizes and values that often cause mistakes.

A call must either raise an error of this library, whose message is one sentence, or return a right
result. The result must be the same with and without `jit`. If all arguments are finite, the result
must have no NaN, unless the docstring of the function mentions NaN.
"""

import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnorm
from tests.support.numpy_programs import evaluated
from tests.support.public_functions import NUMERICAL, example

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unchecked")]
functions = pytest.mark.parametrize(
    "function", NUMERICAL, ids=lambda f: f"{f.__module__}.{f.__name__}"
)


def first(value):
    """A function that replaces the first element of an array by `value`."""
    return lambda x: x.at[(0,) * x.ndim].set(value) if x.size else x


def part(rows, columns):
    """A function that cuts an array to its first `rows`, and a matrix to its first `columns`."""

    def change(x):
        x = x[:rows] if x.ndim else x
        return x[..., :columns] if x.ndim > 1 else x

    return change


VALUES = {
    "as they are": lambda x: x,
    "large": lambda x: x * jnp.asarray(1e30, x.dtype),
    "small": lambda x: x * jnp.asarray(1e-30, x.dtype),
    "zeros": jnp.zeros_like,
    "ties": lambda x: jnp.full_like(x, 0.3),
    "one NaN": first(jnp.nan),
    "one infinity": first(jnp.inf),
}
SIZES = {
    "no rows": part(0, None),
    "no columns": part(None, 0),
    "nothing": part(0, 0),
    "one row": part(1, None),
    "one column": part(None, 1),
    "one number": part(1, 1),
}
# The variances overflow, so skewness and kurtosis depend on the order of operations.
WITHOUT_MEANING = {(jaxnorm.merge_moments, "large")}
TOLERANCES = {"float32": 2e-3, "float64": 1e-9, "bfloat16": 2e-2}


def outcome(call, arguments):
    """The arrays of the result of a call, or the message of the error that the call raises."""
    try:
        return [np.asarray(leaf, float) for leaf in jax.tree.leaves(call(*arguments))]
    except (ValueError, TypeError) as error:
        return str(error)


def has_nan(leaves):
    return any(np.isnan(leaf).any() for leaf in leaves)


def differs(found, expected, tolerance, smallest=0.0):
    """Whether arrays differ by more than the tolerance times their largest expected element."""
    if isinstance(expected, str):
        # An eager call raises this error. A compiled program does not check values.
        return False
    if isinstance(found, str):
        return True
    for a, b in zip(found, expected, strict=True):
        finite = np.isfinite(a) & np.isfinite(b)
        scale = np.abs(b[finite]).max(initial=0)
        if (np.abs(a[finite] - b[finite]) > tolerance * scale + smallest).any():
            return True
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return True
    return False


def fault(function, found, arguments):
    """A description of the fault of an outcome, or an empty string."""
    if isinstance(found, str):
        return "" if re.search(r"\bmust\b", found) and "\n" not in found else f"says {found[:200]}"
    finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(arguments))
    words = inspect.getdoc(function) or ""
    if finite and has_nan(found) and not re.search(r"\bNaN\b", words):
        return "NaN of finite arguments"
    return ""


@functions
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_values_of_any_size_give_a_result_or_a_sentence(function, dtype):
    arguments, call = example(function, dtype)
    program, faults = jax.jit(call), {}
    for name, change in VALUES.items():
        changed = jax.tree.map(change, arguments)
        found, alone = outcome(program, changed), outcome(call, changed)
        faults[name] = fault(function, found, changed) or fault(function, alone, changed)
        has_meaning = (function, name) not in WITHOUT_MEANING
        bounds = TOLERANCES[dtype], float(jnp.finfo(dtype).tiny)
        if has_meaning and not faults[name] and differs(found, alone, *bounds):
            faults[name] = "compiled it is another"
    assert not {name: said for name, said in faults.items() if said}


@functions
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_arrays_of_no_and_of_one_element_give_a_result_or_a_sentence(function, dtype):
    arguments, call = example(function, dtype)
    faults = {}
    for name, change in SIZES.items():
        changed = jax.tree.map(change, arguments)
        try:
            jax.eval_shape(call, *changed)
        except (ValueError, TypeError) as error:
            found = str(error)
        else:
            found = outcome(partial(evaluated, call), changed)
        faults[name] = fault(function, found, changed)
    assert not {name: said for name, said in faults.items() if said}


@functions
def test_the_flags_that_look_for_errors_find_none(function):
    arguments, call = example(function, "float32")
    expected = outcome(call, arguments)
    with jax.debug_nans(True):
        assert not differs(outcome(call, arguments), expected, 1e-5)
    with jax.disable_jit():
        assert not differs(outcome(call, arguments), expected, 1e-3)
    with jax.enable_checks(True), jax.checking_leaks():
        assert not differs(outcome(jax.jit(call), arguments), expected, 1e-3)


@functions
def test_derivatives_forward_are_those_backward(function):
    """Forward and reverse mode give the same derivative of a weighted sum of all results."""
    arguments, call = example(function)
    leaves, tree = jax.tree.flatten(arguments)
    results = jax.tree.leaves(jax.eval_shape(call, *arguments))
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in results):
        pytest.skip("its result is an order, a count or a mask")

    def total(leaves):
        found = jax.tree.leaves(call(*jax.tree.unflatten(tree, leaves)))
        return sum(
            ((i + 1) * jnp.sin(y)).sum()
            for i, y in enumerate(found)
            if jnp.issubdtype(y.dtype, jnp.floating)
        )

    rng = np.random.default_rng(0)
    along = [jnp.asarray(rng.normal(size=leaf.shape)) for leaf in leaves]
    forward = jax.jit(lambda x: jax.jvp(total, (x,), (along,))[1])(leaves)
    gradient = jax.jit(jax.grad(total))(leaves)
    backward = sum(float((g * d).sum()) for g, d in zip(gradient, along, strict=True))
    np.testing.assert_allclose(forward, backward, rtol=1e-8, atol=1e-10)
