"""Finds the matrix products and convolutions of programs of JAX."""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def assert_full_precision(program: ClosedJaxpr | Jaxpr) -> None:
    """Fail if a product in `program` has a precision that depends on the device.

    By default, a TPU multiplies float32 numbers with the precision of bfloat16.
    """
    for eqn in _equations(program):
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            assert set(eqn.params["precision"] or (None,)) == {jax.lax.Precision.HIGHEST}, eqn


def _equations(program: Any) -> Iterator[Any]:
    for eqn in program.eqns:
        yield eqn
        for part in jax.tree.leaves(eqn.params, is_leaf=_is_program):
            if _is_program(part):
                yield from _equations(part)


def _is_program(part: Any) -> bool:
    return isinstance(part, ClosedJaxpr | Jaxpr)
