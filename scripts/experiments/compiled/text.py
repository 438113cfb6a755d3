"""Parse XLA's HLO, which is the text of a compiled program, and count the bytes of arrays.

A `Program` has a dictionary that maps the name of each computation to its list of instructions.
Shapes remain text, such as `bf16[256,56,56,64]{3,0,2,1:T(8,128)(2,1)S(1)}`. The text of a shape has
the element type, the dimensions and the layout. The layout has the order of the dimensions (the
fastest-varying first), the tiles, and the memory space; S(1) is a TPU's vector memory.
"""

import math
import re
from typing import NamedTuple

BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4,
    "s64": 8, "u64": 8, "f4e2m1fn": 0.5, "f8e3m4": 1, "f8e4m3": 1, "f8e4m3b11fnuz": 1,
    "f8e4m3fn": 1, "f8e4m3fnuz": 1, "f8e5m2": 1, "f8e5m2fnuz": 1, "f8e8m0fnu": 1, "bf16": 2,
    "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,<=]*)\](\{[^}]*\})?")
TILE = re.compile(r"T\(([\d,]+)\)")
OFF_HBM = re.compile(r"S\([1-9]")


class Instruction(NamedTuple):
    name: str
    shape: str
    op: str
    # The names of the operands. A parameter has its index instead, and a constant has its value.
    operands: list[str]
    attributes: str
    is_root: bool


class Program(NamedTuple):
    computations: dict[str, list[Instruction]]
    entry: str

    def callee(self, instruction: Instruction) -> list[Instruction]:
        """The instructions of the computation that `instruction` calls; [] if there is none."""
        return self.computations.get(called(instruction), [])


def parse(text: str) -> Program:
    """Parse the text `compiled.as_text()` of a program."""
    computations, entry = {}, ""
    instructions: list[Instruction] = []
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
        if head:
            instructions = computations[head[2]] = []
            entry = head[2] if head[1] else entry
        elif instruction := parse_instruction(line):
            instructions.append(instruction)
    return Program(computations, entry)


def parse_instruction(line: str) -> Instruction | None:
    """Parse a line `[ROOT ]%name = shape op(operands), attributes`."""
    match = re.match(r"\s+(ROOT )?%?([\w.\-]+) = (.*)$", re.sub(r"/\*.*?\*/", "", line))
    if not match:
        return None
    root, name, rest = match.groups()
    end = closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    call = re.match(r" ?([\w\-]+)(\(.*)$", rest[end:])
    if not call:
        return None
    op, arguments = call.groups()
    close = closing(arguments)
    operands = re.findall(r"%([\w.\-]+)", arguments[:close])
    if op in ("parameter", "constant"):
        operands = [arguments[1:close]]
    return Instruction(name, rest[:end], op, operands, arguments[close + 1 :], bool(root))


def closing(text: str) -> int:
    """The index of the parenthesis that closes the first parenthesis of `text`."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return i
    return len(text)


def attribute(instruction: Instruction, pattern: str) -> str:
    """The text that the first group of `pattern` matches in an instruction's attributes, or ""."""
    match = re.search(pattern, instruction.attributes)
    return match[1] if match else ""


def called(instruction: Instruction) -> str:
    return attribute(instruction, r"(?:calls|to_apply)=%?([\w.\-]+)")


def branches(instruction: Instruction) -> list[str]:
    """The names of the computations that are the branches of a conditional."""
    listed = attribute(instruction, r"branch_computations=\{([^}]*)\}")
    return [name.strip().lstrip("%") for name in listed.split(",") if name] + re.findall(
        r"(?:true|false)_computation=%?([\w.\-]+)", instruction.attributes
    )


def trip_count(program: Program, loop: Instruction) -> int | None:
    """The number of iterations of a `while` loop.

    If XLA states the number, the result is the stated number. Otherwise, the loop's condition is
    read. If the condition compares the counter with a constant, the result is this constant, as if
    the counter started at 0. Without such a constant, the result is None.
    """
    stated = attribute(loop, r'known_trip_count":\{"n":"(\d+)"')
    if stated:
        return int(stated)
    condition = program.computations[attribute(loop, r"condition=%?([\w.\-]+)")]
    root = root_of(condition)
    inside = condition + (program.callee(root) if root and root.op == "fusion" else [])
    tests = [i for i in inside if i.op == "compare"]
    bounds = [i for i in inside if i.op == "constant" and i.shape.startswith("s32[]")]
    if len(tests) == len(bounds) == 1 and "direction=LT" in tests[0].attributes:
        return int(bounds[0].operands[0])
    return None


def root_of(computation: list[Instruction]) -> Instruction | None:
    return next((i for i in computation if i.is_root), None)


def tuple_parts(shape: str) -> list[str]:
    """The shapes of the elements of a tuple; an array counts as a tuple of one element."""
    if not shape.startswith("("):
        return [shape]
    parts, depth, start = [], 0, 1
    for i, character in enumerate(shape):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or depth == 0:
            parts.append(shape[start:i].strip())
            start = i + 1
    return parts


def hbm_bytes(shape: str) -> float:
    """The bytes that the arrays of `shape` take in HBM, with the padding of tiles."""
    return sum(
        BYTES[dtype] * padded_elements(dims, layout)
        for dtype, dims, layout in arrays(shape)
        if not OFF_HBM.search(layout)
    )


def array_bytes(shape: str) -> float:
    """The bytes that the arrays of `shape` take in any memory, with the padding of tiles."""
    return sum(
        BYTES[dtype] * padded_elements(dims, layout) for dtype, dims, layout in arrays(shape)
    )


def arrays(shape: str) -> list[tuple[str, list[int], str]]:
    """The element type, dimensions and layout of each array of `shape`, without tokens."""
    return [
        (dtype, [int(d.removeprefix("<=")) for d in dims.split(",") if d], layout)
        for dtype, dims, layout in ARRAY.findall(shape)
        if dtype in BYTES
    ]


def padded_elements(dims: list[int], layout: str) -> int:
    """The number of elements of an array in memory.

    The dimensions of the array are rounded up to whole tiles of the layout.
    """
    order, _, rest = layout.strip("{}").partition(":")
    tile = TILE.search(rest)
    if not dims or not tile:
        return math.prod(dims)
    sizes = [int(t) for t in tile[1].split(",")]
    slowest_first = [dims[int(axis)] for axis in reversed(order.split(","))]
    physical = [1] * (len(sizes) - len(slowest_first)) + slowest_first
    outer, tiled = physical[: -len(sizes)], physical[-len(sizes) :]
    return math.prod(outer) * math.prod(-(-d // t) * t for d, t in zip(tiled, sizes, strict=True))
