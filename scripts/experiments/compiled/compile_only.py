"""Compile functions for TPUs and GPUs that are not attached, and read the compiled programs.

libtpu compiles for any TPU topology, and the CUDA plugin compiles for an H100; neither compiler
needs the device. One process compiles either for TPUs or for GPUs. The devices of a topology that
is not attached cannot store arrays. Therefore `measure` takes shapes instead of arrays, and `place`
makes these shapes.
"""

import multiprocessing
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
from jax import ShapeDtypeStruct
from jax.experimental import topologies
from jax.sharding import Sharding

from experiments.cli import InputError
from experiments.compiled.traffic import Collective, collectives, summary

H100 = """gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# Without the first three settings, libtpu waits for minutes for a metadata server that exists only
# on TPU hosts.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # With this setting, two processes can use libtpu at once.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # Nothing runs, so CUDA's libraries are not needed.
}
INSTALL = "pip install --constraint constraints.txt --editable '.[scripts,compiled]'"


def compile_only_devices(name: str) -> list[Any]:
    """The devices of a topology, such as "v5e:2x2", "h100", or "h100:8" for one host.

    Call `compile_only_devices` before JAX first uses a device. The function restricts JAX to the
    CPU, because otherwise the TPU plugin and the CUDA plugin would look for an attached device.

    Raises:
      InputError: The plugin is not installed.
      ValueError: The plugin does not know the topology.
    """
    check_plugin(name)
    jax.config.update("jax_platforms", "cpu")
    os.environ |= ENVIRONMENT
    gpus = re.fullmatch(r"h100(?::([1-9]\d*))?", name)
    try:
        if gpus:
            return list(
                topologies.get_topology_desc(
                    "h100",
                    platform="cuda",
                    target_config=H100,
                    # the numbers of slices, of hosts, and of GPUs on each host
                    topology=f"1x1x{gpus[1] or 1}",
                ).devices
            )
        return list(topologies.get_topology_desc(name, platform="tpu").devices)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise ValueError(
            "the topology must be h100, h100:N, or one that libtpu knows, such as v5e:4x4; "
            f"got {name!r}"
        ) from error


def check_plugin(name: str) -> None:
    """Raise InputError if the plugin that compiles for the topology `name` is not installed."""
    plugin = "jax_cuda12_plugin" if name.startswith("h100") else "libtpu"
    if find_spec(plugin) is None:
        raise InputError(f"compiling for {name} needs {plugin}: {INSTALL}")


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a new process and return its result; the new process ignores Ctrl-C."""
    context = multiprocessing.get_context("spawn")
    ignore = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    with ProcessPoolExecutor(1, mp_context=context, **ignore) as executor:
        return executor.submit(function, *arguments).result()


class Measured(NamedTuple):
    bytes: float  # The number of bytes read from HBM or written to HBM.
    temporary: int  # The bytes of temporary memory.
    arguments_and_results: int  # The bytes of the program's arguments and results.
    kernels: int
    notable: Counter
    unknown_loops: int
    collectives: list[Collective]
    seconds: float  # the seconds that the compilation took


def measure(program: Callable, *arguments: Any) -> Measured:
    """Compile `program` for the devices of its `arguments`, and measure the compiled program."""
    start = time.perf_counter()
    compiled = jax.jit(program).trace(*arguments).lower().compile()
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    traffic = summary(text)
    return Measured(
        traffic.bytes,
        memory.temp_size_in_bytes,
        memory.argument_size_in_bytes + memory.output_size_in_bytes,
        traffic.kernels,
        traffic.notable,
        traffic.unknown_loops,
        collectives(text),
        seconds,
    )


def place(tree: Any, sharding: Sharding) -> Any:
    """Replace the arrays of `tree` by their shapes and dtypes with `sharding`, for `measure`."""
    return jax.tree.map(lambda x: ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
