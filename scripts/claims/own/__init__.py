"""Claims that the library adds to the papers' claims, decided by the same engine."""

from claims.own import normalizers
from claims.sections import claims_in

CLAIMS = claims_in(normalizers)
