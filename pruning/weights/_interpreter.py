"""Reads pickles with an interpreter that calls only given functions and imports no module.

A name in a pickle that is not among the given names becomes an object of the class `Unknown`. A
call of an `Unknown` returns the `Unknown`. The number of opcodes is limited, to limit time and
memory.
"""

import io
import pickletools
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from pruning.weights._limits import WeightsError, string_key

CONSTANTS = (
    *("NEWTRUE", "NEWFALSE", "NONE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A name in a pickle that is not among the given names."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a pickle may call."""

    call: Callable[..., Any]


class Interpreter:
    """Reads pickles of at most `max_bytes` bytes in at most `steps` steps.

    Each opcode is a step. A call takes one more step for each argument and for each element of an
    argument.
    """

    def __init__(
        self,
        names: Mapping[str, Any],
        persistent: Callable[[Any], Any],
        *,
        steps: int,
        max_bytes: int,
    ):
        self.names, self.persistent = names, persistent
        self.steps, self.max_bytes = steps, max_bytes

    def load(self, file: io.BytesIO | io.BufferedReader) -> Any:
        """The object that the next pickle in the file describes."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        start = at = file.tell()
        for opcode, argument, at in pickletools.genops(file):
            self.spend(1)
            if (at or 0) - start > self.max_bytes:
                raise WeightsError("a pickle must not exceed the limits for a file of this size")
            if opcode.name in CONSTANTS:
                self.stack.append(argument)
            elif opcode.name in OPERATIONS:
                OPERATIONS[opcode.name](self, argument)
            else:
                raise WeightsError(
                    f"a pickle of tensors must not use the operation {opcode.name} (byte {at})"
                )
        self.max_bytes -= (at or 0) - start
        return self.stack.pop()

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise WeightsError("a pickle must not exceed the limits for a file of this size")

    def memoize(self, index: int) -> None:
        """Store the top of the stack in the memo.

        Indices must be consecutive, because a file could otherwise choose indices that cause hash
        collisions in the memo.
        """
        if index > len(self.memo) + 1:  # indices begin at 1 in pickles of Python 2
            raise WeightsError("the memo entries of a pickle must be numbered in order")
        self.memo[index] = self.stack[-1]

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def make_tuple(self, n: int) -> None:
        items = [self.stack.pop() for _ in range(n)]
        self.stack.append(tuple(reversed(items)))

    def append(self, items: list[Any]) -> None:
        match self.stack[-1]:
            case list() as target:
                target += items
            case Unknown():
                pass
            case target:
                raise WeightsError(
                    f"a pickle must append items to a list, not to a {type(target).__name__}"
                )

    def set_items(self, items: list[Any]) -> None:
        match self.stack[-1]:
            case dict() as target:
                target.update(dictionary(zip(items[::2], items[1::2], strict=True)))
            case Unknown():
                pass
            case target:
                raise WeightsError(
                    f"a pickle must set keys of a dictionary, not of a {type(target).__name__}"
                )

    def find(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}" if type(module) is type(name) is str else "?"
        self.stack.append(self.names.get(full, Unknown(full[:100])))

    def call(self) -> None:
        function, arguments = self.stack[-2:]
        del self.stack[-2:]
        if type(arguments) is not tuple:
            raise WeightsError("a pickle of tensors must call functions with a tuple of arguments")
        match function:
            case Unknown():
                self.stack.append(function)
            case Function(call):
                sizes = [len(a) for a in arguments if isinstance(a, Sized)]
                # Elements of the arguments count as steps, because a call can copy its arguments.
                self.spend(len(arguments) + sum(sizes))
                self.stack.append(call(*arguments))
            case _:
                raise WeightsError(
                    f"a pickle must call only functions of tensors; got a {type(function).__name__}"
                )


def dictionary(items: Any = ()) -> dict[str, Any]:
    """A dictionary made of pairs; the keys must be strings or small integers."""
    return {string_key(key): value for key, value in items}


OPERATIONS: dict[str, Callable[[Interpreter, Any], Any]] = {
    "PROTO": lambda p, _: None,
    "FRAME": lambda p, _: None,
    "STOP": lambda p, _: None,
    "MARK": lambda p, _: p.marks.append(len(p.stack)),
    "POP": lambda p, _: p.stack.pop(),
    "GLOBAL": lambda p, name: p.find(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda p, _: p.find(*reversed([p.stack.pop(), p.stack.pop()])),
    "REDUCE": lambda p, _: p.call(),
    "NEWOBJ": lambda p, _: p.call(),
    "BUILD": lambda p, _: p.stack.pop(),
    "BINPERSID": lambda p, _: p.stack.append(p.persistent(p.stack.pop())),
    "EMPTY_TUPLE": lambda p, _: p.stack.append(()),
    "EMPTY_LIST": lambda p, _: p.stack.append([]),
    "EMPTY_DICT": lambda p, _: p.stack.append({}),
    "EMPTY_SET": lambda p, _: p.stack.append(Unknown("set")),
    "ADDITEMS": lambda p, _: p.append(p.since_mark()),
    "TUPLE": lambda p, _: p.stack.append(tuple(p.since_mark())),
    "TUPLE1": lambda p, _: p.make_tuple(1),
    "TUPLE2": lambda p, _: p.make_tuple(2),
    "TUPLE3": lambda p, _: p.make_tuple(3),
    "APPEND": lambda p, _: p.append([p.stack.pop()]),
    "APPENDS": lambda p, _: p.append(p.since_mark()),
    "SETITEM": lambda p, _: p.set_items([*reversed([p.stack.pop(), p.stack.pop()])]),
    "SETITEMS": lambda p, _: p.set_items(p.since_mark()),
    "BINPUT": lambda p, index: p.memoize(index),
    "LONG_BINPUT": lambda p, index: p.memoize(index),
    "MEMOIZE": lambda p, _: p.memoize(len(p.memo)),
    "BINGET": lambda p, index: p.stack.append(p.memo[index]),
    "LONG_BINGET": lambda p, index: p.stack.append(p.memo[index]),
}
