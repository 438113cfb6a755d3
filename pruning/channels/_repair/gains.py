"""Finds the gain of each kernel; a network multiplies the outputs of a kernel by the gain.

Before the next nonlinearity or sum of activations, the network computes gain ⊙ (y + before) + after
from the outputs y of a kernel. The term `before` is computed from parameters such as a running
mean. The gain is computed from parameters such as a scale and a running variance.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import Equation, Leaf, evaluate_equation, shape_of
from pruning.channels._repair.parameters import Addend, Fact, Kernel, Network


class Gain(NamedTuple):
    """Facts about an array of the program.

    The array is computed from parameters only, or holds the outputs of a kernel times factors.

    Attributes:
      kernel: The kernel of the outputs, or None if the array is computed from parameters.
      array: The array itself, if it is computed from parameters. For the outputs of a kernel,
        `array` has the factors that multiplied the outputs, in the shape of the outputs.
      deviation: The value of `array` without the running standard deviations by which `array` was
        divided. For a batch norm, `deviation` is the gain times the running standard deviation.
      before: The parameters that were added to the outputs, or subtracted from them, before the
        first factor.
      leaves: The parameters from which `array` is computed.
      variances: The parameters of `leaves` that are under a square root.
      addend: The parameter that the array equals, or that is a term of the array, or None.
    """

    kernel: Kernel | None = None
    array: Leaf = None
    deviation: Leaf = None
    before: tuple[Addend, ...] = ()
    leaves: frozenset[int] = frozenset()
    variances: frozenset[int] = frozenset()
    addend: Addend | None = None

    @property
    def maker(self) -> Kernel:
        """The kernel, which must not be None."""
        assert self.kernel is not None
        return self.kernel

    def of_outputs(self, array: Array) -> np.ndarray:
        """One factor for each output of the kernel, read from `array`, (groups, 1, outputs)."""
        return np.asarray(self.maker.linear.outputs(array).mean(1, keepdims=True), np.float64)

    def of_parameter(self, addend: Addend, factor: np.ndarray, like: Array) -> Array:
        """The `factor` of each output, in the shape of a parameter that is added to outputs."""
        zero, transpose = jax.vjp(self.maker.linear.outputs, jnp.zeros_like(self.array))
        (whole,) = transpose(jnp.broadcast_to(jnp.asarray(factor, zero.dtype), zero.shape))
        return addend.mean(whole * addend.spread(jnp.ones_like(like)), like)


NO_GAIN = Gain()


def gains(network: Network, leaves: Sequence[Array]) -> dict[int, Gain]:
    """A dictionary from the index of each kernel in `leaves` to the gain of the kernel.

    The network must have no dead code. The result lacks a kernel in three cases: no parameter
    scales its outputs, its outputs are also read without the gain, or other arrays than single
    parameters are added before the gain.
    """
    found = Gains(leaves)
    parameters = [
        Gain(None, x, x, (), frozenset([i]), addend=Addend(i, lambda change: change))
        for i, x in enumerate(leaves)
    ]
    inputs = [NO_GAIN] * (len(network.program.in_avals) - len(leaves))
    network.interpret([*parameters, *inputs], lambda x: Gain(None, x, x), found.step)
    return {i: gain for i, gain in found.latest.items() if gain.leaves}


class Gains:
    """Collects the gains of kernels, and evaluates arrays that depend on parameters only."""

    def __init__(self, leaves: Sequence[Array]):
        self.leaves = leaves
        self.latest: dict[int, Gain] = {}
        # Indices of the kernels whose gain is complete, because an equation has read the outputs
        # without multiplying them by a further factor.
        self.ended: set[int] = set()

    def step(self, fact: Fact, eqn: Equation, values: Sequence[Gain]) -> Sequence[Gain]:
        if fact.given:
            return self.given(eqn, values, fact.addend)
        results = [NO_GAIN] * len(eqn.outvars)
        outputs = [value for value in values if value.kernel is not None]
        if (kernel := fact.solved) is not None and kernel.alone:
            result: Any = eqn.outvars[0].aval
            ones = jnp.ones(result.shape, result.dtype)
            self.latest[kernel.addend.leaf] = results[0] = Gain(kernel, ones, ones)
        elif len(outputs) == 1:
            results[0] = self.follow(eqn, values, outputs[0], fact)
        for value in outputs:
            self.read(value, results[0])
        return results

    def read(self, gain: Gain, after: Gain) -> None:
        """Record that an equation turns the gain `gain` of a kernel's outputs into `after`.

        Several equations may read the same outputs only after the gain is complete.
        """
        leaf = gain.maker.addend.leaf
        if self.latest[leaf] is not gain or (leaf in self.ended and after is not NO_GAIN):
            self.latest[leaf] = NO_GAIN
        elif after is NO_GAIN:
            self.ended.add(leaf)
        else:
            self.latest[leaf] = after

    def given(self, eqn: Equation, values: Sequence[Gain], addend: Addend | None) -> list[Gain]:
        leaves, variances = together(values)
        arrays = evaluate_equation(eqn, [v.array for v in values])
        same = all(v.array is v.deviation for v in values)
        deviations = arrays if same else evaluate_equation(eqn, [v.deviation for v in values])
        exponent = rule_of(eqn).exponent
        power = exponent(eqn, [v.array for v in values]) if exponent else 1
        if np.ndim(power) == 0 and power % 1 != 0 and values[0].addend is not None:
            leaf, spread = values[0].addend
            variance = jnp.broadcast_to(spread(self.leaves[leaf]), arrays[0].shape)
            deviations, variances = [deviations[0] * variance**-power], variances | {leaf}
        addends = [addend] + [None] * (len(arrays) - 1)
        return [
            Gain(None, array, deviation, (), leaves, variances, addend)
            for array, deviation, addend in zip(arrays, deviations, addends, strict=True)
        ]

    def follow(self, eqn: Equation, values: Sequence[Gain], gain: Gain, fact: Fact) -> Gain:
        """The gain after an equation that reads outputs of one kernel with the gain `gain`."""
        rule, side = rule_of(eqn), next(k for k, value in enumerate(values) if value is gain)
        leaves, variances = together([v for v in values if v.kernel is None])
        after, added = NO_GAIN, rule.signs[side : side + 1] == (1,)
        addend = fact.shift if fact.once else None
        if shape_of(eqn.outvars[0]) != gain.array.shape:
            return after
        if added and gain.leaves and leaves:
            after = gain._replace()
        elif added and addend is not None and leaves == {addend.leaf}:
            after = gain._replace(before=(*gain.before, addend))
        elif (rule.elementwise and rule.layout) or (leaves and side in rule.scaled):
            array, deviation = (
                evaluate_equation(eqn, [getattr(v, kind) for v in values])[0]
                for kind in ("array", "deviation")
            )
            leaves, variances = gain.leaves | leaves, gain.variances | variances
            after = gain._replace(
                array=array, deviation=deviation, leaves=leaves, variances=variances
            )
        return after


def together(values: Sequence[Gain]) -> tuple[frozenset[int], frozenset[int]]:
    """The union of the `leaves` of all values, and the union of their `variances`."""
    pairs = [(value.leaves, value.variances) for value in values]
    leaves, variances = zip(*pairs, strict=True) if pairs else ((), ())
    return frozenset().union(*leaves), frozenset().union(*variances)
