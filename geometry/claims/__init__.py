"""Checks statements of papers by computation, in their printed and in their corrected form.

A `Claim` has checks. If possible, a check is exact: an identity or an inequality is computed in
thousands of cases, some of them adversarial. If an exact check is not possible, the check estimates
a number by Monte Carlo. `check(claim, key)` returns a `Verdict`. `check_all` decides about many
claims together. The probability that `check_all` rejects at least one true statement is below
`LEVEL`. `about(claims, "Theorem 1")` finds claims by the number of a theorem, equation, figure or
table. The claims of the three papers are in the folder `scripts/claims` of the repository;
`scripts/check_theorems.py` checks them.

Example:
  >>> import jax, jax.numpy as jnp
  >>> claim = Claim(
  ...     "notes",
  ...     "Theorem 1",
  ...     "E max(u, v) = 2/3 of independent uniform numbers, where 1/2 is printed",
  ...     fault="misprint",
  ... )
  >>> pairs = Draws(lambda key: {"larger": jax.random.uniform(key, (2,)).max()}, 2000)
  >>> claim.mean("1/2", 1 / 2, pairs, "larger", form="rejected")
  >>> claim.mean("2/3", 2 / 3, pairs, "larger", form="corrected")
  >>> verdict = check(claim, jax.random.key(0))
  >>> print(verdict.text, verdict.printed_holds, verdict.corrected_holds)
  misprint False True
"""

from geometry.claims._decide import (
    LEVEL as LEVEL,
    check as check,
    check_all as check_all,
    decide as decide,
    measure as measure,
    number as number,
    sources as sources,
)
from geometry.claims._findings import (
    Finding as Finding,
    Measurement as Measurement,
    Verdict as Verdict,
)
from geometry.claims._numbers import about as about, numbered as numbered, objects as objects
from geometry.claims._types import (
    Cases as Cases,
    Check as Check,
    Claim as Claim,
    Computed as Computed,
    Draws as Draws,
    Fault as Fault,
    Form as Form,
    Remark as Remark,
    Result as Result,
    Sampled as Sampled,
    Standing as Standing,
    Statistics as Statistics,
    Values as Values,
)
