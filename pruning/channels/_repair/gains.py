"""What a traced network multiplies the outputs of its kernels by, as a batch norm does.

Up to the next nonlinearity or sum of activations, outputs y of a kernel become
gain ⊙ (y + before) + after: `before` are parameters such as a running mean, and the gain is made of
others, such as a scale and a running variance.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pruning.channels._program.calls import evaluate_equation, program_of
from pruning.channels._program.interpret import closed_jaxpr, interpret, is_literal
from pruning.channels._repair.constants import Addend, addend_of
from pruning.channels._repair.plan import Shift, Solve

POWERS = {"rsqrt": -0.5, "sqrt": 0.5}


class Gain(NamedTuple):
    """What is known of a value: made of parameters alone, or what a kernel's outputs became.

    Attributes:
      given: Whether it is made of parameters and constants alone.
      use: The `Solve` of the kernel, of its outputs, else None.
      array: The value, or what outputs were multiplied by, in their shape.
      deviation: The same with every running variance under a root at one, so that it is the gain
        times the running standard deviation.
      before: Parameters that were added to the outputs, or subtracted, before all else.
      leaves: Parameters that `array` is made of.
      variances: Those of them under a root.
      addend: The parameter that a given value is a sum of, if there is one.
    """

    given: bool = False
    use: Solve | None = None
    array: Any = None
    deviation: Any = None
    before: tuple[Addend, ...] = ()
    leaves: frozenset[int] = frozenset()
    variances: frozenset[int] = frozenset()
    addend: Addend | None = None

    @property
    def solve(self) -> Solve:
        """`use`, of the outputs of a kernel."""
        assert self.use is not None
        return self.use

    def of_outputs(self, array: Array) -> np.ndarray:
        """One number an output, (groups, 1, outputs), of `array` or `deviation`."""
        return np.asarray(self.solve.form.outputs(array).mean(1, keepdims=True), np.float64)

    def of_parameter(self, addend: Addend, factor: np.ndarray, like: Array) -> Array:
        """One number an output as an array like a parameter that is added to the outputs."""
        zero, transpose = jax.vjp(self.solve.form.outputs, jnp.zeros_like(self.array))
        (whole,) = transpose(jnp.broadcast_to(jnp.asarray(factor, zero.dtype), zero.shape))

        def spread(change: Array) -> Array:
            return jnp.broadcast_to(addend.spread(change), whole.shape).astype(whole.dtype)

        signs, transpose = jax.vjp(spread, jnp.ones_like(like))
        return transpose(whole * signs)[0] / transpose(signs)[0]


ACTIVATION = Gain()


def gains(
    program: Any, leaves: Sequence[Any], uses: Sequence[Solve | Shift | None]
) -> dict[int, Gain]:
    """By the number of its kernel, every gain of a program; `uses` are those of `Plan`.

    Left out are those of outputs that are also read without it, and those where something else than
    one parameter is added before.
    """
    followed = Gains(leaves, uses, live(program, set(program.jaxpr.outvars)))
    parameters = [
        Gain(True, None, x, x, (), frozenset([i]), addend=Addend(i, lambda change: change))
        for i, x in enumerate(leaves)
    ]
    inputs = [ACTIVATION] * (len(program.jaxpr.invars) - len(leaves))
    followed.evaluate(program, [*parameters, *inputs])
    return {i: gain for i, gain in followed.latest.items() if gain.leaves}


class Gains:
    """Evaluates what is made of parameters, and follows the outputs of kernels."""

    def __init__(
        self, leaves: Sequence[Any], uses: Sequence[Solve | Shift | None], equations: set[int]
    ):
        self.leaves, self.uses, self.live = leaves, iter(uses), equations
        self.latest: dict[int, Gain] = {}
        self.ended: set[int] = set()  # kernels whose outputs were read by something else

    def evaluate(self, program: Any, values: Sequence[Gain]) -> list[Gain]:
        return interpret(program, values, lambda x: Gain(True, None, x, x), self.step)

    def step(self, eqn: Any, values: Sequence[Gain]) -> Sequence[Gain]:
        if (inner := program_of(eqn)) is not None:
            return self.evaluate(inner, values)
        use, addend = next(self.uses), addend_of(eqn, values)
        if all(value.given for value in values):
            return self.given(eqn, values, addend)
        results = [ACTIVATION] * len(eqn.outvars)
        outputs = [value for value in values if value.use is not None]
        if isinstance(use, Solve):
            ones = jnp.ones(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype)
            self.latest[use.addend.leaf] = results[0] = Gain(False, use, ones, ones)
        elif len(outputs) == 1 and sum(value.given for value in values) == len(values) - 1:
            results[0] = self.followed(eqn, use is not None, values, outputs[0], addend)
        for value in outputs if id(eqn) in self.live else ():
            self.read(value, results[0])
        return results

    def read(self, gain: Gain, after: Gain) -> None:
        """Note what became of outputs: they must not be read in two ways, but at the end."""
        leaf = gain.solve.addend.leaf
        if self.latest[leaf] is not gain or (leaf in self.ended and after is not ACTIVATION):
            self.latest[leaf] = ACTIVATION
        elif after is ACTIVATION:
            self.ended.add(leaf)
        else:
            self.latest[leaf] = after

    def given(self, eqn: Any, values: Sequence[Gain], addend: Addend | None) -> list[Gain]:
        leaves, variances = together(values)
        arrays = evaluate_equation(eqn, [v.array for v in values])
        same = all(v.array is v.deviation for v in values)
        deviations = arrays if same else evaluate_equation(eqn, [v.deviation for v in values])
        name = eqn.primitive.name
        power = POWERS.get(name, values[1].array if name == "pow" else None)
        if power is not None and np.ndim(power) == 0 and values[0].addend is not None:
            leaf, spread = values[0].addend
            variance = jnp.broadcast_to(spread(self.leaves[leaf]), arrays[0].shape)
            deviations, variances = [deviations[0] * variance ** -float(power)], variances | {leaf}
        addends = [addend] + [None] * (len(arrays) - 1)
        return [
            Gain(True, None, array, deviation, (), leaves, variances, addend)
            for array, deviation, addend in zip(arrays, deviations, addends, strict=True)
        ]

    def followed(
        self, eqn: Any, once: bool, values: Sequence[Gain], gain: Gain, addend: Addend | None
    ) -> Gain:
        """The gain after an equation that has it and what is given as operands."""
        name, first = eqn.primitive.name, values[0] is gain
        leaves, variances = together(v for v in values if v.given)
        after, added = ACTIVATION, name in ("add", "add_any") or (name == "sub" and first)
        if eqn.outvars[0].aval.shape != gain.array.shape:
            return after
        if added and gain.leaves and leaves:
            after = gain._replace()
        elif added and once and addend is not None and leaves == {addend.leaf}:
            after = gain._replace(before=(*gain.before, addend))
        elif (name in ("convert_element_type", "copy")) or (
            leaves and (name == "mul" or (name == "div" and first))
        ):
            array, deviation = (
                evaluate_equation(eqn, [getattr(v, kind) for v in values])[0]
                for kind in ("array", "deviation")
            )
            leaves, variances = gain.leaves | leaves, gain.variances | variances
            after = gain._replace(
                array=array, deviation=deviation, leaves=leaves, variances=variances
            )
        return after


def live(program: Any, needed: set[Any]) -> set[int]:
    """The equations, by `id`, that variables of a program are computed by; calls are entered."""
    found, needed = set(), {v for v in needed if not is_literal(v)}
    for eqn in reversed(closed_jaxpr(program).jaxpr.eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        found.add(id(eqn))
        if (inner := program_of(eqn)) is not None:
            results = zip(closed_jaxpr(inner).jaxpr.outvars, eqn.outvars, strict=True)
            found |= live(inner, {result for result, v in results if v in needed})
        needed |= {v for v in eqn.invars if not is_literal(v)}
    return found


def together(values: Any) -> tuple[frozenset[int], frozenset[int]]:
    """The parameters that values are made of, and those under a root."""
    pairs = [(value.leaves, value.variances) for value in values]
    leaves, variances = zip(*pairs, strict=True) if pairs else ((), ())
    return frozenset().union(*leaves), frozenset().union(*variances)
