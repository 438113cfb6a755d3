"""Tests each row of the table of primitives by evaluating the primitive.

An equation with the primitive is evaluated on random operands. Some channels, along axes that may
be cut by the row, are zeros in one copy and removed in another. The two copies must have equal
results at the remaining channels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive

from pruning.channels._coupling.channel_ids import FIXED, ChannelIds, UnionFind
from pruning.channels._coupling.rules import RULES, apply_rule, rule_of
from pruning.channels._program.calls import evaluate_equation, subprograms
from pruning.channels._removal.sizes import trim_broadcast

ROW = {key if isinstance(key, str) else key.name: rule for key, rule in RULES.items()}
OVER_DEVICES = {"pbroadcast", "pcast", "pmax", "pmin", "ppermute", "psum", "psum_invariant"}
ELSEWHERE = {
    *OVER_DEVICES,
    *("pvary", "sharding_constraint"),  # test_sharded_removal tests these on a mesh
    *("copy_p", "log2", "one_minus_square"),  # only later versions of JAX have these
    "reduce_window",  # `reduce_window` takes any function; test_rules tests it.
    "scatter-sub",  # `scatter-sub` has the same rule as `scatter-add`
    *("bitcast_convert_type", "random_bits", "nextafter"),  # these operate on bits
}
INTEGERS = {"and", "clz", "not", "or", "population_count", "xor"}
INTEGERS |= {"shift_left", "shift_right_arithmetic", "shift_right_logical"}


class Example(NamedTuple):
    """A function whose program has the tested primitive, and the shapes of its arguments."""

    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]


def indexed(write: Callable[..., Any]) -> Example:
    return Example(lambda x, y: write(x.at[1], y), [(3, 6), (6,)])


EXAMPLES: dict[str, Example] = {
    "abs": Example(jnp.abs, [(4, 6)]),
    "add_any": Example(jax.grad(lambda x: (x * x).sum()), [(4, 6)]),
    "argmax": Example(lambda x: lax.argmax(x, 0, np.int32), [(4, 6)]),
    "argmin": Example(lambda x: lax.argmin(x, 0, np.int32), [(4, 6)]),
    "clamp": Example(lambda x: lax.clamp(-0.5, x, 0.5), [(4, 6)]),
    "complex": Example(lambda x, y: lax.complex(x, y), [(4, 6), (4, 6)]),
    "conj": Example(lambda x: lax.conj(lax.complex(x, x)), [(4, 6)]),
    "convert_element_type": Example(lambda x: x.astype(np.float32), [(4, 6)]),
    "copy": Example(jnp.copy, [(4, 6)]),
    "imag": Example(lambda x: lax.imag(lax.complex(x, x)), [(4, 6)]),
    "integer_pow": Example(lambda x: x**3, [(4, 6)]),
    "name": Example(lambda x: checkpoint_name(x, "x"), [(4, 6)]),
    "real": Example(lambda x: lax.real(lax.complex(x, x)), [(4, 6)]),
    "reduce_precision": Example(lambda x: lax.reduce_precision(x, 8, 7), [(4, 6)]),
    "select_n": Example(lambda x, y: lax.select_n(x > 0, x, y), [(4, 6), (4, 6)]),
    "stop_gradient": Example(lax.stop_gradient, [(4, 6)]),
    **{
        f"reduce_{name}": Example(partial(function, axis=0), [(4, 6)])
        for name, function in {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}.items()
    },
    "reduce_prod": Example(partial(jnp.prod, axis=0), [(4, 6)]),
    "reduce_and": Example(lambda x: jnp.all(x > 0, 0), [(4, 6)]),
    "reduce_or": Example(lambda x: jnp.any(x > 0, 0), [(4, 6)]),
    "reduce_xor": Example(lambda x: lax.reduce(x > 0, False, lax.bitwise_xor, (0,)), [(4, 6)]),
    **{
        name: Example(partial(getattr(lax, name), axis=0), [(4, 6)])
        for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
    },
    "fft": Example(lambda x: lax.fft(x, "RFFT", (4, 6)), [(5, 4, 6)]),
    "sort": Example(lambda x, y: lax.sort((x, y), dimension=0), [(4, 6), (4, 6)]),
    **{
        f"reduce_window_{name}": Example(
            lambda x, start=start, f=f: lax.reduce_window(x, start, f, (2, 1), (1, 1), "VALID"),
            [(4, 6)],
        )
        for name, start, f in (
            ("sum", 0.0, lax.add),
            ("max", -np.inf, lax.max),
            ("min", np.inf, lax.min),
        )
    },
    "dot_general": Example(partial(jnp.einsum, "bti,bio->bto"), [(2, 3, 4), (2, 4, 5)]),
    "ragged_dot_general": Example(
        lambda x, k: lax.ragged_dot(x, k, jnp.array([1, 3])), [(4, 5), (2, 5, 6)]
    ),
    "conv_general_dilated": Example(
        lambda x, k: lax.conv_general_dilated(
            x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        ),
        [(2, 5, 4), (3, 4, 6)],
    ),
    "transpose": Example(lambda x: x.transpose(2, 0, 1), [(2, 3, 5)]),
    "reshape": Example(lambda x: lax.reshape(x, (2, 3, 5, 1), (1, 0)), [(5, 6)]),
    "squeeze": Example(lambda x: x.squeeze(1), [(3, 1, 5)]),
    "broadcast_in_dim": Example(lambda x: lax.broadcast_in_dim(x, (4, 6), (1,)), [(6,)]),
    "optimization_barrier": Example(lax.optimization_barrier, [(4, 6)]),
    "rev": Example(lambda x: lax.rev(x, (0, 1)), [(4, 6)]),
    "tile": Example(lambda x: jnp.tile(x, (2, 1)), [(4, 6)]),
    "stack": Example(lambda x, y: jnp.stack([x, y], 1), [(4, 6), (4, 6)]),
    "unstack": Example(lambda x: jnp.unstack(x), [(4, 6)]),
    "concatenate": Example(lambda x, y: lax.concatenate([x, y], 0), [(4, 6), (3, 6)]),
    "pad": Example(lambda x: lax.pad(x, 0.0, [(1, 0, 0), (0, 0, 0)]), [(4, 6)]),
    "slice": Example(lambda x: lax.slice(x, (1, 1), (3, 5)), [(4, 6)]),
    "split": Example(lambda x: lax.split(x, (2, 4), 1), [(4, 6)]),
    "dynamic_slice": Example(lambda x: lax.dynamic_slice(x, (1, 0), (2, 6)), [(4, 6)]),
    "dynamic_update_slice": Example(
        lambda x, y: lax.dynamic_update_slice(x, y, (1, 0)), [(4, 6), (2, 6)]
    ),
    "gather": Example(lambda x: x.at[np.array([2, 0])].get(mode="clip"), [(4, 6)]),
    "scatter": indexed(lambda at, y: at.set(y)),
    "scatter-add": indexed(lambda at, y: at.add(y)),
    "scatter-mul": indexed(lambda at, y: at.multiply(y)),
    "scatter-max": indexed(lambda at, y: at.max(y)),
    "scatter-min": indexed(lambda at, y: at.min(y)),
    "iota": Example(lambda: lax.broadcasted_iota(np.int32, (4, 6), 0), []),
}
FUNCTIONS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}


def example_of(name: str) -> Example:
    """The example in `EXAMPLES`, or an example of `jax.lax`'s function for the primitive."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    function = getattr(lax, FUNCTIONS.get(name, name))
    for count in (1, 2):
        example = Example(function, [(4, 6)] * count)
        try:
            equation(name, example)
        except TypeError:
            continue
        return example
    raise AssertionError(name)


def operands(name: str, example: Example, seed: int = 0) -> list[jax.Array]:
    rng = np.random.default_rng(seed)
    integer = name in INTEGERS
    draw = (lambda n: rng.integers(1, 9, n)) if integer else (lambda n: rng.uniform(0.2, 0.8, n))
    return [jnp.asarray(draw(shape)) for shape in example.shapes]


def equation(name: str, example: Example) -> tuple[Any, Callable[..., list[Any]]]:
    """The first equation of the primitive, and a function that returns random operands."""
    program = jax.make_jaxpr(example.function)(*operands(name, example))
    eqn = next(eqn for eqn in flat(program.jaxpr) if eqn.primitive.name == name)
    return eqn, lambda seed: random_operands(eqn, name, seed)


def flat(program: Any) -> list[Any]:
    """All equations of a program, including the programs inside its equations."""
    found = []
    for eqn in program.eqns:
        found.append(eqn)
        for inner in subprograms(eqn):
            found += flat(inner.jaxpr)
    return found


def random_operands(eqn: Any, name: str, seed: int) -> list[Any]:
    """Random arrays like the operands; operands that are numbers in the program do not change."""
    rng = np.random.default_rng(seed)

    def draw(v: Any) -> Any:
        if hasattr(v, "val"):
            return jnp.asarray(v.val)
        if v.aval.dtype == bool:
            return jnp.asarray(rng.random(v.aval.shape) > 0.5)
        if jnp.issubdtype(v.aval.dtype, jnp.integer):
            return jnp.asarray(rng.integers(1, 3, v.aval.shape), v.aval.dtype)
        return jnp.asarray(rng.uniform(0.2, 0.8, v.aval.shape), v.aval.dtype)

    return [draw(v) for v in eqn.invars]


def ids_of(eqn: Any) -> tuple[UnionFind, list[ChannelIds], list[ChannelIds]]:
    """The channel ids of the operands and of the results of `eqn`.

    If an operand must not be zero, its `zero` is None, and none of its channels are set to zero.
    """
    sets = UnionFind()
    sets.equations = (eqn,)
    numbers = [float(v.val) if np.ndim(getattr(v, "val", [])) == 0 else None for v in eqn.invars]
    singular = rule_of(eqn).singular_operands(eqn, numbers)
    values = [
        ChannelIds((), number=float(v.val), given=True, constant=True)
        if hasattr(v, "val") and np.ndim(v.val) == 0
        else ChannelIds(tuple(map(sets.new, v.aval.shape)), None, nonzero=True)
        if k in singular
        else ChannelIds(tuple(map(sets.new, v.aval.shape)), frozenset({(k,)}), given=True)
        for k, v in enumerate(eqn.invars)
    ]
    return sets, values, apply_rule(eqn, sets, values)


def zeroed(array: Any, masks: Sequence[np.ndarray]) -> Any:
    for axis, mask in enumerate(masks):
        shape = [-1 if k == axis else 1 for k in range(len(masks))]
        array = jnp.where(mask.reshape(shape), array, jnp.zeros((), array.dtype))
    return array


def cut(array: Any, masks: Sequence[np.ndarray]) -> Any:
    for axis, mask in enumerate(masks):
        array = jnp.take(array, np.flatnonzero(mask), axis)
    return array


TESTED = sorted(ROW.keys() - ELSEWHERE)


@pytest.mark.parametrize("name", TESTED)
def test_what_is_left_of_a_result_is_the_result_of_what_is_left(name):
    eqn, draw = equation(name, example_of(name))
    sets, values, results = ids_of(eqn)
    roots = sets.roots()
    channels = np.setdiff1d(roots, [0, FIXED])
    for seed in range(4):
        rng = np.random.default_rng(seed)
        kept = np.ones(roots.size, bool)
        for root in rng.permutation(channels)[: len(channels) // 3]:
            kept[roots == root] = False
        remain = lambda ids, kept=kept: kept[sets.find(ids)]  # noqa: E731
        large = [
            x if v.zero is None else zeroed(x, list(map(remain, v.axes)))
            for x, v in zip(draw(seed), values, strict=True)
        ]
        small = [cut(x, list(map(remain, v.axes))) for x, v in zip(large, values, strict=True)]
        smaller = rule_of(eqn).smaller
        changed = smaller(eqn, remain, values, results) if smaller else {}
        shape = tuple(int(remain(axis).sum()) for axis in results[0].axes)
        found = evaluate_equation(eqn, trim_broadcast(eqn, small, shape), eqn.params | changed)
        whole = evaluate_equation(eqn, large)
        for y, large_y, result in zip(found, whole, results, strict=True):
            masks = list(map(remain, result.axes))
            np.testing.assert_allclose(y, cut(large_y, masks), rtol=1e-12, atol=1e-12)
            if result.zero is not None:  # the result must be zero at removed channels
                at = zeroed(jnp.ones(large_y.shape), masks) == 0
                assert not np.asarray(large_y)[np.asarray(at)].any()


REAL = [name for name in TESTED if ROW[name].elementwise and name not in INTEGERS | {"clamp"}]


def values_at_zero(name: str) -> tuple[Any, list[Any]]:
    eqn, draw = equation(name, example_of(name))
    return eqn, draw(0)


@pytest.mark.parametrize("name", REAL)
def test_a_row_is_zero_where_the_function_is(name):
    """A row says "zero" exactly if the primitive maps zero operands to a zero result."""
    eqn, arrays = values_at_zero(name)
    zeros, ones = ([f(x) for x in arrays] for f in (jnp.zeros_like, jnp.ones_like))
    (y,) = evaluate_equation(eqn, zeros)
    if y.dtype != np.float64 or ROW[name].singular:
        return
    if {x.dtype.name for x in arrays} == {"float64"}:
        _, tangent = jax.jvp(lambda *x: evaluate_equation(eqn, x)[0], zeros, ones)
        if not np.isfinite(tangent).all():
            return
    _, _, (result,) = ids_of(eqn)
    assert (result.zero is not None) == (not np.asarray(y).any()), name


@pytest.mark.parametrize("name", REAL)
def test_a_row_is_singular_where_a_value_or_a_derivative_is_infinite(name):
    eqn, arrays = values_at_zero(name)
    numbers = [float(v.val) if hasattr(v, "val") else None for v in eqn.invars]
    floating = [jnp.issubdtype(x.dtype, jnp.floating) for x in arrays]
    for k in np.flatnonzero(floating):
        at = [jnp.zeros_like(x) if i == k else x for i, x in enumerate(arrays)]
        f = lambda x, at=at, k=k: evaluate_equation(eqn, [*at[:k], x, *at[k + 1 :]])[0]  # noqa: E731
        y, tangent = jax.jvp(f, (at[k],), (jnp.ones_like(at[k]),))
        finite = np.isfinite(y).all() and (
            tangent.dtype == jax.dtypes.float0 or np.isfinite(tangent).all()
        )
        assert (k in ROW[name].singular_operands(eqn, numbers)) == (not finite), name


@pytest.mark.parametrize("name", [name for name in TESTED if ROW[name].signs])
def test_signs_are_those_of_a_sum(name):
    eqn, arrays = values_at_zero(name)
    expected = sum(s * x for s, x in zip(ROW[name].signs, arrays, strict=True))
    np.testing.assert_allclose(evaluate_equation(eqn, arrays)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in TESTED if ROW[name].scaled])
def test_a_scale_is_linear_in_the_operands_that_it_names_alone(name):
    eqn, arrays = values_at_zero(name)
    y = evaluate_equation(eqn, arrays)[0]
    for k in range(len(arrays)):
        twice = evaluate_equation(eqn, [2 * x if i == k else x for i, x in enumerate(arrays)])[0]
        assert np.allclose(twice, 2 * y) == (k in ROW[name].scaled)


@pytest.mark.parametrize("name", [name for name in TESTED if ROW[name].layout])
def test_a_layout_gives_the_elements_again(name):
    eqn, arrays = values_at_zero(name)
    y = np.asarray(evaluate_equation(eqn, arrays)[0])
    np.testing.assert_array_equal(np.unique(y), np.unique(np.asarray(arrays[0], y.dtype)))


@pytest.mark.parametrize("name", [name for name in TESTED if ROW[name].exponent])
def test_exponents_are_those_of_powers(name):
    eqn, arrays = values_at_zero(name)
    exponent: Any = ROW[name].exponent
    power = exponent(eqn, [jnp.asarray(x) for x in arrays])
    expected = np.asarray(arrays[0]) ** np.asarray(power)
    np.testing.assert_allclose(evaluate_equation(eqn, arrays)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in TESTED if ROW[name].linear])
@pytest.mark.parametrize("side", [0, 1])
def test_products_are_those_of_matrices(name, side):
    eqn, arrays = values_at_zero(name)
    linear_of: Any = ROW[name].linear
    linear = linear_of(eqn, side)
    if linear is None:
        return
    product = linear.inputs(arrays[1 - side]) @ linear.matrix(arrays[side])
    expected = linear.outputs(evaluate_equation(eqn, arrays)[0])
    np.testing.assert_allclose(product, expected, rtol=1e-12, atol=1e-12)


def test_a_wrong_row_is_noticed(monkeypatch):
    key = next(k for k in RULES if isinstance(k, Primitive) and k.name == "cos")
    monkeypatch.setitem(RULES, key, RULES[key]._replace(zero=lambda *_: frozenset()))
    with pytest.raises(AssertionError):
        test_what_is_left_of_a_result_is_the_result_of_what_is_left("cos")
