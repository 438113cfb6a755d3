"""Collect the claims that the modules of a paper define."""

from types import ModuleType

from geometry.claims import Claim


def claims_in(*sections: ModuleType) -> tuple[Claim, ...]:
    return tuple(x for section in sections for x in vars(section).values() if isinstance(x, Claim))
