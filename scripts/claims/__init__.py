"""The claims of three papers as data, with printed statements, corrections and checks.

`PAPERS` has the claims of each paper, nearly in the paper's order. `ALL` has the claims of all
papers. The modules follow the sections of each paper. A long section has several modules, and some
modules cover several short sections. In a module, the checks of a claim follow the claim. The
package `geometry.claims` finds out whether each claim holds.
"""

from claims.bn_decomposed import CLAIMS as _BN_DECOMPOSED
from claims.cwda import CLAIMS as _CWDA
from claims.own import CLAIMS as _OWN
from claims.unitization import CLAIMS as _UNITIZATION
from geometry.claims import Claim


class Papers(dict[str, tuple[Claim, ...]]):
    """A dictionary with the names of papers as keys, and the claims of each paper as value."""

    def __missing__(self, name: str) -> tuple[Claim, ...]:
        raise KeyError(f"the paper must be one of {', '.join(self)}; got {name}")


PAPERS = Papers({"unitization": _UNITIZATION, "cwda": _CWDA, "bn-decomposed": _BN_DECOMPOSED})
"""The claims of each paper, nearly in the order of the paper."""
ALL: tuple[Claim, ...] = tuple(claim for claims in PAPERS.values() for claim in claims)
"""The claims of all three papers."""
OWN: dict[str, tuple[Claim, ...]] = {"jaxnorm": _OWN}
"""Claims that the library itself adds to the claims of the papers."""
