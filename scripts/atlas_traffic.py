"""Compute the memory traffic (HBM) of a training step with each of eight normalizers.

    python scripts/atlas_traffic.py        # 5 minutes of one core, in the environment of
                                           # `make bench-compiled`; no device is needed

The chips are TPU v5e and H100. The script measures the forward and backward pass of one layer in
bfloat16, on images (256, 56, 56, 256) and on vectors (8192, 4096). Traffic is given in units of n,
the size of the layer's input in bytes. Batch norm on images should have a traffic of 8.0 n on the
v5e. The script writes the results to OUT and prints a line for each compiled function.
"""

if __name__ == "__main__":  # this block handles Ctrl-C during the imports
    from experiments import signals

    signals.before_imports()

from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from experiments import cli, files
from experiments.options import Location, checked

PLUGINS = {"v5e": "libtpu", "h100": "jax-cuda12-plugin"}
TOPOLOGIES = {"v5e": "v5e:2x2", "h100": "h100"}


@checked
def main(
    targets: tuple[Literal["v5e", "h100"], ...] = ("v5e", "h100"),
    out: Location = Path("out/atlas_traffic/normalizers.json"),
) -> None:
    """Compile a training step of each normalizer, and write its memory traffic.

    Args:
      targets: The chips to compile for. A separate process compiles for each chip.
      out: The file for the results. Two runs cannot use the folder of this file at the same time.
    """
    import jax

    from experiments.compiled.compile_only import check_plugin, in_own_process

    for name in targets:
        check_plugin(name)
    jax.config.update("jax_platforms", "cpu")
    origin = cli.provenance(__file__)
    with files.in_use(out.parent):
        rows = {name: in_own_process(measure_rows, name) for name in targets}
        results = origin | {
            "plugins": {PLUGINS[name]: version(PLUGINS[name]) for name in targets},
            "seconds": cli.seconds(),
            "seeds": None,
            "targets": rows,
        }
        files.write_results(out, results)


def measure_rows(target: str) -> list[dict[str, Any]]:
    """Measure all normalizers on one chip, and print a row as soon as its function is compiled."""
    from jax.sharding import SingleDeviceSharding

    from experiments.compiled import normalizers
    from experiments.compiled.compile_only import compile_only_devices

    found = []
    device = compile_only_devices(TOPOLOGIES[target])[0]
    for row in normalizers.rows(SingleDeviceSharding(device)):
        found.append(row)
        cli.say(f"{target}, {row['normalizer']}, {row['shape']}: {row['traffic']:.2f} n")
    return found


if __name__ == "__main__":
    cli.run(main)
