"""What runs on the host and not in a traced program."""

from typing import Any

import jax
from jax.core import Tracer


def check_on_host(name: str, *args: Any, instead: str) -> None:
    """Raise if an argument is traced, as under jit, vmap or grad; `instead` says what to do."""
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
        raise TypeError(f"{name} runs on the host and takes no traced arguments; {instead}")
