"""The table of JAX primitives in docs/programs.md, made from the entries of `RULES`.

`python -m tools.tables` writes the table.
"""

from pruning.channels._coupling import arithmetic, moves
from pruning.channels._coupling.rules import RULES, Rule

HEADER = (
    "| primitives | function of their axes | operands that must be zero so that the result is zero "
    "| result is equal along channels if all operands are "
    "| operands whose zeros make the result or its derivative infinite "
    "| parameters change at smaller shapes |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)
ZEROS = {
    arithmetic.never: "no condition known",
    arithmetic.same: "found by the function of the axes",
    arithmetic.any_of: "any operand",
    arithmetic.all_of: "all operands",
    arithmetic.first_of: "the first operand",
    arithmetic.cases_of: "all operands except the first",
    arithmetic.unpadded: "all operands, without padding",
    moves.zero_of_scatter: "all operands, if no function is applied",
}
ORDINALS = ("the first operand", "the second operand")


def rows() -> list[str]:
    """A row for each set of primitives that have the same rules in the library."""
    table: dict[tuple[str, ...], list[str]] = {}
    for primitive, rule in RULES.items():
        name = primitive if isinstance(primitive, str) else primitive.name
        table.setdefault(_cells(rule), []).append(f"`{name}`")
    return [f"| {' | '.join((', '.join(sorted(k)), *v))} |" for v, k in table.items()]


def _cells(rule: Rule) -> tuple[str, ...]:
    module = rule.axes.__module__.rpartition(".")[2]
    return (
        f"`{module}.{rule.axes.__name__}`",
        _zeros(rule),
        "yes" if rule.uniform else "no",
        " and ".join(ORDINALS[k] for k in rule.singular),
        "yes" if rule.smaller else "",
    )


def _zeros(rule: Rule) -> str:
    if rule.exponent is not None:
        return "the base, at a positive exponent"
    return ZEROS.get(
        rule.zero, "all arrays; a number may not exceed 0 in `max`, or be below 0 in `min`"
    )
