"""The numbered objects of three papers as data: the printed statement, what holds, and checks.

`PAPERS` has the claims of each paper in its order, `ALL` those of all three. One module is a
section of a paper: its checks stand below the statement of each claim. `geometry.claims` decides.
"""

from claims.bn_decomposed import CLAIMS as _BN_DECOMPOSED
from claims.cwda import CLAIMS as _CWDA
from claims.unitization import CLAIMS as _UNITIZATION
from geometry.claims import Claim

PAPERS: dict[str, tuple[Claim, ...]] = {
    "unitization": _UNITIZATION,
    "cwda": _CWDA,
    "bn-decomposed": _BN_DECOMPOSED,
}
"""The claims of each paper, in its order."""
ALL: tuple[Claim, ...] = tuple(claim for claims in PAPERS.values() for claim in claims)
"""The claims of all three papers."""
