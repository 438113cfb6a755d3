"""Settings that differ in one field, for tests that such settings have different digests."""

import dataclasses
from collections.abc import Iterator
from typing import Any


def with_one_other_value(settings: Any) -> Iterator[tuple[str, Any]]:
    """For each field of a dataclass: its name, and the settings with another value of the field."""
    for field in dataclasses.fields(settings):
        value = other(getattr(settings, field.name))
        yield field.name, dataclasses.replace(settings, **{field.name: value})


def other(value: Any) -> Any:
    """Another value of the same type, or a number instead of None."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 + 0.125
        case str():
            return f"{value}2"
        case tuple():
            return value[:-1] if value else ("stem",)
        case None:
            return 0.5
    raise TypeError(f"give another value for {value!r}")
