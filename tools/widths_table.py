"""Find useful widths for chips that are not attached, for docs/results/compiled/widths.json.

    python -m tools.widths_table     # for v5e:2x2 and h100, a minute of a core

The compiled function is a bottleneck block of ResNet-50's third stage in bfloat16, in evaluation
mode, for 64 images of 14 × 14 on one chip. The width between the block's first two convolutions
varies from 112 to 256. The tool does not run the block, but counts costs in the compiled code. For
an H100, the compiler reports no costs, and the tool only counts the bytes that the compiled text
shows.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

import pruning
from experiments import cli, files
from experiments.compiled import compile_only
from experiments.compiled.traffic import summary
from pruning import widths_for
from pruning.channels import Executable, compiled_cycles, compiled_flops

OUT = Path(__file__).parents[1] / "docs/results/compiled/widths.json"
WIDTH, CHANNELS, SHAPE = 256, 1024, (64, 14, 14, 1024)
WIDTHS = range(112, WIDTH + 1, 16)
MARGIN = 0.02  # a useful width must save at least this share of the cost


def block(params: Any, x: jax.Array) -> jax.Array:
    """Apply 1 × 1, 3 × 3 and 1 × 1 convolutions with scales and shifts, and add the input `x`."""

    def convolved(h: jax.Array, name: str) -> jax.Array:
        kernel, scale, shift = params[name]
        dims = ("NHWC", "HWIO", "NHWC")
        h = jax.lax.conv_general_dilated(h, kernel, (1, 1), "SAME", dimension_numbers=dims)
        return h * scale[None, None, None] + shift[None, None, None]

    h = jax.nn.relu(convolved(x, "reduce"))
    h = jax.nn.relu(convolved(h, "window"))
    return jax.nn.relu(x + convolved(h, "expand"))


def shapes() -> dict[str, list[jax.ShapeDtypeStruct]]:
    """The shapes of the kernel, the scale and the shift of each convolution."""
    kernels = {
        "reduce": (1, 1, CHANNELS, WIDTH),
        "window": (3, 3, WIDTH, WIDTH),
        "expand": (1, 1, WIDTH, CHANNELS),
    }
    return {
        name: [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (shape, shape[-1:], shape[-1:])]
        for name, shape in kernels.items()
    }


def counts(programs: Sequence[Executable], *, of_tpu: bool) -> list[dict[str, float]]:
    """For each width, the HBM traffic in bytes and, for a TPU, the operations and cycles."""
    traffic = [summary(program.compiled.as_text()).bytes for program in programs]
    columns: dict[str, Sequence[float]] = {"bytes": traffic}
    if of_tpu:
        columns |= {"flops": compiled_flops(programs), "cycles": compiled_cycles(programs)}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def rows(topology: str) -> list[dict[str, float]]:
    """For each width, the counts, and whether the width is useful by cycles (on a GPU by bytes)."""
    device = compile_only.compile_only_devices(topology)[0]
    placed = partial(compile_only.place, sharding=SingleDeviceSharding(device))
    params, x = placed((shapes(), jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)))
    # The channels of the second group are the outputs of `reduce` and the inputs of `window`.
    _, group = pruning.coupled_channels(block, params, x)
    found: list[dict[str, float]] = []

    def measure(programs: Sequence[Executable]) -> list[float]:
        found[:] = counts(programs, of_tpu=not topology.startswith("h100"))
        return [row.get("cycles", row["bytes"]) for row in found]

    costs = widths_for(block, params, group, x, widths=WIDTHS, measure=measure, margin=MARGIN)
    return [
        {"width": cost.width, "worth": cost.worth} | row
        for cost, row in zip(costs, found, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topology", nargs="+", default=["v5e:2x2", "h100"])
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    # `cli.provenance` makes JAX use a device, so all programs are compiled before this call.
    chips = {topology: rows(topology) for topology in given.topology}
    run = cli.provenance(__file__) | {"seconds": cli.seconds(), "seeds": None, "chips": chips}
    files.write_results(given.out, run)
    for topology, found in chips.items():
        print(topology)
        for row in found:
            print(" | ".join(f"{value:,.0f}" for value in row.values()))


if __name__ == "__main__":
    main()
