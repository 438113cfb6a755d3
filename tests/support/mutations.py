"""Functions with faults on purpose, and the claims whose checks must fail because of the fault."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import pytest
from jaxtyping import Array, Key

from geometry import claims
from geometry.claims import Claim

Function = Callable[..., Any]


class Mutation(NamedTuple):
    """A plausible fault of a function.

    Attributes:
      right: The correct function.
      fault: A description of the fault.
      make: A function that turns the correct function into the wrong function.
      claims: The names of the claims whose checks must fail.
    """

    right: Function
    fault: str
    make: Callable[[Function], Function]
    claims: tuple[str, ...]

    def __str__(self) -> str:
        return f"{getattr(self.right, '__name__', self.right)} {self.fault}"


def times(factor: float) -> Callable[[Function], Function]:
    return result(lambda value: factor * value)


def result(change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    return lambda right: lambda *args, **options: change(right(*args, **options))


def plant(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Replace the correct function by the wrong function in all modules of the packages."""
    wrong, places = mutation.make(mutation.right), 0
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("jaxnorm", "pruning", "geometry", "claims"):
            for attribute in [a for a, value in vars(module).items() if value is mutation.right]:
                monkeypatch.setattr(module, attribute, wrong)
                places += 1
    assert places, f"no module has {mutation}"
    jax.clear_caches()  # removes compiled programs that contain the unmutated function


def unnoticed(
    monkeypatch: pytest.MonkeyPatch,
    mutation: Mutation,
    of_paper: Iterable[Claim],
    key: Key[Array, ""],
    *,
    precision: float = 2.0,
) -> list[str]:
    """The claims of `mutation` whose checks pass in spite of the fault, each checked alone."""
    by_name = {claim.name: claim for claim in of_paper}
    with monkeypatch.context() as patched:
        plant(patched, mutation)
        missed = [name for name in mutation.claims if _holds(by_name[name], key, precision)]
    jax.clear_caches()
    return missed


def _holds(claim: Claim, key: Key[Array, ""], precision: float) -> bool:
    """Whether the checks of a claim have the recorded outcome.

    Random draws use one device, because several devices would take longer to compile.
    """
    if not claim.checks:
        return True
    device = jax.devices()[:1]
    measured = claims.measure([claim], key, precision=precision, devices=device)
    return claims.decide([claim], measured)[0].as_recorded
