"""Every numbered object of three papers as data: what is printed, what holds, and how to decide.

`ALL` has a claim for each, in the order of the papers; `PAPERS` has them by paper. `check(claim,
key)` draws, computes and returns a `Verdict`; `check_all` decides about many together, and keeps
the chance that any true statement is rejected below `LEVEL`. `about(ALL, "Theorem 1")` finds claims
by the number of a theorem, equation, figure or table. Each check is exact where it can be
(identities and inequalities over thousands of cases, adversarial ones among them) and sampled where
it cannot.

Example:
  >>> import jax
  >>> claim = next(claim for claim in ALL if claim.name == "Definition 1, example")
  >>> print(check(claim, jax.random.key(0)).text)
  wrong as printed, holds corrected
"""

from geometry.claims._decide import LEVEL as LEVEL
from geometry.claims._decide import check as check
from geometry.claims._decide import check_all as check_all
from geometry.claims._decide import decide as decide
from geometry.claims._decide import measure as measure
from geometry.claims._decide import number as number
from geometry.claims._decide import sources as sources
from geometry.claims._findings import Finding as Finding
from geometry.claims._findings import Measurement as Measurement
from geometry.claims._findings import Verdict as Verdict
from geometry.claims._numbers import about as about
from geometry.claims._numbers import numbered as numbered
from geometry.claims._numbers import objects as objects
from geometry.claims._types import Check as Check
from geometry.claims._types import Claim as Claim
from geometry.claims._types import Computed as Computed
from geometry.claims._types import Draws as Draws
from geometry.claims._types import Remark as Remark
from geometry.claims._types import Result as Result
from geometry.claims._types import Sampled as Sampled
from geometry.claims._types import Standing as Standing
from geometry.claims.bn_decomposed import CLAIMS as _BN_DECOMPOSED
from geometry.claims.cwda import CLAIMS as _CWDA
from geometry.claims.unitization import CLAIMS as _UNITIZATION
from geometry.claims.unitization import distance_bounds as distance_bounds

PAPERS: dict[str, tuple[Claim, ...]] = {
    "unitization": _UNITIZATION,
    "cwda": _CWDA,
    "bn-decomposed": _BN_DECOMPOSED,
}
"""The claims of each paper, in its order."""
ALL: tuple[Claim, ...] = tuple(claim for claims in PAPERS.values() for claim in claims)
"""The claims of all three papers."""
