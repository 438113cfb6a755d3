"""Where a traced network can be repaired: kernels to solve, and parameters that are added.

The program is evaluated on roles of its values; `Plan.uses` has an entry for every equation, in the
order in which `interpret` comes to them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._program.calls import program_of
from pruning.channels._program.interpret import interpret
from pruning.channels._program.linear import Form, form_of
from pruning.channels._repair.constants import STRUCTURAL, Addend, addend_of


class Solve(NamedTuple):
    """A kernel that is read once, by one product with activations.

    Attributes:
      side: Which operand it is.
      addend: The parameter that it is, but for the order of its elements, or a sum of.
      form: The matrix product.
      shifted: Whether a parameter is added to what it makes.
      alone: Whether it is the parameter and no sum.
    """

    side: int
    addend: Addend
    form: Form
    shifted: bool
    alone: bool

    def matrix(self, kernel: Array) -> Array:
        """The matrix of the parameter, or of a change of it."""
        return self.form.matrix(self.addend.spread(kernel))

    def kernel(self, matrix: Array | np.ndarray, like: Array) -> Array:
        """What `matrix` is of as an array like the parameter: only the order is another."""
        zero, transpose = jax.vjp(self.matrix, jnp.zeros_like(like))
        return transpose(jnp.broadcast_to(jnp.asarray(matrix, zero.dtype), zero.shape))[0]


class Shift(NamedTuple):
    """A parameter that is read once, by a sum with activations."""

    addend: Addend


def check_solved(groups: Sequence[ChannelGroup], uses: Sequence[Solve | Shift | None]) -> None:
    """Raise unless all kernels that read channels of the groups are read once, by a product."""
    leaves = {use.addend.leaf for use in uses if isinstance(use, Solve)}
    solved = {groups[0].parameters.paths[leaf] for leaf in leaves}
    incoming = [p.path for group in groups for p in group.positions if p.incoming]
    if refused := [path for path in dict.fromkeys(incoming) if path not in solved]:
        raise ValueError(
            "kernels after removed channels must be read once, outside of loops, by a product "
            f"with activations; that is not so of {', '.join(refused)}"
        )


class Role(NamedTuple):
    """What a value is made of.

    Attributes:
      given: Whether it is made of parameters and constants alone.
      addend: The parameter that it is a sum of, if there is one.
      kernel: The equation, by number, of the kernel that made it, if nothing was computed since.
      alone: Whether it is that parameter, but for the order of its elements or their sign.
    """

    given: bool
    addend: Addend | None = None
    kernel: int | None = None
    alone: bool = False


class Plan:
    """What is done at each equation of a program: see `uses`."""

    found: list[Any]

    def __init__(self, program: Any, shapes: Sequence[tuple[int, ...]]):
        self.shapes = shapes
        self.found = []
        self.readers: Counter[int] = Counter()  # of each parameter
        self.sums: dict[int, int] = {}  # by the equation of a kernel, that of the sum after it
        parameters = [
            Role(True, Addend(i, lambda change: change), alone=True) for i in range(len(shapes))
        ]
        inputs = [Role(False)] * (len(program.jaxpr.invars) - len(shapes))
        self.evaluate(program, parameters + inputs)

    def uses(self) -> list[Solve | Shift | None]:
        """What is done at each equation, to parameters that are read once."""
        once = [use if use and self.readers[use.addend.leaf] == 1 else None for use in self.found]
        for i, after in self.sums.items():
            if (use := once[i]) is not None:
                once[i] = use._replace(shifted=once[after] is not None)
        return once

    def evaluate(self, program: Any, roles: Sequence[Role]) -> list[Role]:
        return interpret(program, roles, lambda x: Role(True), self.step)

    def step(self, eqn: Any, roles: Sequence[Role]) -> Sequence[Role]:
        if (inner := program_of(eqn)) is not None:
            return self.evaluate(inner, roles)
        given, addend = all(role.given for role in roles), addend_of(eqn, roles)
        read = {role.addend.leaf for role in roles if role.addend is not None}
        self.readers.update(read - {addend.leaf} if given and addend else read)
        number, kernel, use = len(self.found), None, None
        floating = all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars)
        if addend is not None and not given and floating:
            use = Shift(addend)
            self.sums |= {role.kernel: number for role in roles if role.kernel is not None}
        elif floating and (use := self.solve(eqn, roles)) is not None:
            kernel = number
        elif eqn.primitive.name in STRUCTURAL.split():
            kernel = roles[0].kernel
        self.found.append(use)
        alone = eqn.primitive.name in STRUCTURAL.split() and roles[0].alone
        first = Role(given, addend if given else None, kernel, alone)
        return [first, *[Role(given)] * (len(eqn.outvars) - 1)]

    def solve(self, eqn: Any, roles: Sequence[Role]) -> Solve | None:
        """The kernel of an equation, if it has one."""
        if eqn.primitive.name not in ("conv_general_dilated", "dot_general"):
            return None
        for side, (role, other) in enumerate([roles, roles[::-1]]):
            if role.addend is None or other.given:
                continue
            form = form_of(eqn, side)
            size = math.prod(self.shapes[role.addend.leaf])
            if form is not None and eqn.invars[side].aval.size == size:
                return Solve(side, role.addend, form, False, role.alone)
        return None
