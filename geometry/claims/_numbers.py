"""Numbered objects of a paper, such as theorems and equations, and the claims about them."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from geometry.claims._types import Claim

KINDS = {
    kind.casefold(): kind
    for kind in (
        *("Equation", "Theorem", "Lemma", "Proposition", "Corollary", "Definition", "Fact"),
        *("Algorithm", "Figure", "Table", "Assumption", "Remark"),
    )
}
_NUMBER = r"\d+(?:\.\d+)?[a-z]?"
_LIST = re.compile(
    rf"\b({'|'.join(KINDS)})s?((?:[\s,]|\band\b|\bto\b|[\d.]+[a-z]?)*)", flags=re.IGNORECASE
)


def numbered(text: str) -> tuple[str, ...]:
    """The numbered objects, such as "Theorem 1", that `text` names alone or in ranges.

    Raises:
      ValueError: The two ends of a range differ in more than their last part, or do not ascend.

    Example:
      >>> print(numbered("Theorem 3, item 2, Equations 7a, 9 and 36 to 38"))
      ('Theorem 3', 'Equation 7a', 'Equation 9', 'Equation 36', 'Equation 37', 'Equation 38')
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, such as 'Theorem 1'; got {text!r}")
    names: list[str] = []
    for kind, numbers in _LIST.findall(text):
        for first, last in re.findall(rf"({_NUMBER})(?:\s+to\s+({_NUMBER}))?", numbers):
            span = _span(first, last) if last else [first]
            names += [f"{KINDS[kind.casefold().rstrip('s')]} {n}" for n in span]
    return tuple(dict.fromkeys(names))


def _span(first: str, last: str) -> list[str]:
    """The numbers from `first` to `last`, such as 36 to 38, 3.1 to 3.3 or 7a to 7c."""
    (*before, low), (*same, high) = (re.findall(r"\d+|[a-z]", end) for end in (first, last))
    codes = [int(end) if end.isdigit() else ord(end) for end in (low, high)]
    if before != same or low.isdigit() != high.isdigit() or codes[0] > codes[1]:
        raise ValueError(
            f"text must have ranges that ascend in their last part, such as 3.1 to 3.3 or 7a to "
            f"7c; got {first} to {last}"
        )
    prefix = first.removesuffix(low)
    return [f"{prefix}{n if low.isdigit() else chr(n)}" for n in range(codes[0], codes[1] + 1)]


def objects(claim: Claim) -> tuple[str, ...]:
    """The numbered theorems, equations and figures in a claim's name and in its field `covers`."""
    if not isinstance(claim, Claim):
        raise TypeError(f"claim must be a Claim; got {claim!r}")
    return numbered(f"{claim.name}; {claim.covers}")


def about(claims: Iterable[Claim], text: str) -> tuple[Claim, ...]:
    """The claims about the objects that `text` names, such as "Theorem 1".

    If `text` has no number, the result is all claims whose names contain `text`, in upper or lower
    case letters.

    Raises:
      TypeError: `claims` is a string instead of a list of claims.
      ValueError: No claim is about the object that `text` names.
    """
    if isinstance(claims, str):
        raise TypeError(f"claims must be a list of `Claim`; got the text {claims!r}")
    if not isinstance(claims, Iterable):
        raise TypeError(f"claims must be a list of `Claim`; got {claims!r}")
    claims, wanted = tuple(claims), set(numbered(text))
    if not claims:
        raise ValueError("claims must hold at least one claim; got none")
    if wanted:
        found = tuple(claim for claim in claims if wanted & set(objects(claim)))
    else:
        found = tuple(claim for claim in claims if text.casefold() in claim.name.casefold())
    if not found:
        names = "; ".join(get_close_matches(text, [claim.name for claim in claims], 3, cutoff=0))
        raise ValueError(f"text must name what a claim is about, such as {names}; got {text!r}")
    return found
