"""Reads trees of mappings and lists, as in checkpoints, by the names of their leaves."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pruning.weights._limits import MAX_DEPTH, WeightsError

WRAPPERS = ("state_dict", "model_state_dict", "model", "params", "state")
# An optimizer's state is left out, because its moments have the shapes of weights.
OPTIMIZER = re.compile(r"opt(im(izer)?s?)?(_.*)?")
# The limit on the characters of all names in a tree, if 32 characters are added for each node.
MAX_NAMES = 2**22


def unwrap(tree: Mapping) -> Mapping:
    """The weights of a checkpoint.

    Levels that only wrap the weights, and the states of optimizers, are left out.
    """
    for _ in range(MAX_DEPTH):
        inner = [key for key in WRAPPERS if isinstance(tree.get(key), Mapping)]
        if not inner:
            break
        tree = tree[inner[0]]
    return {key: part for key, part in tree.items() if not OPTIMIZER.fullmatch(str(key))}


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """The dotted name and the value of each leaf. Leaves of shared parts appear several times."""
    left = MAX_NAMES

    def visit(name: str, node: Any, depth: int) -> Iterator[tuple[str, Any]]:
        nonlocal left
        left -= 32 + len(name)
        if left < 0 or depth > MAX_DEPTH:
            raise WeightsError(
                f"the weights must be a tree at most {MAX_DEPTH} deep, whose names have at most "
                f"{MAX_NAMES} characters in total, if each name counts as 32 more characters"
            )
        match node:
            case Mapping():
                children = node.items()
            case list() | tuple():
                children = enumerate(node)
            case _:
                yield name, node
                return
        for key, child in children:
            yield from visit(f"{name}.{key}" if depth else str(key), child, depth + 1)

    return visit("", tree, 0)
