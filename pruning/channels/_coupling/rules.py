"""A table of facts about primitives, with one row for each primitive.

Most analyses of traced programs in `pruning` use the table. A row says which axes of the operands
and of the results correspond. A row also says when results are zero or equal along channels, and
which operands must not be zero. Further, a row gives the parameters of the primitive for smaller
shapes, and says whether the primitive is a product with a kernel, a sum or a scale. To add a
primitive, add a row to the table. The test `tests/pruning/test_rows.py` compares nearly all rows
with results of their primitives. If a primitive has no row, no channel of its operands can be
removed. Calls, branches and loops need no row: the module `control_flow` analyzes the programs
inside them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive, primitives as p

from jaxnorm.internal import is_traced
from pruning.channels._coupling import arithmetic, moves
from pruning.channels._coupling.arithmetic import Zeros, all_of, any_of, first_of, never, same
from pruning.channels._coupling.channel_ids import FIXED, ChannelIds, UnionFind, Values, Zero
from pruning.channels._program.calls import Equation, Leaf, Options, shape_of
from pruning.channels._program.linear import Linear, convolution_of, product_of

Numbers = Sequence[Leaf]
"""The value of each operand that is a number of the program, and None for all other operands."""


class Rule(NamedTuple):
    """All facts that the library knows about a primitive.

    Attributes:
      axes: A function `axes(eqn, sets, *values)` that returns the channel ids of the results.
        `axes` unites the ids of channels that must be removed together, and forbids removals along
        axes that cannot be cut.
      zero: A function that returns the parameters that make a result zero, from the parameters that
        make the operands zero.
      uniform: Whether the results are known to be equal along channels if all operands are equal
        along these channels.
      nonzero: The condition under which the result is not zero. "always" means no condition, "all"
        means that all operands are nonzero, and "positive" means that one operand is a positive
        number, such as the eps that is added to a variance.
      exponent: A function that returns the exponent of a power, from the operands that are numbers.
      singular: The operands that must not be zero, because the result or its derivative would be
        infinite or NaN.
      smaller: A function that returns the changed parameters of the primitive after channels are
        removed.
      summed: A function `summed(eqn)` that lists the axes over which the primitive sums or reduces.
        The result does not have these axes. Each entry is a list of pairs (operand, axis), with one
        pair for each operand that has the axis. `summed` is None if the table does not know the
        axes.
      layout: Whether the primitive changes only the shape, the order of axes or the dtype of its
        first operand.
      signs: The sign of each operand, if the primitive is a sum or a negation.
      scaled: For an elementwise product or quotient, the operands in which the primitive is linear
        if the other operand is fixed.
      linear: A function `linear(eqn, side)` that writes the primitive as a matrix product whose
        kernel is operand `side`.
      random: Whether the primitive draws random bits. The bits are drawn for the width before
        pruning.
      elementwise: Whether each element of the result depends only on the elements of the operands
        at the same index.
      sources: The operands whose elements the result contains. All other operands only determine
        which of these elements are selected.
      sums: Whether the primitive is a sum over axes of its operand. Removed channels along the
        summed axis may have equal values instead of zeros.
    """

    axes: Callable[..., list[ChannelIds]]
    zero: Zeros = never
    uniform: bool = False
    nonzero: Literal["always", "all", "positive"] | None = None
    exponent: Callable[[Equation, Numbers], Any] | None = None
    singular: tuple[int, ...] = ()
    smaller: Callable[..., Options] | None = None
    summed: Callable[[Equation], Sequence[Sequence[tuple[int, int]]]] | None = lambda eqn: ()
    layout: bool = False
    signs: tuple[int, ...] = ()
    scaled: tuple[int, ...] = ()
    linear: Callable[[Equation, int], Linear | None] | None = None
    random: bool = False
    elementwise: bool = False
    sources: slice = slice(None)
    sums: bool = False

    @property
    def rearranges(self) -> bool:
        """Whether the result has the elements of the first operand, up to layout and sign."""
        return self.layout or self.signs == (-1,)

    def singular_operands(self, eqn: Equation, numbers: Numbers) -> tuple[int, ...]:
        """The operands that must be nonzero; for a power, the operands depend on the exponent."""
        known = None if self.exponent is None else self.exponent(eqn, numbers)
        return () if known is not None and (known >= 1 or known == 0) else self.singular


def elementwise(zero: Zeros = never, **facts: Any) -> Rule:
    return Rule(arithmetic.elementwise, zero, uniform=True, elementwise=True, **facts)


def power(exponent: Callable[[Equation, Numbers], Any], **facts: Any) -> Rule:
    """The table's row for a primitive that computes a power with the given exponent.

    A power of zero is zero if the exponent is positive. At zero, the power or its derivative is
    infinite if the exponent is negative or between zero and one.
    """

    def zero(eqn: Equation, sets: UnionFind, values: Values, result: ChannelIds) -> Zero:
        found = exponent(eqn, [v.number for v in values])
        return first_of(eqn, sets, values, result) if found is not None and found > 0 else None

    return elementwise(zero, exponent=exponent, singular=(0,), nonzero="all", **facts)


def movement(axes: Callable[..., list[ChannelIds]], **facts: Any) -> Rule:
    return Rule(axes, same, **facts)


def reduced_axes(eqn: Equation) -> list[list[tuple[int, int]]]:
    """The axes over which an equation reduces its operands, without the axes of a device mesh."""
    axes = [axis for axis in eqn.params["axes"] if isinstance(axis, int)]
    return [[(k, axis)] for k in range(len(eqn.invars)) for axis in axes]


def contracted_axes(eqn: Equation) -> list[list[tuple[int, int]]]:
    ragged = eqn.params.get("ragged_dot_dimension_numbers")
    numbers = ragged.dot_dimension_numbers if ragged else eqn.params["dimension_numbers"]
    pairs = zip(*numbers[0], strict=True)
    return [[(0, int(i)), (1, int(j))] for i, j in pairs]


def kernel_axes(eqn: Equation) -> list[list[tuple[int, int]]]:
    """The axes of a convolution's kernel, except the axis of the outputs."""
    return [[(1, axis)] for axis in eqn.params["dimension_numbers"].rhs_spec[1:]]


UNKNOWN = Rule(moves.unknown, summed=None)

RULES: dict[Primitive | str, Rule] = {
    # elementwise primitives whose result is zero if all operands are zero
    p.add_p: elementwise(all_of, nonzero="positive", signs=(1, 1)),
    p.add_jaxvals_p: elementwise(all_of, nonzero="positive", signs=(1, 1)),
    p.sub_p: elementwise(all_of, signs=(1, -1)),
    p.neg_p: elementwise(all_of, nonzero="all", signs=(-1,)),
    p.abs_p: elementwise(all_of, nonzero="all"),
    **dict.fromkeys(
        (p.convert_element_type_p, p.copy_p, "copy_p", p.name_p),
        elementwise(all_of, nonzero="all", layout=True),
    ),
    **dict.fromkeys(
        (
            *(p.asin_p, p.asinh_p, p.atan_p, p.atanh_p, p.bessel_i1e_p, p.ceil_p, p.complex_p),
            *(p.conj_p, p.erf_p, p.erf_inv_p, p.expm1_p, p.floor_p, p.imag_p, p.log1p_p, p.or_p),
            *(p.population_count_p, p.real_p, p.reduce_precision_p, p.round_p, p.shift_left_p),
            *(p.shift_right_arithmetic_p, p.shift_right_logical_p, p.sign_p, p.sin_p, p.sinh_p),
            *(p.stop_gradient_p, p.tan_p, p.tanh_p, p.xor_p),
        ),
        elementwise(all_of),
    ),
    p.max_p: elementwise(arithmetic.extremum(1), nonzero="positive"),
    p.min_p: elementwise(arithmetic.extremum(-1)),
    p.select_n_p: elementwise(arithmetic.cases_of, sources=slice(1, None)),
    # elementwise primitives whose result is zero if any operand is zero
    p.mul_p: elementwise(any_of, nonzero="all", scaled=(0, 1)),
    p.and_p: elementwise(any_of),
    p.div_p: elementwise(first_of, nonzero="all", singular=(1,), scaled=(0,)),
    p.rem_p: elementwise(first_of, singular=(1,)),
    # primitives that compute a power of their operand
    p.square_p: power(lambda eqn, numbers: 2),
    p.sqrt_p: power(lambda eqn, numbers: 1 / 2),
    p.rsqrt_p: power(lambda eqn, numbers: -1 / 2),
    p.cbrt_p: power(lambda eqn, numbers: 1 / 3),
    p.integer_pow_p: power(lambda eqn, numbers: eqn.params["y"]),
    p.pow_p: power(lambda eqn, numbers: numbers[1]),
    # elementwise primitives whose result can be nonzero although all operands are zero
    **dict.fromkeys((p.exp_p, p.exp2_p, p.logistic_p, p.cosh_p), elementwise(nonzero="always")),
    **dict.fromkeys(
        (p.acosh_p, p.digamma_p, p.lgamma_p, p.log_p, "log2"), elementwise(singular=(0,))
    ),
    **dict.fromkeys(
        (
            *(p.acos_p, p.atan2_p, p.bessel_i0e_p, p.clamp_p, p.clz_p, p.cos_p, p.eq_p, p.erfc_p),
            *(p.ge_p, p.gt_p, p.is_finite_p, p.le_p, p.lt_p, p.ne_p, p.nextafter_p, p.not_p),
            "one_minus_square",
        ),
        elementwise(),
    ),
    **dict.fromkeys((p.igamma_p, p.igammac_p), elementwise(singular=(0, 1))),
    p.bitcast_convert_type_p: Rule(moves.bitcast),
    # Reductions. A sum over channels can leave out removed channels only if their terms are zero.
    p.reduce_sum_p: Rule(arithmetic.reduce_sum, same, summed=reduced_axes, sums=True),
    **dict.fromkeys(
        (p.reduce_max_p, p.reduce_min_p, p.reduce_prod_p),
        Rule(arithmetic.reduce, same, summed=reduced_axes),
    ),
    **dict.fromkeys(
        (p.argmax_p, p.argmin_p, p.reduce_and_p, p.reduce_or_p, p.reduce_xor_p),
        Rule(arithmetic.reduce, summed=reduced_axes),
    ),
    **dict.fromkeys(
        (p.cummax_p, p.cummin_p, p.cumprod_p, p.cumsum_p, p.sort_p),
        movement(arithmetic.along_an_axis),
    ),
    p.cumlogsumexp_p: Rule(arithmetic.along_an_axis),
    p.fft_p: movement(arithmetic.fourier),
    p.reduce_window_sum_p: movement(arithmetic.reduce_window),
    **dict.fromkeys(
        (p.reduce_window_max_p, p.reduce_window_min_p),
        Rule(arithmetic.reduce_window, arithmetic.unpadded),
    ),
    p.reduce_window_p: Rule(arithmetic.reduce_window),
    # collectives over the devices of a mesh; channels are not divided between the devices
    p.psum_p: Rule(arithmetic.sum_over_devices, same, summed=reduced_axes),
    **dict.fromkeys((p.pmax_p, p.pmin_p), Rule(arithmetic.over_devices, same, summed=reduced_axes)),
    **dict.fromkeys((p.ppermute_p, "psum_invariant"), movement(arithmetic.over_devices)),
    **dict.fromkeys(("pbroadcast", "pcast", "pvary"), movement(moves.identity)),
    # primitives that multiply by a kernel
    p.dot_general_p: Rule(
        arithmetic.dot_general, same, uniform=True, summed=contracted_axes, linear=product_of
    ),
    "ragged_dot_general": Rule(
        arithmetic.ragged_dot, same, summed=contracted_axes, linear=lambda eqn, side: None
    ),
    p.conv_general_dilated_p: Rule(
        arithmetic.convolution,
        same,
        smaller=arithmetic.smaller_convolution,
        summed=kernel_axes,
        linear=convolution_of,
    ),
    # primitives that move elements
    p.transpose_p: movement(moves.transpose, uniform=True, layout=True),
    p.reshape_p: movement(moves.reshape, layout=True, smaller=moves.smaller_shape("new_sizes")),
    p.squeeze_p: movement(moves.squeeze, layout=True),
    p.broadcast_in_dim_p: movement(
        moves.broadcast_in_dim, layout=True, smaller=moves.smaller_shape("shape")
    ),
    "optimization_barrier": movement(moves.identity, layout=True),
    p.sharding_constraint_p: movement(moves.identity),
    p.rev_p: movement(moves.reverse),
    "tile": movement(moves.tile),
    "stack": movement(moves.stack),
    "unstack": movement(moves.unstack),
    p.concatenate_p: movement(moves.concatenate),
    p.pad_p: movement(moves.pad),
    p.slice_p: movement(moves.slice_, smaller=moves.smaller_slice),
    "split": movement(moves.split, smaller=moves.smaller_split),
    p.dynamic_slice_p: movement(
        moves.dynamic_slice, smaller=moves.smaller_shape("slice_sizes"), sources=slice(1)
    ),
    p.dynamic_update_slice_p: movement(moves.dynamic_update_slice),
    p.gather_p: movement(moves.gather, smaller=moves.smaller_gather, sources=slice(1)),
    p.scatter_p: Rule(moves.scatter, moves.zero_of_scatter),
    **dict.fromkeys(
        (p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p, "scatter-sub"),
        movement(moves.scatter),
    ),
    p.iota_p: movement(moves.iota),
    p.random_bits_p: UNKNOWN._replace(random=True),
}
"""The rows of the table.

The key is the primitive, or the primitive's name if not every version of JAX has a public name for
the primitive.
"""


def rule_of(eqn: Equation) -> Rule:
    """The row of the table `RULES` for the primitive of an equation."""
    return RULES.get(eqn.primitive) or RULES.get(eqn.primitive.name, UNKNOWN)


def summed_of_product(eqn: Equation) -> Sequence[Sequence[tuple[int, int]]] | None:
    """The axes over which a product or a convolution sums; None for other primitives."""
    rule = rule_of(eqn)
    return None if rule.linear is None or rule.summed is None else rule.summed(eqn)


def apply_rule(eqn: Equation, sets: UnionFind, values: Values) -> list[ChannelIds]:
    """The channel ids of the results of an equation, from the table's row for its primitive."""
    rule = rule_of(eqn)
    values = sets.give_constants_ids(values) if rule.elementwise else values
    results = rule.axes(eqn, sets, *values)
    numbers = [v.number for v in values]
    facts: dict[str, Any] = {"uniform": sets.uniform(values) if rule.uniform else None}
    facts |= {"given": all(v.given for v in values), "constant": all(v.constant for v in values)}
    facts["chosen"] = rule.linear is None and all(v.given or v.chosen for v in values[rule.sources])
    if rule.random:  # like a constant, random bits keep the width that they had before pruning
        facts |= {"constant": True, "drawn": sets.equations}
    elif facts["constant"]:
        facts["drawn"] = next((v.drawn for v in values if v.drawn), ())
    same_sign = (rule.layout or rule.sums) and values[0].positive
    facts["positive"] = same_sign or rule.nonzero == "always"
    if rule.elementwise:
        facts["nonzero"] = (
            rule.nonzero == "always"
            or (rule.nonzero == "all" and all(v.nonzero or v.number for v in values))
            or (rule.nonzero == "positive" and any((number or 0) > 0 for number in numbers))
        )
        facts["number"] = numbers[0] if rule.layout else None
    results = [r._replace(zero=rule.zero(eqn, sets, values, r), **facts) for r in results]
    # The primitive is evaluated to get `at_zero`, the value of the result at removed channels. For
    # example, the divisor 1 − exp(−|h|) is zero where h is zero. JAX's checks for infinity and NaN
    # are off, because `at_zero` can be infinite or NaN.
    known = [v.at_zero if v.zero is None else 0.0 for v in values]
    at_zero = known[0] if rule.layout else None
    if rule.elementwise and None not in known:
        with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False):
            dtypes = [v.aval.dtype for v in eqn.invars]  # pyright: ignore[reportAttributeAccessIssue]
            operands = map(jnp.asarray, known, dtypes)
            value = eqn.primitive.bind(*operands, **eqn.params)
            at_zero = None if is_traced(value) else np.asarray(value).item()
    finite = at_zero is not None and bool(np.isfinite(at_zero))
    for value in (values[k] for k in rule.singular_operands(eqn, numbers)):
        safe = value.nonzero if value.at_zero is None else value.at_zero != 0
        if not (safe or value.number or value.constant):
            needs = (sets.requirement_of(value, axis) for axis in value.axes)
            sets.singular += [need._replace(finite=finite or value.positive) for need in needs]
    return [r._replace(at_zero=at_zero) for r in results]


def corresponding_axes(eqn: Equation) -> list[list[int | None]]:
    """For each axis of each operand, the corresponding axis of the first result, or None."""
    rule = rule_of(eqn)
    # An elementwise primitive needs no sizes, so a size can be a symbol, such as the batch size.
    if rule.elementwise:
        return [list(range(len(shape_of(v)))) for v in eqn.invars]
    sets = UnionFind()
    sets.equations = (eqn,)
    values = [
        ChannelIds(tuple(map(sets.new, shape_of(v))), frozenset({(k,)}), given=True)
        for k, v in enumerate(eqn.invars)
    ]
    results = rule.axes(eqn, sets, *values)[0].axes if values else ()

    def axis_of(ids: np.ndarray) -> int | None:
        for k, found in enumerate(results):
            if found.size == ids.size:
                roots = sets.find(ids)
                united = np.array_equal(sets.find(found), roots) and (roots > FIXED).all()
                if np.array_equal(found, ids) or united:
                    return k
        return None

    return [list(map(axis_of, value.axes)) for value in values]
