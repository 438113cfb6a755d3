"""Collects the claims that the modules of a paper define."""

from types import ModuleType

from geometry.claims import Claim


def claims_in(*sections: ModuleType) -> tuple[Claim, ...]:
    """All claims that the modules define, in their order."""
    return tuple(x for section in sections for x in vars(section).values() if isinstance(x, Claim))
