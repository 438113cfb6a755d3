"""Checks whether the programs of a network at two widths are equal except for shapes.

For example, a model may skip a projection if two shapes are equal, or multiply by a number that
depends on a width. With the smaller arrays, a model that depends on its shapes may run without an
error, but then computes a different function.
"""

from collections.abc import Sequence
from itertools import zip_longest

import jax
import jax.numpy as jnp
import numpy as np

from pruning._arguments import quote
from pruning.channels._coupling.channel_ids import FREE, Values
from pruning.channels._coupling.control_flow import equation_ids, ids_of_constant
from pruning.channels._coupling.coupling import channels_of
from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Program,
    Tree,
    Variable,
    shape_of,
    subprograms,
    trace,
)
from pruning.channels._program.interpret import is_literal
from pruning.channels._program.lines import at, line_of, line_of_error
from pruning.channels._removal.removal import Keep, check_keep, keep_masks
from pruning.channels._removal.sizes import Sizes, large_tree

# These parameters of primitives are not compared, because they follow from the results' shapes.
SHAPES = {"shape", "new_sizes", "slice_sizes", "limit_indices"}
CURE = (
    "run it by pruning.channels.resized, which pruning.prune does with resize=True (for an NNX "
    "model: pruning.prune(*pruning.nnx.evaluation(model), ..., resize=True))"
)


def check_program(
    apply: Apply, params: Tree, groups: Sequence[ChannelGroup], keep: Keep, *inputs: Tree
) -> None:
    """Raise unless `apply` has the same program, except for shapes, as before pruning.

    Args:
      apply: A function that JAX can trace, as for `coupled_channels`.
      params: The smaller tree that `remove_channels` returned.
      groups: All or some groups of `coupled_channels`.
      keep: For each group, the mask of kept channels, as for `remove_channels`.
      inputs: The other arguments of `apply`.

    Raises:
      ValueError: `apply` does not take its widths from `params`, or computes a different function
        at the smaller widths. The message names the first difference and, if the line is known, its
        line in the model's code. `keep` does not have one mask for each group, or `params` is not
        the smaller tree.
    """
    check_keep(groups, keep)
    masks = list(map(np.asarray, keep))
    tree = large_tree(params, groups, masks)
    try:
        small, _ = trace(apply, params, *inputs)
    except Exception as error:
        raise ValueError(
            "apply must take its widths from params, as modules do by jaxnorm.nnx.fit_widths; else "
            f"{CURE}; with fewer channels it raises {quote(error)}{at(line_of_error(error))}"
        ) from error
    channels = channels_of(apply, tree, inputs)
    sizes = Sizes(channels, keep_masks(groups, masks))
    if found := difference(sizes, channels.program, small, channels.arguments):
        raise ValueError(
            f"apply must compute the same function with fewer channels; {found}: change apply, "
            f"keep these channels, or {CURE}"
        )


def difference(sizes: Sizes, large: Program, small: Program, arguments: Values) -> str:
    """A text about the first difference between the equations or the results of two programs.

    The text is empty if the two programs differ only in shapes.
    """
    # For each variable of the large program, `ids` has its channel ids, and `same` has the
    # corresponding variable of the small program.
    ids, same = {}, {}
    for a, b, value in zip(large.jaxpr.invars, small.jaxpr.invars, arguments, strict=True):
        ids[a], same[a] = value, b
    if len(large.consts) != len(small.consts) or not all(
        map(_same_constant, large.consts, small.consts)
    ):
        return "constants that it holds change"
    for a, b, x in zip(large.jaxpr.constvars, small.jaxpr.constvars, large.consts, strict=True):
        ids[a], same[a] = ids_of_constant(x), b
    for a, b in zip_longest(large.jaxpr.eqns, small.jaxpr.eqns):
        one, other = (e.primitive.name if e else "nothing" for e in (a, b))
        if one != other:
            return f"{other} takes the place of {one}{at(line_of([a or b]))}"
        values = [ids_of_constant(v.val) if is_literal(v) else ids[v] for v in a.invars]
        inner, results = equation_ids(sizes.sets, a, values)
        if reason := _of_equation(sizes, a, b, values, results, same):
            return f"{reason} of {a.primitive.name}{at(line_of([a]))}"
        with sizes.sets.inside(a):
            for inside, other, of_inner in zip(subprograms(a), subprograms(b), inner, strict=True):
                if found := difference(sizes, inside, other, of_inner):
                    return found
        ids |= zip(a.outvars, results, strict=True)
        same |= zip(a.outvars, b.outvars, strict=True)
    for u, v in zip_longest(large.jaxpr.outvars, small.jaxpr.outvars):
        if is_literal(u) and is_literal(v):
            equal = _same_constant(u.val, v.val)
        else:
            equal = not is_literal(u) and same.get(u) is v
        if not equal:
            every = (*large.jaxpr.eqns, *small.jaxpr.eqns)
            made = [e for e in every if u in e.outvars or v in e.outvars]
            return f"another array becomes a result{at(line_of(made))}"
    return ""


def _of_equation(
    sizes: Sizes,
    a: Equation,
    b: Equation,
    values: Values,
    results: Values,
    same: dict[Variable, Variable],
) -> str:
    ranks, others = ([len(shape_of(v)) for v in (*e.invars, *e.outvars)] for e in (a, b))
    if ranks != others or len(a.invars) != len(b.invars):
        return "the number of arrays or of their axes changes, in the operands or results"
    for u, v in zip(a.invars, b.invars, strict=True):
        if is_literal(u) and is_literal(v):
            if not np.array_equal(u.val, v.val, equal_nan=True):
                return f"{u.val} becomes {v.val}, an operand"
        elif is_literal(u) or same[u] is not v:
            return "another array becomes an operand"
    for v, value in zip(b.outvars, results, strict=True):
        triples = zip(shape_of(v), sizes.shape(value), value.axes, strict=True)
        if any(n != m and (axis != FREE).any() for n, m, axis in triples):
            return f"{sizes.shape(value)} becomes {shape_of(v)}, the shape"
    for k, (v, value) in enumerate(zip(b.invars, values, strict=True)):
        before, after = sizes.shape(value), shape_of(v)
        # A sum of zeros is zero for any number of terms.
        if value.number != 0 and any(before[axis] != after[axis] for axis in _dependent_axes(a, k)):
            return f"{before} becomes {after}, the shape of an operand"
    if rule_of(a).sums and values[0].zero is None:
        shape = sizes.shape(values[0])
        if any(shape[k] != shape_of(a.invars[0])[k] for k in a.params["axes"]):
            return "channels that are not zero where removed change, the operand"
    expected = sizes.params(a, values, results)
    for name in expected.keys() - SHAPES:
        x, y = expected[name], b.params[name]
        if _plain(x) and _plain(y) and not _equal(x, y):
            return f"{x} becomes {y}, {name}"
    return ""


def _dependent_axes(eqn: Equation, k: int) -> Sequence[int]:
    """The axes of operand `k` over which an equation sums or reduces.

    If the table of rules has no row for the primitive, the result is all axes of the operand.
    """
    summed = rule_of(eqn).summed
    if summed is None and not subprograms(eqn):
        return range(len(shape_of(eqn.invars[k])))
    axes = summed(eqn) if summed else ()
    return [axis for operands in axes for i, axis in operands if i == k]


def _same_constant(x: Leaf, y: Leaf) -> bool:
    if x is y:
        return True
    if jnp.issubdtype(jax.typeof(x).dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    nan = jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)
    return np.array_equal(x, y, equal_nan=nan)


def _equal(x: Leaf, y: Leaf) -> bool:
    """Whether two numbers, names, or tuples of numbers and names are equal. Two NaNs are equal."""
    pairs = list(zip_longest(jax.tree.leaves(x), jax.tree.leaves(y)))
    return all(a == b or {str(a), str(b)} == {"nan"} for a, b in pairs)


def _plain(x: Leaf) -> bool:
    """Whether `x` is a number, a name or a tuple of numbers and names."""
    return all(isinstance(leaf, int | float | str | np.number) for leaf in jax.tree.leaves(x))
