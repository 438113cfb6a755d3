"""Lets programs share an MLIR context, as JAX itself does from version 0.12.

In earlier versions, each program has its own context, and contexts take an eighth of the time and
two thirds of the memory of all tests. A context stores every type and constant of its programs, so
a new context is made after some programs.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

PROGRAMS = 100  # the largest number of programs that share a context


def begin() -> None:
    if jax.__version_info__ < (0, 12):
        mlir.make_ir_context = shared(mlir.make_ir_context)


def shared(make: Callable[[], Any]) -> Callable[[], Any]:
    """A function that calls `make` only once for `PROGRAMS` calls of a thread.

    If a program is written while another program is being written, the inner program gets its own
    context. In a shared context, the inner program would become a part of the outer program.
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
