"""Compares results of small runs with `tests/recorded`, so that no number changes unnoticed.

A record stores what the code returned. A record does not prove that the result is right; other
tests compare results with numbers computed by hand. After an intended change, `RECORD=1 pytest
TEST` updates the record. Check the difference before you commit it.
"""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files

FOLDER = Path(__file__).parents[1] / "recorded"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def assert_as_recorded(name: str, result: Any, *, rtol: float = 1e-4, atol: float = 1e-7) -> None:
    """Compare a result of plain types or arrays with its record, with tolerances for numbers.

    Numbers inside strings have the same tolerances, but at least one unit of the last digit.
    """
    path = FOLDER / f"{name}.json"
    if os.environ.get("RECORD"):
        files.write(path, files.results_text({"result": result}))
    expected = json.loads(path.read_text(encoding="utf-8"))["result"]
    found = difference(files.plain(result), expected, rtol, atol)
    assert not found, f"{path.name}: {found}"


CHANGING = ("seconds", "date", "command", "environment")
LONGEST = 72  # an array is recorded whole if its JSON text has at most 72 characters


def condense(value: Any, *left_out: str) -> Any:
    """A result for a record, without times, versions, the keys `left_out` and long arrays.

    A long array is replaced by its shape, its mean, its standard deviation, and its covariance with
    cos(1), cos(2), … The covariance changes if the order of the elements changes.
    """
    value = files.plain(value)
    if isinstance(value, dict):
        names = [name for name in value if name not in (*CHANGING, *left_out)]
        return {name: condense(value[name], *left_out) for name in names}
    if not isinstance(value, list):
        return value
    if len(json.dumps(value)) <= LONGEST or not _is_numeric(value):
        return [condense(item, *left_out) for item in value]
    x = np.array(value, float)
    weights = np.cos(np.arange(x.size) + 1.0)
    covariance = float(np.mean((x.ravel() - x.mean()) * weights))
    return {"shape": list(x.shape), "moments": [float(x.mean()), float(x.std()), covariance]}


def _is_numeric(value: list) -> bool:
    try:
        return bool(np.isfinite(np.array(value, float)).all())
    except (TypeError, ValueError):
        return False


def difference(new: Any, old: Any, rtol: float, atol: float) -> str:
    """The first difference between two values of plain types, or "" if they are equal."""
    same, pairs = True, []
    match new, old:
        case dict(), dict() if list(new) == list(old):
            pairs = [(key, new[key], old[key]) for key in new]
        case list(), list() if len(new) == len(old):
            pairs = [(place, *pair) for place, pair in enumerate(zip(new, old, strict=True))]
        case str(), str():
            same = _same_text(new, old, rtol, atol)
        case (bool() | None, _) | (_, bool() | None):
            same = new is old
        case int() | float(), int() | float():
            same = math.isclose(new, old, rel_tol=rtol, abs_tol=atol)
        case _:
            same = False
    for key, new_value, old_value in pairs:
        if found := difference(new_value, old_value, rtol, atol):
            return f"[{key!r}]{'' if found.startswith('[') else ' '}{found}"
    return "" if same else f"is {new!r}, was {old!r}"


def _same_text(new: str, old: str, rtol: float, atol: float) -> bool:
    if NUMBER.split(new) != NUMBER.split(old):
        return False
    pairs = zip(NUMBER.findall(new), NUMBER.findall(old), strict=True)
    return all(
        math.isclose(float(a), float(b), rel_tol=rtol, abs_tol=max(atol, 1.01 * _last_unit(b)))
        for a, b in pairs
    )


def _last_unit(number: str) -> float:
    """One unit of the last digit of a number with a decimal point, or 0 for an integer."""
    mantissa, _, exponent = number.partition("e")
    _, point, fraction = mantissa.partition(".")
    return 10.0 ** (int(exponent or 0) - len(fraction)) if point else 0.0
