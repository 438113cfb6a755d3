"""Read the HBM traffic, the kernels and notable operations from a compiled program's text.

The traffic counts the bytes of all operands and results of each kernel in the entry computation. If
a kernel reads only slices or rows of an operand, only these slices or rows count. If a kernel
updates a result in place, only the written part counts. Reads and writes of a TPU's vector memory
do not count as traffic. The traffic includes copies from HBM to vector memory, and the padding of
tiles. The body of a loop is counted once for each iteration, or once if the number of iterations is
unknown. In a conditional, only the branch with the most traffic is counted.

The traffic ignores three effects. Caches between HBM and a GPU's cores (50 MB on an H100) can
reduce the traffic. A sort or a scatter can need several passes. A kernel can read an operand twice.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

from experiments.compiled.text import (
    Instruction,
    Program,
    array_bytes,
    arrays,
    attribute,
    branches,
    hbm_bytes,
    parse,
    root_of,
    trip_count,
    tuple_parts,
)

NO_KERNEL = {
    "add-dependency", "after-all", "async-update", "bitcast", "constant", "domain",
    "get-dimension-size", "get-tuple-element", "iota", "opt-barrier", "optimization-barrier",
    "parameter", "partition-id", "replica-id", "token", "tuple",
}  # fmt: skip
COLLECTIVES = {
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
    "ragged-all-to-all", "reduce-scatter",
}  # fmt: skip
NOTABLE = COLLECTIVES | {
    "cholesky", "conditional", "convolution", "custom-call", "dot", "fft", "gather", "infeed",
    "outfeed", "recv", "rng-bit-generator", "scatter", "send", "sort", "topk", "triangular-solve",
}  # fmt: skip


class Summary(NamedTuple):
    """The totals of a program; the kernels of a loop count once for each iteration."""

    bytes: float  # the bytes that are read from HBM or written to HBM
    kernels: int
    notable: Counter  # How often each operation of `NOTABLE` occurs, even inside fusions.
    # The number of loops with an unknown number of iterations. The body of such a loop counts once.
    unknown_loops: int
    # the bytes, the operation and the name of every kernel
    rows: tuple[tuple[float, str, str], ...]


class Collective(NamedTuple):
    op: str
    dtypes: tuple[str, ...]  # The dtypes of the arrays that the collective combines.
    bytes: float  # The bytes of the collective's results.


NOTHING = Summary(0, 0, Counter(), 0, ())


def summary(compiled: Any) -> Summary:
    """The summary of a compiled program, `jax.jit(f).lower(...).compile()`, or of its text.

    The kernels with the most bytes come first in `rows`.
    """
    program = parse(compiled if isinstance(compiled, str) else compiled.as_text())
    total = computation_summary(program, program.entry)
    return total._replace(rows=tuple(sorted(total.rows, reverse=True)))


def collectives(compiled: Any) -> list[Collective]:
    """All collectives of a program; a collective inside a loop is listed once."""
    program = parse(compiled if isinstance(compiled, str) else compiled.as_text())
    instructions = [i for computation in program.computations.values() for i in computation]
    return [
        Collective(
            i.op.removesuffix("-start"),
            tuple(dtype for part in results(i) for dtype, _, _ in arrays(part)),
            sum(map(array_bytes, results(i))),
        )
        for i in instructions
        if i.op.removesuffix("-start") in COLLECTIVES
    ]


def computation_summary(program: Program, name: str) -> Summary:
    """The summary of a computation that runs once."""
    computation = program.computations[name]
    shapes = {i.name: i.shape for i in computation}
    return total([instruction_summary(program, i, shapes) for i in computation])


def instruction_summary(program: Program, i: Instruction, shapes: dict[str, str]) -> Summary:
    if i.op in NO_KERNEL or i.op.endswith("-done") or '"AllocateBuffer"' in i.attributes:
        return NOTHING
    if i.op == "while":
        trips = trip_count(program, i)
        body = computation_summary(program, attribute(i, r"body=%?([\w.\-]+)"))
        once = Summary(0, 0, Counter([f"while x{trips or '?'}"]), trips is None, ())
        return total([once, sum_over_trips(body, trips or 1)])
    if i.op == "conditional":
        dearest = max((computation_summary(program, b) for b in branches(i)), key=lambda s: s.bytes)
        return total([NOTHING._replace(notable=Counter(["conditional"])), dearest])
    if i.op == "call" and program.callee(i):
        return computation_summary(program, attribute(i, r"to_apply=%?([\w.\-]+)"))
    traffic = kernel_bytes(program, i, shapes)
    return Summary(traffic, 1, Counter(notable_names(program, i)), 0, ((traffic, i.op, i.name),))


def total(parts: list[Summary]) -> Summary:
    """The sum of the summaries of computations that run one after another."""
    return Summary(
        sum(p.bytes for p in parts),
        sum(p.kernels for p in parts),
        sum((p.notable for p in parts), Counter()),
        sum(p.unknown_loops for p in parts),
        tuple(row for p in parts for row in p.rows),
    )


def sum_over_trips(body: Summary, trips: int) -> Summary:
    """Compute the summary of a loop from the body's summary and the number of iterations.

    Bytes, kernels and notable operations are multiplied by the number of iterations. Inside the
    body, each loop of unknown length counts once.
    """
    return Summary(
        body.bytes * trips,
        body.kernels * trips,
        Counter({name: count * trips for name, count in body.notable.items()}),
        body.unknown_loops,
        tuple((traffic * trips, op, name) for traffic, op, name in body.rows),
    )


def notable_names(program: Program, i: Instruction) -> list[str]:
    """The names of the notable operations in a kernel; a custom call is named after its target."""
    op = i.op.removesuffix("-start")
    target = attribute(i, r'custom_call_target="([^"]*)"') if op == "custom-call" else ""
    inside = program.callee(i) if op == "fusion" else []
    own = [target or op] if op in NOTABLE else []
    return own + [name for part in inside for name in notable_names(program, part)]


def kernel_bytes(program: Program, i: Instruction, shapes: dict[str, str]) -> float:
    """The bytes that one kernel reads from HBM and writes to HBM."""
    op = i.op.removesuffix("-start")
    if i.op in ("slice-start", "dynamic-slice-start"):  # `i.shape` is ((source), slice, token)
        source, part, *_ = tuple_parts(i.shape)
        return array_bytes(part) * (bool(hbm_bytes(source)) + bool(hbm_bytes(part)))
    if i.op == "copy-start":  # `i.shape` is (destination, source, token)
        return sum(map(hbm_bytes, tuple_parts(i.shape)[:2]))
    if op in COLLECTIVES:
        operands = (shapes.get(name, "") for name in i.operands)
        return sum(map(hbm_bytes, [*results(i), *operands]))
    return bytes_written(program, i, shapes) + bytes_read(program, i, shapes)


def results(collective: Instruction) -> list[str]:
    """The result shapes of a collective; also if `collective` only starts an asynchronous one."""
    parts = tuple_parts(collective.shape)
    if collective.op.endswith("-start") and collective.op != "all-reduce-start":
        return parts[1:2]  # `parts` are (operands, results, ...)
    return parts


def bytes_written(program: Program, i: Instruction, shapes: dict[str, str]) -> float:
    """The bytes that a kernel writes to HBM.

    If a result is updated in place, only the bytes that change count.
    """
    if i.op == "fusion":
        inside = program.callee(i)
        return sum(
            bytes_written_by_fusion(inside, part, index)
            for index, part in enumerate(tuple_parts(i.shape))
        )
    if i.op == "async-start":  # `i.shape` is ((operands), results, ...)
        return sum(map(hbm_bytes, tuple_parts(i.shape)[1:2]))
    if i.op == "dynamic-update-slice":
        return array_bytes(shapes.get(i.operands[1], ""))
    if i.op == "scatter":
        return array_bytes(shapes.get(i.operands[-1], ""))
    parts = tuple_parts(i.shape)
    if i.op == "custom-call" and len(parts) > 1 and re.search("cublas|cudnn", i.attributes):
        parts = [
            part for part in parts if not part.startswith("s8[")
        ]  # int8 results are workspaces
    return sum(map(hbm_bytes, parts))


def bytes_written_by_fusion(inside: list[Instruction], part: str, index: int) -> float:
    """The bytes that a fused computation writes to element `index` of its result."""
    whole = hbm_bytes(part)
    by_name = {i.name: i for i in inside}
    root = root_of(inside)
    if root and root.op == "tuple":
        root = by_name.get(root.operands[index])
    while root and root.op in ("bitcast", "copy"):
        root = by_name.get(root.operands[0])
    if root and root.op == "dynamic-update-slice" and whole:
        return min(whole, array_bytes(by_name[root.operands[1]].shape))
    return whole


def bytes_read(program: Program, i: Instruction, shapes: dict[str, str]) -> float:
    """The bytes that a kernel reads from its operands in HBM.

    If an operand is sliced, only the bytes in the slices count.
    """
    inside = program.callee(i) if i.op in ("fusion", "async-start") else []
    sizes = [hbm_bytes(shapes.get(name, "")) for name in i.operands]
    if inside:
        return sum(bytes_read_by_fusion(program, inside, *operand) for operand in enumerate(sizes))
    if i.op in ("slice", "dynamic-slice", "gather"):
        sizes[0] = min(sizes[0], array_bytes(i.shape))
    if i.op in ("dynamic-update-slice", "scatter"):
        sizes[0] = 0  # The first operand is updated in place, so no traffic is counted for it.
    return sum(dict(zip(reversed(i.operands), reversed(sizes), strict=True)).values())


def bytes_read_by_fusion(
    program: Program, inside: list[Instruction], index: int, whole: float
) -> float:
    """The bytes that a fused computation reads of parameter `index`, which has `whole` bytes."""
    names = [i.name for i in inside if i.op == "parameter" and i.operands == [str(index)]]
    traffic = 0.0 if names else whole
    while names and whole:
        name = names.pop()
        for i in inside:
            if name not in i.operands:
                continue
            if i.op == "bitcast":
                names.append(i.name)
            else:
                traffic += bytes_read_by_instruction(program, i, name, whole)
    return min(traffic, whole)


def bytes_read_by_instruction(program: Program, i: Instruction, name: str, whole: float) -> float:
    """The bytes that one instruction of a fused computation reads of the operand `name`."""
    is_first_only = i.operands[0] == name and name not in i.operands[1:]
    if i.op in ("slice", "dynamic-slice") or (i.op == "gather" and i.operands[0] == name):
        return array_bytes(i.shape)
    if i.op in ("dynamic-update-slice", "scatter") and is_first_only:
        return 0  # the operand is updated in place, so only the update is written
    if i.op == "fusion":
        return sum(
            bytes_read_by_fusion(program, program.callee(i), index, whole)
            for index, operand in enumerate(i.operands)
            if operand == name
        )
    return whole
