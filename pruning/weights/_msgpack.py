"""Reads Flax's msgpack with a parser that checks sizes before it makes objects."""

import re
import struct
from typing import Any

import jax.numpy as jnp
import numpy as np

from pruning.weights._limits import MAX_DEPTH, WeightsError, n_elements, string_key

# The first byte of an object says what the object is. These tables map the byte to the value of a
# constant, or to the `struct` format of the number or length that follows the byte.
NUMBERS = {0xCA + i: code for i, code in enumerate("fdBHIQbhiq")}
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
LENGTHS = {
    **{0xC4 + i: ("binary", code) for i, code in enumerate("BHI")},
    **{0xC7 + i: ("extension", code) for i, code in enumerate("BHI")},
    **{0xD9 + i: ("text", code) for i, code in enumerate("BHI")},
    **{0xDC + i: ("array", code) for i, code in enumerate("HI")},
    **{0xDE + i: ("map", code) for i, code in enumerate("HI")},
}
FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
ARRAY, SCALAR = 1, 3  # codes of Flax's msgpack extensions (code 2, a complex number, is not read)


class Parser:
    """Reads objects that have at most `steps` parts and `max_text` bytes of text in total."""

    def __init__(self, data: bytes | memoryview, *, steps: int, max_text: int):
        self.data, self.at = memoryview(data), 0
        self.steps, self.max_text = steps, max_text

    def value(self, depth: int = 0) -> Any:
        self.spend(1)
        if depth > MAX_DEPTH:
            raise WeightsError(f"the file must be a tree at most {MAX_DEPTH} deep")
        head = self.take(1)[0]
        if head in CONSTANTS:
            return CONSTANTS[head]
        if head in NUMBERS:
            return self.number(NUMBERS[head])
        if head < 0x80 or head >= 0xE0:
            return head if head < 0x80 else head - 0x100
        kind, length = self.kind(head)
        match kind:
            case "map":
                self.spend(2 * length)
                return merge_chunks(dict(self.item(depth + 1) for _ in range(length)))
            case "array":
                self.spend(length)
                return [self.value(depth + 1) for _ in range(length)]
            case "text":
                self.max_text -= length
                self.spend(0)
                return str(self.take(length), "utf-8")
            case "extension":
                code = self.take(1)[0]
                data = self.take(length)
                return self.array(data, depth + 1) if code in (ARRAY, SCALAR) else None
        return self.take(length)

    def kind(self, head: int) -> tuple[str, int]:
        if head < 0xC0:
            kind = ("map", "array", "text", "text")[head - 0x80 >> 4]
            return kind, head & (31 if kind == "text" else 15)
        if head in FIXED_EXTENSIONS:
            return "extension", FIXED_EXTENSIONS[head]
        if head not in LENGTHS:
            raise WeightsError(f"a part must not begin with the byte {head}")
        kind, code = LENGTHS[head]
        return kind, self.number(code)

    def item(self, depth: int) -> tuple[str, Any]:
        return string_key(self.value(depth)), self.value(depth)

    def array(self, data: memoryview, depth: int) -> np.ndarray | None:
        """The floating-point array that an extension describes, or None for other dtypes."""
        inner = Parser(data, steps=self.steps, max_text=self.max_text)
        match inner.value(depth):
            case [[*shape], str() | memoryview() as name, memoryview() as content]:
                dtype = floating(name if isinstance(name, str) else str(name[:20], "ascii"))
            case _:
                raise WeightsError("an array must have a shape, a dtype and bytes")
        self.steps, self.max_text = inner.steps, inner.max_text
        if dtype is None:
            return None
        if n_elements([check_natural(n) for n in shape]) * dtype.itemsize != len(content):
            raise WeightsError(
                f"the shape of an array must fit its {len(content)} bytes of {dtype}; got "
                f"{shape[:8]}"
            )
        return np.frombuffer(content, dtype).reshape(shape).copy()

    def number(self, code: str) -> Any:
        return struct.unpack(f">{code}", self.take(struct.calcsize(code)))[0]

    def take(self, n: int) -> memoryview:
        if n > len(self.data) - self.at:
            raise WeightsError("the file must be complete; it ends in the middle of a value")
        self.at += n
        return self.data[self.at - n : self.at]

    def spend(self, n: int) -> None:
        self.steps -= n
        if self.steps < 0 or self.max_text < 0:
            raise WeightsError("parts and text must not exceed the limits for a file of this size")


def floating(name: str) -> np.dtype | None:
    return jnp.dtype(name) if re.fullmatch(r"(b?float)\d\w{0,12}", name) else None


def merge_chunks(tree: dict) -> Any:
    """The array that is made of the numbered chunks in `tree`, or `tree` if it has no chunks.

    Flax splits arrays above a gigabyte into chunks.
    """
    match tree:
        case {"__msgpack_chunked_array__": _, "shape": {**sizes}, "chunks": {**chunks}}:
            parts = [chunks[str(i)] for i in range(len(chunks))]
            if any(part is None for part in parts):
                return None
            shape = [sizes[str(i)] for i in range(len(sizes))]
            return np.concatenate(parts).reshape([check_natural(n) for n in shape])
    return tree


def check_natural(n: Any) -> int:
    if type(n) is not int or n < 0:
        raise WeightsError("the shape of an array must consist of natural numbers")
    return n
