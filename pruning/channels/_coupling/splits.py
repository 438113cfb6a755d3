"""Finds along which of the new axes channels may lie after a reshape has split their axis."""

from collections.abc import Iterator

from jax.extend.core import primitives as p

from pruning.channels._coupling.channel_ids import Split
from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import Equation, Program, Variable, call_of, shape_of
from pruning.channels._program.interpret import is_literal

Readers = dict[Variable, list[Equation]]


def splits_of(program: Program) -> dict[int, Split]:
    """A `Split` for each reshape of a program; the keys are Python's `id()` of the equations."""
    readers: Readers = {}
    for eqn in program.eqns:
        for variable in eqn.invars:
            if not is_literal(variable):
                readers.setdefault(variable, []).append(eqn)
    reshapes = {id(eqn): eqn for eqn in program.eqns if eqn.primitive is p.reshape_p}

    def needed(eqn: Equation) -> list[int]:
        """The axes from which the equation reads one index, as in `h[..., 0]`, or a maximum."""
        rule, name = rule_of(eqn), eqn.primitive.name
        if name == "unstack":
            return [eqn.params["axis"]]
        if eqn.primitive is p.slice_p or name == "split":
            old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
            return [k for k, n in enumerate(new) if n == 1 < old[k]]
        if rule.summed is None or rule.linear is not None or rule.sums:
            return []
        return [axis for operands in rule.summed(eqn) for _, axis in operands]

    def split(eqn: Equation) -> Split:
        found = list(_reached(eqn, readers))
        reader, axes = found[0] if len(found) == 1 else (eqn, ())
        shuffles = list(axes) != sorted(axes) and id(reader) in reshapes
        convolved = any(r.primitive is p.conv_general_dilated_p for r, _ in found)
        pinned = {axes[k] for reader, axes in found for k in needed(reader)}
        return Split(shuffles or convolved, frozenset(pinned))

    return {key: split(eqn) for key, eqn in reshapes.items()}


def _reached(eqn: Equation, readers: Readers) -> Iterator[tuple[Equation, tuple[int, ...]]]:
    """The equations that read the result of `eqn`, directly or after elementwise functions.

    Equations that read the result after transposes are included. For each equation, a tuple lists
    the axes of the result of `eqn`, in the order in which the equation reads the axes.
    """
    left = [(eqn.outvars[0], tuple(range(len(shape_of(eqn.outvars[0])))))]
    seen: set[int] = set()
    while left:
        variable, axes = left.pop()
        for reader in readers.get(variable, []):
            if id(reader) in seen:
                continue
            seen.add(id(reader))
            if reader.primitive is p.transpose_p:
                order = reader.params["permutation"]
                left.append((reader.outvars[0], tuple(axes[k] for k in order)))
                continue
            yield reader, axes
            if rule_of(reader).elementwise or call_of(reader) is not None:
                same = (v for v in reader.outvars if shape_of(v) == shape_of(variable))
                left.extend((v, axes) for v in same)
