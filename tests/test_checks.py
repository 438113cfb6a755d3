"""Each check of arguments accepts what it states, and refuses everything else.

The rows of `REFUSED` have a value for each reason to refuse it, and a part of the message.
"""

# pyright: reportArgumentType=false

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from geometry import _arguments as samples
from jaxnorm import internal
from jaxnorm.internal import _checks as checks
from pruning import _arguments as numbers

pytestmark = pytest.mark.usefixtures("unchecked")

KEY = jax.random.key(0)
ONE = jnp.ones(())
VECTOR, MATRIX = jnp.arange(1.0, 4.0), jnp.ones((2, 2))
SHAPE = jax.ShapeDtypeStruct((2, 2), "float32")
FOREIGN = np.ones((2, 2), "f4").astype(np.dtype("f4").newbyteorder())
RECORDS = np.zeros((2, 2), [("a", "f4")])
LAYER = linen.Dense(2, dtype=jnp.float32)  # this layer has a dtype, but no shape
TOO_LARGE = 10**400
NO_NUMBERS = {
    "a list": ([1.0], "must be an array; got list"),
    "shapes": (SHAPE, "must be an array; got ShapeDtypeStruct"),
    "a layer": (LAYER, "must be an array; got Dense"),
    "a shape alone": (nnx.Dict(shape=(2,)), "must be an array; got Dict"),
    "records": (RECORDS, "must hold numbers"),
    "texts": (np.array([["a"]]), "must hold numbers"),
    "bytes": (np.array([[b"a"]]), "must hold numbers"),
    "objects": (np.array([[None]]), "must hold numbers"),
    "dates": (np.ones((2, 2), "M8[D]"), "must hold numbers"),
    "durations": (np.ones((2, 2), "m8[s]"), "must hold numbers"),
    "another byte order": (FOREIGN, "must have this machine's byte order; got"),
}
NO_NUMBER = {
    "a bool": (True, "must be a number; got True"),
    "a text": ("0.5", "must be a number; got '0.5'"),
    "nothing": (None, "must be a number; got None"),
    "a list": ([1.0], "must be a number"),
    "complex": (np.complex64(1), "must be real; got complex64"),
    "two numbers": (np.ones(2), "must be one number; got shape (2,)"),
    "no number": (np.ones(0), "must be one number; got shape (0,)"),
}
NOT_REAL = {"complex": (np.complex64(1), "must be real"), "digits": (TOO_LARGE, "401 digits")}
NOT_WHOLE = {"a bool": (True, "got True"), "a half": (2.5, "2.5"), "a text": ("2", "got '2'")}
BAD_SAMPLES = {
    "a vector": (VECTOR, "must have shape (samples, "),
    "nothing": (jnp.ones((0, 0)), "must have shape (samples, "),
    "three axes": (jnp.ones((2, 2, 2)), "must have shape (samples, "),
    "no rows": (jnp.ones((0, 2)), "must have shape (samples, "),
    "no columns": (jnp.ones((2, 0)), "must have shape (samples, "),
    "NaN": (MATRIX.at[0, 1].set(jnp.nan), "must be finite; 1 of 4 elements are not"),
    "infinity": (MATRIX.at[:, 1].set(jnp.inf), "must be finite; 2 of 4 elements are not"),
}


def axes_of(x):
    return checks.check_axes(x, (2, 3), x)


REFUSED = {
    "array": (partial(internal.check_array, name="x"), NO_NUMBERS),
    "floats": (
        partial(internal.check_floating, name="x"),
        NO_NUMBERS | {"ints": (jnp.arange(3), "must be of a floating dtype; got int64")},
    ),
    "number or floats": (
        partial(internal.check_number, name="x"),
        {
            "ints": (jnp.arange(3), "must be of a floating dtype"),
            "a text": ("1", "must be an array; got str"),
            "a key": (KEY, "must be of a floating dtype"),
        },
    ),
    "one number": (partial(internal.check_numeric, name="x"), NO_NUMBER),
    "range": (
        partial(internal.check_range, name="x", highest=2),
        NO_NUMBER
        | {
            "below": (-0.1, "must lie in [0, 2]; got -0.1"),
            "above": (np.float32(2.5), "must lie in [0, 2]; got 2.5"),
            "NaN": (math.nan, "must lie in [0, 2]"),
        },
    ),
    "eps": (
        internal.check_eps,
        NO_NUMBER
        | {
            "below": (-1e-9, "eps must lie in [0, inf]"),
            "infinite": (math.inf, "eps must be finite; got inf"),
            "digits": (TOO_LARGE, "eps must be finite; got a larger int"),
        },
    ),
    "positive": (
        partial(internal.check_positive, name="x"),
        NO_NUMBER
        | {
            "zero": (jnp.zeros(1), "must be positive"),
            "below": (-1, "must be positive; got -1"),
            "NaN": (math.nan, "must be positive; got nan"),
            "infinite": (math.inf, "must be finite; got inf"),
        },
    ),
    "batches": (
        internal.check_batches,
        {
            "one array": (VECTOR, "got one array of (3,)"),
            "a NumPy array": (np.ones(2), "got one array of (2,)"),
            "a dictionary": ({"x": VECTOR}, "got dict"),
            "a number": (3, "got int"),
        },
    ),
    "key": (
        internal.check_key,
        {
            "a seed": (0, "key must be one random key, such as jax.random.key(0); got int"),
            "keys": (jax.random.split(KEY, 2), "of shape (2,)"),
            "a float": (ONE, "got float64 of shape ()"),
            "raw bits": (jnp.zeros(2, "uint32"), "got uint32 of shape (2,)"),
        },
    ),
    "int": (lambda x: internal.check_whole(x=x), NOT_WHOLE),
    "flag": (
        lambda x: internal.check_flags(x=x),
        {"one": (1, "must be True or False; got 1"), "a text": ("no", "got 'no'")},
    ),
    "axes": (
        axes_of,
        {
            "none": ((), "must name axes of an array of shape (2, 3)"),
            "too high": ((2,), "must name axes of an array"),
            "too low": ((-3,), "must name axes of an array"),
            "twice": ((1, -1), "must name each axis once"),
            "a bool": ((True,), "must be an int or a tuple of them"),
            "a fraction": ((0, 1.0), "must be an int or a tuple of them"),
        },
    ),
    "finite": (
        partial(internal.check_finite, name="x"),
        {"NaN": (VECTOR.at[1].set(jnp.nan), "x must be finite; 1 of 3 elements are not")},
    ),
    "samples": (
        samples.as_samples,
        BAD_SAMPLES | {"a number": (ONE, "x must have shape (samples, features); got ()")},
    ),
    "samples of three numbers": (
        partial(samples.as_samples, columns=3, name="y"),
        {"two": (MATRIX, "y must have shape (samples, 3); got (2, 2)")},
    ),
    "three samples": (
        partial(samples.as_samples, min_samples=3),
        {"two": (MATRIX, "x must have at least 3 samples; got 2")},
    ),
    "Gram matrix": (
        samples.as_gram,
        BAD_SAMPLES
        | {
            "not square": (jnp.ones((3, 2)), "must have shape (samples, samples); got (3, 2)"),
            "samples": (jnp.array([[1.0, 2], [3, 4]]), "gram must be symmetric"),
            "a negative square": (-jnp.eye(2), "no negative square on its diagonal; got -1"),
        },
    ),
    "Gram matrix of three": (
        partial(samples.as_gram, min_samples=3),
        {"two": (MATRIX, "gram must have at least 3 samples; got 2")},
    ),
    "vector": (
        samples.as_vector,
        {
            "a matrix": (MATRIX, "x must have shape (samples,); got (2, 2)"),
            "NaN": (VECTOR.at[1].set(jnp.nan), "x must be finite"),
        },
    ),
    "whole number": (
        partial(samples.whole_number, name="n"),
        {
            "a bool": (True, "n must be an int; got True"),
            "a text": ("2", "n must be an int; got '2'"),
            "two": (np.ones(2), "n must be an int"),
            "a half": (2.5, "n must be a whole number of at most 2**53; got 2.5"),
            "large": (-(2**53) - 1, "at most 2**53; got -9007199254740993"),
            "larger": (2**64, "at most 2**53; got more"),
            "infinite": (math.inf, "at most 2**53; got inf"),
            "NaN": (math.nan, "at most 2**53; got nan"),
        },
    ),
    "some floats": (
        partial(numbers.floating, name="x"),
        {
            "none": (jnp.ones((2, 0)), "x must have at least one element; got shape (2, 0)"),
            "ints": (jnp.arange(3), "x must be of a floating dtype"),
        },
    ),
    "filters": (
        numbers.matrix,
        {"a vector": (VECTOR, "got shape (3,)"), "a kernel": (jnp.ones((1, 1, 1)), "(1, 1, 1)")},
    ),
    "vectors": (
        lambda x: numbers.vectors(a=VECTOR, b=x),
        {
            "longer": (jnp.ones(4), "a and b must be vectors of the same length; got"),
            "a matrix": (jnp.ones((3, 3)), "got shape (3,) and (3, 3)"),
            "complex": (VECTOR.astype(complex), "b must be real"),
        },
    ),
    "vectors of one": (
        lambda x: numbers.vectors(a=x),
        {"a number": (ONE, "a must be a vector; got shape ()")},
    ),
    "at least": (
        lambda x: numbers.at_least(1, x=x),
        {
            "below": (0.5, "x must be at least 1; got 0.5"),
            "NumPy's": (np.float32(0.5), "x must be at least 1; got 0.5"),
        }
        | NOT_REAL,
    ),
    "parameters": (
        lambda x: numbers.parameters(1, y=ONE, x=x),
        {"below": (0, "x must be at least 1; got 0")} | NOT_REAL,
    ),
    "positive and finite": (
        partial(numbers.positive_number, name="x"),
        {
            "zero": (0, "must be positive and finite; got 0"),
            "infinite": (jnp.inf * ONE, "must be positive and finite; got inf"),
        }
        | NOT_REAL,
    ),
    "scalar": (
        partial(numbers.scalar, name="x", dtype=np.dtype("float32")),
        {
            "two": (jnp.ones(2), "must be one number; got shape (2,)"),
            "negative": (np.full((1,), -2.0), "must be positive and finite; got -2.0"),
        }
        | NOT_REAL,
    ),
    "fraction": (
        numbers.fraction,
        NO_NUMBER
        | {
            "zero": (0, "ratio must lie in (0, 1]; got 0"),
            "above": (np.float64(1.25), "ratio must lie in (0, 1]; got 1.25"),
            "NaN": (math.nan, "ratio must lie in (0, 1]; got nan"),
        },
    ),
    "share": (
        partial(numbers.inside_unit_interval, name="p"),
        {"outside": (jnp.array([-0.5, 0, 1, 2]), "p must lie in [0, 1]; 2 of 4 do not")},
    ),
    "names": (partial(numbers.check_names, name="n"), {"a text": ("ab", "such as ('ab',)")}),
    "inputs": (
        partial(numbers.check_tuple, name="n"),
        {"an array": (VECTOR, "got an array"), "a dictionary": ({}, "got dict")},
    ),
    "values": (partial(numbers.check_values, "f"), {"shapes": ({"a": SHAPE}, "f needs arrays")}),
}
ACCEPTED = {
    "array": [VECTOR, np.ones(2), np.float32(1), jnp.ones((0, 2)), np.ones(2, bool), KEY],
    "floats": [VECTOR, np.ones(2), np.float16(1), jnp.ones(2, "bfloat16")],
    "number or floats": [1, 1.5, True, VECTOR],
    "one number": [1, 1.5, np.float32(1), np.ones((1, 1)), jnp.arange(1), math.nan],
    "range": [0, 2, 1.5, jnp.full(1, 2.0)],
    "eps": [0, 1e-5, ONE, np.float32(0)],
    "positive": [1, 1e-300, ONE, np.ones((1, 1))],
    "batches": [[VECTOR], (), iter([VECTOR]), (x for x in [VECTOR])],
    "key": [KEY, nnx.Rngs(0).params(), jax.random.key(0, impl="rbg")],
    "int": [0, -2, np.int32(3)],
    "flag": [True, np.False_],
    "axes": [(0,), (-2, 1), (np.int64(1),)],
    "finite": [VECTOR, jnp.ones((0,)), jnp.arange(3)],
    "samples": [MATRIX, jnp.ones((1, 5))],
    "samples of three numbers": [jnp.ones((2, 3))],
    "three samples": [jnp.ones((3, 1))],
    "Gram matrix": [MATRIX, jnp.zeros((1, 1)), jnp.array([[1, 0.5], [0.504, 1]])],
    "Gram matrix of three": [jnp.eye(3)],
    "vector": [VECTOR, jnp.ones(0)],
    "whole number": [2, 2.0, np.float32(3), jnp.asarray(2), 2**53, -(2**53)],
    "some floats": [VECTOR, ONE],
    "filters": [MATRIX],
    "vectors": [VECTOR, np.arange(3)],
    "vectors of one": [VECTOR],
    "at least": [1, 1.0, np.float32(1), math.nan, VECTOR - 3],
    "parameters": [1, np.int32(2), VECTOR],
    "positive and finite": [1e-300, 3, ONE, np.float32(2), -VECTOR],
    "scalar": [2, np.ones((1, 1)), ONE],
    "fraction": [1, 0.5, np.float32(0.5), jnp.ones(1)],
    "share": [jnp.array([0, 1, jnp.nan])],
    "names": [("a",), ["a"], ()],
    "inputs": [(VECTOR,), [VECTOR], ()],
    "values": [{"a": VECTOR}, 3],
}
refusals = [
    pytest.param(check, value, part, id=f"{name}-{kind}".replace(" ", "_"))
    for name, (check, rows) in REFUSED.items()
    for kind, (value, part) in rows.items()
]


@pytest.mark.parametrize(("check", "value", "part"), refusals)
def test_a_wrong_argument_is_refused_for_its_reason(check, value, part):
    with pytest.raises((TypeError, ValueError)) as raised:
        check(value)
    assert part in str(raised.value)


@pytest.mark.parametrize("name", ACCEPTED, ids=[name.replace(" ", "_") for name in ACCEPTED])
def test_a_right_argument_is_accepted(name):
    assert ACCEPTED.keys() == REFUSED.keys()
    for value in ACCEPTED[name]:
        REFUSED[name][0](value)


def test_under_jit_only_types_and_shapes_are_checked():
    bad = jnp.array([[-1.0, jnp.nan], [3, 4]])

    @jax.jit
    def traced(x):
        internal.check_finite(x, "x")
        internal.check_range(x[0, 0], "x", 0.5)
        internal.check_positive(x[0, 0], "x")
        numbers.inside_unit_interval(x, "x")
        numbers.positive_number(x[0, 0], "x")
        samples.as_samples(x)
        samples.as_gram(x)
        (array,) = numbers.parameters(0, x=x)
        return numbers.scalar(x[0, 0], "x", np.dtype("float32")), array

    number, array = traced(bad)
    assert traced(-bad)[0] == 1
    assert math.isnan(number)
    assert np.isnan(array).tolist() == [[True, True], [False, False]]
    with pytest.raises(TypeError, match="ratio must be a Python number; got a traced value"):
        jax.jit(numbers.fraction)(0.5)
    with pytest.raises(TypeError, match="n must be an int; got a traced value"):
        jax.jit(partial(samples.whole_number, name="n"))(2)


def test_a_quoted_error_is_one_short_line():
    assert numbers.quote(ValueError(" two\nlines. ")) == "ValueError: two lines"
    assert numbers.quote(ValueError("x" * 200)) == f"ValueError: {'x' * 200}"
    assert numbers.quote(ValueError("x" * 201)) == f"ValueError: {'x' * 199}…"


def test_checks_return_the_promoted_numbers():
    assert samples.as_samples(jnp.ones((2, 2), "bfloat16")).dtype == "float32"
    assert samples.as_gram(jnp.ones((2, 2), "float16")).dtype == "float32"
    assert samples.as_vector(jnp.ones(2, "bfloat16")).dtype == "float32"
    assert numbers.matrix(jnp.ones((2, 2), "bfloat16")).dtype == "float32"
    assert numbers.scalar(np.ones((1, 1)), "x", np.dtype("float32")).shape == ()
    assert [type(x) for x in numbers.parameters(a=np.float32(2), b=2)] == [float, float]
    assert numbers.parameters(a=np.ones(2, "float16"))[0].dtype == "float32"
    assert isinstance(internal.check_eps(1), float)
    assert isinstance(internal.check_positive(2, "x"), float)
    assert internal.choose_eps(2, None) == 2
    assert internal.choose_eps(2, 1e-3) == 1e-3
    assert type(samples.whole_number(np.float32(3), "n")) is int
    cosines = samples.as_cosine(jnp.array([1.0, -1.005, 1.02, -3], "bfloat16"))
    assert np.isnan(cosines).tolist() == [False, False, True, True]
