"""Read a compiled training step's memory and traffic, and bound its time on a chip from below.

There are three bounds. Each bound is the time that one resource (compute, HBM or interconnect)
needs at its published rate. The bounds do not include the latency of kernels and collectives. The
bounds assume that a chip uses all its links, although a small topology lacks some links.
"""

import itertools
import math
import re
from collections import defaultdict
from importlib.metadata import distributions, version
from typing import Any, NamedTuple

import jax

from experiments import cli
from experiments.cli import InputError
from experiments.compiled.text import BYTES, arrays, parse
from experiments.compiled.traffic import COLLECTIVES, results, summary


class Chip(NamedTuple):
    """Published numbers of a chip, such as its operations per second and its bytes of HBM."""

    flops: float  # The floating-point operations per second in bfloat16.
    hbm_bandwidth: float  # The bytes per second that move between HBM and the chip.
    hbm: float  # The bytes of memory.
    interconnect: float  # The bytes per second that a chip can send over all links together.


# The published figures of chips. The keys are JAX's names of the devices. The figures of TPUs are
# from docs.cloud.google.com/tpu/docs/v5e, v5p and v6e. The figures of the H100 are from NVIDIA's
# data sheet of the SXM module, for bfloat16 without sparsity.
CHIPS = {
    "TPU v5 lite": Chip(197e12, 819e9, 16e9, 200e9),
    "TPU v5": Chip(459e12, 2.765e12, 95e9, 600e9),
    "TPU v6 lite": Chip(918e12, 1.638e12, 32e9, 400e9),
    "NVIDIA H100 80GB HBM3": Chip(989e12, 3.35e12, 80e9, 450e9),
}


def hbm_needed(error: Exception) -> float:
    """The bytes of HBM that a step needs, read from the compiler's error when the HBM is too small.

    Raises:
      InputError: The cause of `error` is not a lack of memory.
    """
    needed = re.search(r"Used ([\d.]+)G of [\d.]+G hbm", str(error))
    if needed is None:
        reason = str(error).strip().splitlines()[0][:300]
        raise InputError(
            f"--compile-for: XLA must be able to compile this step without a device; {reason}"
        ) from error
    return float(needed[1]) * 2**30


def measure(
    compiled: jax.stages.Compiled, flops: float, chips: int, chip: Chip | None
) -> dict[str, Any]:
    """The memory, collectives, HBM traffic and operations that a step needs on each chip.

    If the figures of the `chip` are known, the result also has the bounds of the time.
    """
    text = str(compiled.as_text())
    traffic, exchanged = summary(text), collectives(text)
    result: dict[str, Any] = {
        "memory": memory_of(compiled, chip),
        "collectives": exchanged,
        "hbm_bytes": traffic.bytes,
        "kernels": traffic.kernels,
        "flops": flops,
    }
    if chip is not None:
        seconds = {
            "compute": flops / chip.flops,
            "HBM": traffic.bytes / chip.hbm_bandwidth,
            "interconnect": bytes_sent(exchanged, chips) / chip.interconnect,
        }
        result |= {"seconds": seconds, "bound": max(seconds, key=lambda name: seconds[name])}
    return result


def operations(program: jax.stages.Compiled | jax.stages.Lowered) -> float:
    """The number of floating-point operations that XLA reports; 0 if XLA reports no number."""
    flops = (program.cost_analysis() or {}).get("flops", 0.0)
    return flops if flops > 0 else 0.0


def memory_of(compiled: jax.stages.Compiled, chip: Chip | None) -> dict[str, Any]:
    """The bytes of HBM that a step needs.

    If a result reuses the buffer of an argument, the buffer counts once.
    """
    m: Any = compiled.memory_analysis()
    parts = {
        "arguments": m.argument_size_in_bytes,
        "temporary": m.temp_size_in_bytes,
        "results": m.output_size_in_bytes - m.alias_size_in_bytes,
        "program": m.generated_code_size_in_bytes,
    }
    needed = sum(parts.values())
    return parts | {"needed": needed, "fits": None if chip is None else needed <= chip.hbm}


def collectives(text: str) -> list[dict[str, Any]]:
    """List the collectives of a compiled step, with their kind, dtype, count, arrays and bytes."""
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for computation in parse(text).computations.values():
        shapes = {i.name: i.shape for i in computation}
        for i in computation:
            kind = i.op.removesuffix("-start")
            if kind in COLLECTIVES:
                # `whole` is the larger side, which has the full array: the result of an all-gather,
                # or the operand of a reduce-scatter.
                sides = results(i), [shapes.get(name, "") for name in i.operands]
                whole = max(map(sizes, sides), key=lambda side: sum(map(sum, side.values())))
                for dtype, bytes_of in whole.items():
                    found[kind, dtype].append(bytes_of)
    return [
        {
            "kind": kind,
            "dtype": dtype,
            "count": len(parts),
            "arrays": sum(map(len, parts)),
            "bytes": sum(map(sum, parts)),
        }
        for (kind, dtype), parts in sorted(found.items())
    ]


def sizes(shapes: list[str]) -> dict[str, list[float]]:
    """For each element type, the sizes of all arrays in bytes, without the padding of tiles."""
    found: dict[str, list[float]] = defaultdict(list)
    for dtype, dims, _ in itertools.chain(*map(arrays, shapes)):
        found[dtype].append(BYTES[dtype] * float(math.prod(dims)))
    return found


def bytes_sent(exchanged: list[dict[str, Any]], chips: int) -> float:
    """The bytes that one chip sends if each collective runs as a ring over all chips."""
    times = {"all-reduce": 2 * (chips - 1) / chips, "collective-permute": 1}
    return sum(times.get(e["kind"], (chips - 1) / chips) * e["bytes"] for e in exchanged)


def lines(result: dict[str, Any]) -> list[str]:
    """The lines of text that describe the chips and the results of `measure`."""
    chip = CHIPS.get(result["chip"])
    memory, capacity = result["memory"], f" of {with_prefix(chip.hbm)}B" if chip else ""
    verdict = {True: ": fits", False: ": does not fit", None: ""}[memory["fits"]]
    said = [
        f"compiled, not run: {result['chips']} x {result['chip']} ({result['topology']}), "
        f"{result['images_per_chip']} images per chip, {result['parameters']:,} parameters; "
        "all numbers are per chip",
        f"memory: {with_prefix(memory['needed'])}B{capacity}{verdict}",
    ]
    if "arguments" not in memory:
        return said
    parts = (
        f"{name} {with_prefix(memory[name])}B" for name in ("arguments", "temporary", "program")
    )
    said[-1] += f" ({', '.join(parts)})"
    said += [
        f"collectives: {e['count']:g} {e['kind']} of {e['arrays']:g} {e['dtype']} arrays, "
        f"{with_prefix(e['bytes'])}B"
        for e in result["collectives"]
    ] or ["collectives: none"]
    said.append(
        f"HBM traffic: {with_prefix(result['hbm_bytes'])}B in {result['kernels']:,} kernels"
    )
    said.append(f"floating-point operations: {with_prefix(result['flops'])}")
    if chip is None:
        return [*said, f"no bounds: the published figures of {result['chip']} are not known"]
    times = ", ".join(f"{name} {with_prefix(s)}s" for name, s in result["seconds"].items())
    return [*said, f"bounds by the chip's published figures: {times}; {result['bound']} is largest"]


def with_prefix(number: float) -> str:
    """A number as text with three digits and a unit prefix, such as 1.54 T or 27.8 µ."""
    if not number > 0:
        return f"{number:g} "
    # The number is rounded before the prefix is chosen, because 999.9 is written as 1 k.
    number = float(f"{number:.3g}")
    power = min(max(math.floor(math.log10(number) / 3), -3), 4)
    return f"{number / 1000.0**power:.3g} {'nµm kMGT'[power + 3].strip()}"


def environment() -> dict[str, str]:
    """The versions of the libraries and compilers, and the commit."""
    compilers = sorted({"libtpu", "jax-cuda12-plugin"} & {d.name for d in distributions()})
    return cli.versions() | {name: version(name) for name in compilers} | {"commit": cli.commit()}
