"""Claims of the library itself, which `geometry.claims` decides like the papers' claims."""

from claims.own import normalizers
from claims.sections import claims_in

CLAIMS = claims_in(normalizers)
