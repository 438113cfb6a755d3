"""The table of primitives in docs/programs.md, made from the rows of `RULES`.

`python -m tools.tables` writes it.
"""

from pruning.channels._coupling import arithmetic, moves
from pruning.channels._coupling.rules import RULES, Rule

HEADER = (
    "| primitives | function of their axes | zeros remain | equal channels remain equal "
    "| infinite at a zero of | parameters at smaller shapes |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)
ZEROS = {
    arithmetic.never: "no",
    arithmetic.same: "where they are moved or summed",
    arithmetic.any_of: "of any operand",
    arithmetic.all_of: "of all operands",
    arithmetic.first_of: "of the first operand",
    arithmetic.cases_of: "of all but the first operand",
    arithmetic.unpadded: "without padding",
    moves.zero_of_scatter: "where no function is applied",
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
        "adapted" if rule.smaller else "",
    )


def _zeros(rule: Rule) -> str:
    if rule.exponent is not None:
        return "of the base, at a positive exponent"
    return ZEROS.get(rule.zero, "of all operands, unless a number decides")
