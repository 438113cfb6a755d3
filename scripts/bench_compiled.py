"""HBM traffic of the layers beside Flax's, read from programs compiled for v5e and H100.

python scripts/bench_compiled.py --target v5e --only layers --shapes 256,56,56,256
"""

import jax
import tyro
from jax.sharding import SingleDeviceSharding

from experiments.benchmarks import compiled_layers
from experiments.benchmarks.compile_only import compile_only_devices
from experiments.benchmarks.compiled_program import measure


def main(
    target: str = "v5e",
    only: str = "layers",
    shapes: tuple[str, ...] = (),
    dtype: str | None = None,
    mode: str | None = None,
) -> None:
    device = compile_only_devices("v5e:2x2" if target == "v5e" else target)[0]
    sharding = SingleDeviceSharding(device)
    chosen = [tuple(map(int, s.split(","))) for s in shapes] or compiled_layers.SHAPES
    for kind in [dtype] if dtype else compiled_layers.DTYPES:
        for shape in chosen:
            for work in [mode] if mode else ("training", "inference"):
                n = compiled_layers.input_bytes(shape, kind)
                flax = None
                for name, layer in compiled_layers.LAYERS.items():
                    arguments = compiled_layers.arguments(name, shape, kind, sharding)
                    if work == "training":
                        arguments = (*arguments, arguments[-1])
                    found = measure(getattr(compiled_layers, work)(layer), *arguments)
                    flax = flax or found
                    print(
                        f"{target} {kind} {shape} {work} {name:18} {found.bytes / n:6.2f} n, "
                        f"{found.bytes / flax.bytes:.2f} of Flax, floor "
                        f"{compiled_layers.floor(name, shape, work):g} n, temporary "
                        f"{(found.temporary - flax.temporary) / n:+.2f} n, "
                        f"{found.kernels} kernels, {found.seconds:.1f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    tyro.cli(main)
