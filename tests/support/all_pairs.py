"""Test plans in which every pair of values of two options occurs.

A mistake that shows only at a combination of options usually shows at a combination of two options.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def all_pairs(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows with one value of each factor, such that each pair of values of two factors occurs.

    The algorithm is greedy. A row begins with a pair of values that no earlier row has. Every other
    factor gets the value that adds the most new pairs. Ten factors with two or three values need 10
    to 25 rows, but have thousands of combinations.
    """
    names = list(factors)
    left = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(range(len(factors[a])), range(len(factors[b])))
    }
    order = {name: k for k, name in enumerate(names)}

    def meets(row: dict[str, int], name: str, value: int) -> int:
        pairs = (
            sorted([(name, value), *[other]], key=lambda p: order[p[0]]) for other in row.items()
        )
        return sum(tuple(pair) in left for pair in pairs)

    rows = []
    while left:
        first = min(left, key=lambda pair: [(order[name], value) for name, value in pair])
        row = dict(first)
        for name in names:
            if name not in row:
                values = range(len(factors[name]))
                row[name] = max(values, key=lambda value, name=name: meets(row, name, value))
        left -= {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
        rows.append({name: factors[name][row[name]] for name in names})
    return rows
