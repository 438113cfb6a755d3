"""Selects the reports of `fixed_channels` about channels inside a network."""

from typing import Any

from pruning.channels import FixedChannels, fixed_channels


def pinning(*arguments: Any, resize: bool = False) -> tuple[FixedChannels, ...]:
    """All reports except reports about inputs and outputs."""
    reports = fixed_channels(*arguments, resize=resize)
    return tuple(report for report in reports if report.primitive not in ("input", "output"))
