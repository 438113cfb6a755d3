"""Every numbered object of three papers as data: what is printed, what holds, and how to decide.

`ALL` has an entry for each, in the order of our ledgers; `PAPERS` has them by paper. `check(claim,
key)` draws, computes and returns a `Verdict`; `check_all` decides about many together, and keeps
the chance of any false alarm below 1 %. Each check is exact where it can be (identities and
inequalities over thousands of cases, adversarial ones among them) and sampled where it cannot.

Example:
  >>> import jax
  >>> claim = next(claim for claim in ALL if claim.entry == "EX-GAMMA")
  >>> print(check(claim, jax.random.key(0)).text)
  printed form is rejected, corrected form holds
"""

from geometry.claims._bn_decomposed import CLAIMS as _BN_DECOMPOSED
from geometry.claims._claim import LEVEL as LEVEL
from geometry.claims._claim import Check as Check
from geometry.claims._claim import Claim as Claim
from geometry.claims._claim import Computed as Computed
from geometry.claims._claim import Draws as Draws
from geometry.claims._claim import Finding as Finding
from geometry.claims._claim import Measurement as Measurement
from geometry.claims._claim import Sampled as Sampled
from geometry.claims._claim import Verdict as Verdict
from geometry.claims._claim import check as check
from geometry.claims._claim import check_all as check_all
from geometry.claims._claim import decide as decide
from geometry.claims._claim import function_of as function_of
from geometry.claims._claim import measure as measure
from geometry.claims._claim import name_of as name_of
from geometry.claims._claim import number as number
from geometry.claims._claim import source as source
from geometry.claims._claim import sources as sources
from geometry.claims._cwda import CLAIMS as _CWDA
from geometry.claims._unitization import CLAIMS as _UNITIZATION
from geometry.claims._unitization_cases import distance_bounds as distance_bounds

PAPERS: dict[str, tuple[Claim, ...]] = {
    "unitization": _UNITIZATION,
    "cwda": _CWDA,
    "bn-decomposed": _BN_DECOMPOSED,
}
ALL: tuple[Claim, ...] = (*_UNITIZATION, *_CWDA, *_BN_DECOMPOSED)
