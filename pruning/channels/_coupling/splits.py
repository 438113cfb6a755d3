"""Reads off a program along which axes a reshape may lay the channels of an axis that it splits."""

from collections.abc import Iterator

from jax.extend.core import primitives as p

from pruning.channels._coupling.channel_ids import Split
from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import Equation, Program, Variable, call_of, shape_of
from pruning.channels._program.interpret import is_literal

Readers = dict[Variable, list[Equation]]


def splits_of(program: Program) -> dict[int, Split]:
    """For each reshape of a program, by Python's `id()` of the equation, how it splits axes."""
    readers: Readers = {}
    for eqn in program.eqns:
        for variable in eqn.invars:
            if not is_literal(variable):
                readers.setdefault(variable, []).append(eqn)
    reshapes = (eqn for eqn in program.eqns if eqn.primitive is p.reshape_p)
    return {id(eqn): _split(eqn, readers) for eqn in reshapes}


def _split(eqn: Equation, readers: Readers) -> Split:
    found = list(_reached(eqn, readers))
    single = {axes[k] for reader, axes in found for k in _read_singly(reader)}
    convolved = any(reader.primitive is p.conv_general_dilated_p for reader, _ in found)
    return Split(convolved or _shuffled(eqn, readers), frozenset(single))


def _reached(eqn: Equation, readers: Readers) -> Iterator[tuple[Equation, tuple[int, ...]]]:
    """The equations that read the result of `eqn`, also after transposes and elementwise functions.

    The second value has the number in the result of `eqn` of each axis that the equation reads.
    """
    left = [(eqn.outvars[0], tuple(range(len(shape_of(eqn.outvars[0])))))]
    seen: set[int] = set()
    while left:
        variable, axes = left.pop()
        for reader in readers.get(variable, []):
            if id(reader) in seen:
                continue
            seen.add(id(reader))
            yield reader, axes
            computed = rule_of(reader).elementwise or call_of(reader) is not None
            if reader.primitive is p.transpose_p:
                order = reader.params["permutation"]
                left.append((reader.outvars[0], tuple(axes[k] for k in order)))
            elif computed:
                same = (v for v in reader.outvars if shape_of(v) == shape_of(variable))
                left.extend((v, axes) for v in same)


def _read_singly(eqn: Equation) -> list[int]:
    """The axes of which the equation reads a single index, as `h[..., 0, :]` does."""
    old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    if eqn.primitive.name == "unstack":
        return [eqn.params["axis"]]
    if eqn.primitive is not p.slice_p and eqn.primitive.name != "split":
        return []
    return [
        k for k, (before, after) in enumerate(zip(old, new, strict=True)) if after == 1 < before
    ]


def _shuffled(eqn: Equation, readers: Readers) -> bool:
    """Whether only transpositions lie between the equation and the next reshape."""
    found = readers.get(eqn.outvars[0], [])
    if len(found) != 1:
        return False
    if found[0].primitive is p.transpose_p:
        return _shuffled(found[0], readers)
    return found[0].primitive is p.reshape_p
