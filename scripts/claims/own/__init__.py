"""Claims of the library itself; `geometry.claims` checks these claims like the papers' claims."""

from claims.own import normalizers
from claims.sections import claims_in

CLAIMS = claims_in(normalizers)
