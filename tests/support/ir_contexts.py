"""Lets programs share an MLIR context, as JAX does by itself from version 0.12 on.

Before, each program makes a context of its own, which takes an eighth of the time of all tests and
two thirds of their memory. A context keeps every type and constant that a program has named, so a
new one follows after some programs.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

PROGRAMS = 100  # the most programs that share a context


def begin() -> None:
    if jax.__version_info__ < (0, 12):
        mlir.make_ir_context = shared(mlir.make_ir_context)


def shared(make: Callable[[], Any]) -> Callable[[], Any]:
    """`make`, called once for each thread and every `PROGRAMS` calls, and for inner programs.

    A program that is written while another one is would land inside the other in its context.
    """
    thread = threading.local()

    def context() -> Any:
        if ir.Context.current is not None:
            return make()
        thread.calls = getattr(thread, "calls", -1) + 1
        if thread.calls % PROGRAMS == 0:
            thread.context = make()
        return thread.context

    return context
