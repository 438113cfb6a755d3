"""Reads trees of mappings and lists, as in checkpoints, by the names of their leaves."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pruning.weights._limits import MAX_DEPTH, WeightsError

WRAPPERS = ("state_dict", "model_state_dict", "model", "params", "state")
# A part with such a name is a module if another part at the same level has kernels.
MODULES = ("model", "state")
# An optimizer's state is left out, because its moments have the shapes of weights.
OPTIMIZER = re.compile(r"opt(im(izer)?s?)?(_.*)?")
# A moving average of the weights (`ema`) is not a module, although it has kernels.
NO_MODULE = re.compile(rf"{OPTIMIZER.pattern}|(.*_)?ema(_.*)?")
MAX_WRAPPERS = 8  # The largest number of levels that only wrap the weights.
# The limit on the characters of all names in a tree; each node counts as 32 more characters.
MAX_NAMES = 2**22


def unwrap(tree: Mapping) -> Mapping:
    """The weights of a checkpoint.

    Levels that only wrap the weights, and the states of optimizers, are left out. The levels below
    `params` are modules, and not wrappers.
    """
    names = WRAPPERS
    for _ in range(MAX_WRAPPERS):
        inner = [key for key in names if isinstance(tree.get(key), Mapping)]
        if not inner or (inner[0] in MODULES and _other_kernels(tree, inner[0])):
            break
        names = ("params",) if inner[0] == "params" else WRAPPERS
        tree = tree[inner[0]]
    return {key: part for key, part in tree.items() if not OPTIMIZER.fullmatch(str(key))}


def _other_kernels(tree: Mapping, key: str) -> bool:
    """Whether parts of `tree` other than `key`, optimizers and averages (`ema`) have kernels."""
    others = {name: part for name, part in tree.items() if name != key}
    others = {n: p for n, p in others.items() if not NO_MODULE.fullmatch(str(n))}
    return any(len(getattr(leaf, "shape", ())) >= 2 for _, leaf in leaves(others))


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
            case {"value": value} if len(node) == 1 and not isinstance(
                value, Mapping | list | tuple
            ):
                yield name, value  # the node is a variable of NNX
                return
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


def add(arrays: dict[str, Any], name: str, array: Any) -> None:
    if name in arrays:
        raise WeightsError(
            f"the arrays must have different names; two are named {name[:100]}: rename one"
        )
    arrays[name] = array
