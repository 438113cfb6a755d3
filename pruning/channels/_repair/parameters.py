"""Collects facts about how a network uses its parameters, for the repairs of this package.

The equations are visited in the order of `interpret`. For each equation, the module finds whether
the equation depends only on parameters, which parameter the equation adds, which kernel multiplies
activations in the equation, and whether other equations read the same parameter.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxnorm.internal import replicate
from pruning.channels._coupling.groups import ChannelGroup, describe
from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Program,
    Tree,
    evaluate_equation,
    is_floating,
    makes_reals,
    shape_of,
)
from pruning.channels._program.interpret import T, interpret, trace_apply
from pruning.channels._program.linear import Linear


class Addend(NamedTuple):
    """A parameter that is a term of a sum.

    The function `spread` maps a change of the parameter to the resulting change of the sum.
    """

    leaf: int
    spread: Callable[[Array], Array]

    def mean(self, change: Array, like: Array) -> Array:
        """The parameter's change that best fits a `change` of the sum, as a mean over elements."""

        def spread(x: Array) -> Array:
            return jnp.broadcast_to(self.spread(x), change.shape).astype(change.dtype)

        change = replicate(change)  # on an Explicit mesh, outputs of `spread` are replicated
        count, transpose = jax.vjp(spread, jnp.ones_like(like))
        return transpose(change)[0] / transpose(count)[0]


class Kernel(NamedTuple):
    """A kernel that multiplies activations.

    Attributes:
      side: The index of the operand that is the kernel.
      addend: The parameter that the kernel equals up to the order of elements. If the kernel is a
        sum, the parameter is a term of this sum.
      linear: The equation as a matrix product with the kernel.
      alone: Whether the kernel is the parameter itself and not a sum.
      made_of: The parameters from which the kernel is computed.
      shifted: Whether a parameter is only a bias: it is added to the outputs of the product, and no
        other equation reads it.
    """

    side: int
    addend: Addend
    linear: Linear
    alone: bool
    made_of: frozenset[int]
    shifted: bool = False

    def matrix(self, kernel: Array) -> Array:
        """The matrix of the kernel, from the parameter's array or from a change of this array."""
        return self.linear.matrix(self.addend.spread(kernel))

    def kernel(self, matrix: Array | np.ndarray, like: Array) -> Array:
        """The array of the parameter, from the matrix of the kernel."""
        zero, transpose = jax.vjp(self.matrix, jnp.zeros_like(like))
        return transpose(jnp.broadcast_to(jnp.asarray(matrix, zero.dtype), zero.shape))[0]


class Fact(NamedTuple):
    """Facts about how an equation uses parameters.

    Attributes:
      given: Whether all operands of the equation are computed only from parameters and constants.
      addend: The parameter that the equation adds to its first result, such as a bias. If the
        equation adds several parameters, `addend` is the first.
      kernel: The kernel by which the equation multiplies activations.
      once: Whether no other equation reads the parameter of `addend` or of `kernel`.
    """

    given: bool
    addend: Addend | None = None
    kernel: Kernel | None = None
    once: bool = False

    @property
    def shift(self) -> Addend | None:
        """The parameter that the equation adds to activations."""
        return None if self.given else self.addend

    @property
    def solved(self) -> Kernel | None:
        """The kernel, or None if another equation also reads the kernel's parameter."""
        return self.kernel if self.once else None


class Network(NamedTuple):
    """A traced network, and facts about its equations in the order of `interpret`."""

    program: Program
    facts: list[Fact]

    def interpret(
        self,
        values: Sequence[T],
        constant: Callable[[Leaf], T],
        step: Callable[[Fact, Equation, list[T]], Sequence[T]],
    ) -> list[T]:
        """Evaluate the program by the function `interpret`; `step` also gets an equation's fact."""
        facts = iter(self.facts)
        return interpret(self.program, values, constant, lambda eqn, x: step(next(facts), eqn, x))


class Role(NamedTuple):
    """The parameters and the kernel from which an array of a program is computed.

    `given` and `addend` have the same meaning as in `Fact`, and `alone` as in `Kernel`. `maker` is
    the index of the equation whose kernel made the array. If `given` is true, `made_of` are the
    parameters from which the array is computed.
    """

    given: bool
    addend: Addend | None = None
    alone: bool = False
    maker: int | None = None
    made_of: frozenset[int] = frozenset()


def read_network(apply: Apply, params: Tree, inputs: Sequence[Tree]) -> Network:
    """The network `apply(params, *inputs)` and the facts about its equations."""
    return network_of(trace_apply(apply, params, inputs)[0], describe(params).shapes)


def network_of(program: Program, shapes: Sequence[tuple[int, ...]]) -> Network:
    """The network of a program whose first arguments are parameters with `shapes`.

    Parameters that are integers or Python numbers cannot be changed, so they are neither addends
    nor kernels.
    """
    facts: list[Fact] = []
    readers: Counter[int] = Counter()  # For each parameter, how many equations read it.
    # For the index of each product, the index of the equation that adds a parameter to the product.
    sums: dict[int, int] = {}

    def step(eqn: Equation, roles: Sequence[Role]) -> list[Role]:
        given, addend = all(role.given for role in roles), _addend(eqn, roles)
        read = {role.addend.leaf for role in roles if role.addend is not None}
        readers.update(read - {addend.leaf} if given and addend else read)
        kernel, number = None if addend else _kernel(eqn, roles, shapes), len(facts)
        facts.append(Fact(given, addend if makes_reals(eqn) else None, kernel))
        if facts[-1].shift is not None:
            sums.update({role.maker: number for role in roles if role.maker is not None})
        first = roles[0] if rule_of(eqn).rearranges else Role(given)
        alone, maker = first.alone, number if kernel else first.maker
        made_of = frozenset().union(*(role.made_of for role in roles if given))
        result = Role(given, addend if given else None, alone, maker, made_of)
        others = Role(given, made_of=made_of)
        return [result, *[others] * (len(eqn.outvars) - 1)]

    def origin(i: int, aval: Any) -> Role:
        # A Python number must stay a Python number, so its value is never changed: the result
        # would be an array with a dtype.
        is_array = aval.ndim > 0 or not aval.weak_type
        may_change = is_floating(aval) and is_array
        addend = Addend(i, lambda x: x) if may_change else None
        return Role(True, addend, alone=may_change, made_of=frozenset([i]))

    arguments = program.jaxpr.invars
    parameters = [origin(i, v.aval) for i, v in enumerate(arguments[: len(shapes)])]
    inputs = [Role(False)] * (len(arguments) - len(shapes))
    interpret(program, parameters + inputs, lambda x: Role(True), step)
    for i, fact in enumerate(facts):
        addend = fact.kernel.addend if fact.kernel else fact.addend
        facts[i] = fact._replace(once=addend is not None and readers[addend.leaf] == 1)
    for i, after in sums.items():
        if (kernel := facts[i].kernel) is not None:
            facts[i] = facts[i]._replace(kernel=kernel._replace(shifted=facts[after].once))
    return Network(program, facts)


def _addend(eqn: Equation, roles: Sequence[Role]) -> Addend | None:
    rule = rule_of(eqn)
    if rule.layout and roles[0].addend is not None:
        leaf, spread = roles[0].addend
        return Addend(leaf, lambda change: evaluate_equation(eqn, [spread(change)])[0])
    pairs = zip(roles, rule.signs, strict=False)
    found = ((role.addend, sign) for role, sign in pairs if role.addend is not None)
    addend, sign = next(found, (None, 1))
    if addend is None or sign > 0:
        return addend
    return Addend(addend.leaf, lambda change: -addend.spread(change))


def _kernel(
    eqn: Equation, roles: Sequence[Role], shapes: Sequence[tuple[int, ...]]
) -> Kernel | None:
    """The kernel by which an equation multiplies activations, or None."""
    linear_of = rule_of(eqn).linear
    if linear_of is None or not makes_reals(eqn):
        return None
    for side, role in enumerate(roles):
        if role.addend is None or roles[1 - side].given:
            continue
        linear = linear_of(eqn, side)
        size = math.prod(shapes[role.addend.leaf])
        if linear is not None and math.prod(shape_of(eqn.invars[side])) == size:
            return Kernel(side, role.addend, linear, role.alone, role.made_of)
    return None


def check_solved(groups: Sequence[ChannelGroup], network: Network, *, alone: bool = False) -> None:
    """Raise unless each kernel with input channels of the groups is used in exactly one product.

    If a kernel is a sum, a repair changes one term, and no other product may read the other terms.
    With `alone`, a kernel must be a parameter itself and not a sum.
    """
    kernels = [fact.kernel for fact in network.facts if fact.kernel is not None]
    readers = Counter(leaf for kernel in kernels for leaf in kernel.made_of)
    solved = [fact.solved for fact in network.facts]
    leaves = {
        leaf
        for kernel in solved
        if kernel is not None and (kernel.alone or not alone)
        for leaf in kernel.made_of
        if leaf == kernel.addend.leaf or readers[leaf] == 1
    }
    paths = {groups[0].parameters.paths[leaf] for leaf in leaves}
    incoming = [p.path for group in groups for p in group.positions if p.incoming]
    if refused := [path for path in dict.fromkeys(incoming) if path not in paths]:
        raise ValueError(
            "each kernel whose inputs are removed must be read once, outside of loops and "
            f"branches, by a product with activations; this is not true of {', '.join(refused)}: "
            "exclude the layers whose outputs it reads, or prune without this repair"
        )
