"""Runs on a CPU what JAX would compile for another platform."""

from collections.abc import Callable
from typing import Any

import jax
from jax import export


def as_on(platform: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The program of `function` for a `platform`, such as "cuda" or "tpu", which runs on the CPU.

    The program has the form that `jax.lax.platform_dependent` selects for the platform.
    """

    def call(*args: Any) -> Any:
        checks = [export.DisabledSafetyCheck.platform()]
        exporting = export.export(jax.jit(function), platforms=[platform], disabled_checks=checks)
        return exporting(*args).call(*args)

    return call
