"""Claims of three papers as data: what is printed, what we put in its place, and how to decide.

`check(claim, key)` draws and returns a `Verdict`. `ALL` has two claims of each paper whose printed
form is wrong or far off, each decided within seconds.

Example:
  >>> import jax
  >>> verdict = check(ALL[0], jax.random.key(0))
  >>> print(verdict.text)
  printed bound violated, corrected value holds
"""

from geometry.claims._bn_decomposed import CLAIMS as _BN_DECOMPOSED
from geometry.claims._claim import Claim as Claim
from geometry.claims._claim import Verdict as Verdict
from geometry.claims._claim import check as check
from geometry.claims._cwda import CLAIMS as _CWDA
from geometry.claims._unitization import CLAIMS as _UNITIZATION

ALL: tuple[Claim, ...] = (*_UNITIZATION, *_CWDA, *_BN_DECOMPOSED)
