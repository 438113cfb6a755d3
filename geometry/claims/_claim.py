"""What a claim is, and how chance decides about it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
from jaxtyping import Array, Float, Key

from geometry._monte_carlo import monte_carlo

_REJECT = 6  # standard errors from which a printed value is called wrong
_ACCEPT = 4  # standard errors up to which a corrected value is called right
_BATCH = 100  # draws held in memory at a time


@dataclass(frozen=True)
class Claim:
    """A number that a paper prints, the number that we put in its place, and how to draw it.

    Attributes:
      paper: Short title.
      name: As printed, down to the number of the equation or theorem.
      statement: What is measured, in one line.
      printed: The printed form, as text.
      corrected: The corrected form, as text.
      kind: "value" if `printed_value` is what the mean should be, "upper bound" if it should not
        exceed it.
      printed_value: The printed number.
      predicted: The corrected number, always a value.
      draw: One draw of the quantity whose mean is claimed.
      samples: Number of draws that `check` takes.
    """

    paper: str
    name: str
    statement: str
    printed: str
    corrected: str
    kind: Literal["value", "upper bound"]
    printed_value: float
    predicted: float
    draw: Callable[[Key[Array, ""]], Float[Array, ""]]
    samples: int


class Verdict(NamedTuple):
    """A Monte Carlo estimate and what it says of a claim.

    `z_printed` and `z_corrected` are the distances of the estimate from the two numbers, in
    standard errors. `text` is the verdict in words.
    """

    estimate: float
    stderr: float
    z_printed: float
    z_corrected: float
    printed_holds: bool
    corrected_holds: bool
    text: str


def check(claim: Claim, key: Key[Array, ""]) -> Verdict:
    """Estimate what `claim` is about, and compare with the printed and the corrected number.

    A printed value is rejected beyond 6 standard errors, a printed bound is violated if the
    estimate less 6 standard errors exceeds it, and a corrected value holds within 4. The same key
    gives the same verdict. Not to be traced: it returns Python numbers.
    """
    mean, stderr, _ = jax.tree.map(
        float, monte_carlo(claim.draw, key, claim.samples, batch_size=_BATCH)
    )
    z_printed = _distance(mean - claim.printed_value, stderr)
    z_corrected = _distance(mean - claim.predicted, stderr)
    upper = claim.kind == "upper bound"
    printed_holds = z_printed <= _REJECT and (upper or z_printed >= -_REJECT)
    corrected_holds = abs(z_corrected) < _ACCEPT
    no = "bound violated" if upper else "value rejected"
    yes = "bound not violated" if upper else "value not rejected"
    text = (
        f"printed {yes if printed_holds else no}, "
        f"corrected value {'holds' if corrected_holds else 'rejected'}"
    )
    return Verdict(mean, stderr, z_printed, z_corrected, printed_holds, corrected_holds, text)


def _distance(difference: float, stderr: float) -> float:
    """`difference` in standard errors; without any spread 0 or infinite."""
    if stderr == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / stderr
