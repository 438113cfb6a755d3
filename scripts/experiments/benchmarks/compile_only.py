"""TPUs and GPUs that are not attached, to compile programs for ahead of time.

libtpu compiles for any TPU topology and the CUDA plugin for an H100, both without the device. One
process compiles for one of them. The devices hold no arrays: pass `jax.ShapeDtypeStruct`s with a
sharding on these devices to `jax.jit(f).trace(...).lower().compile()`.
"""

import os
import re
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

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
# Without the first three libtpu asks a metadata server, which answers on a TPU host only, for
# minutes; without the last, one process at a time may compile.
LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it otherwise refuses a second process, for its devices
}
INSTALL = "pip install --constraint constraints.txt --editable '.[scripts,compiled]'"


def compile_only_devices(name: str) -> list[Any]:
    """The devices of a topology: "v5e:2x2" or any that libtpu knows, "h100", or "h100:8" of a host.

    Call it before JAX first uses a device: it restricts JAX to the CPU, since both plugins would
    otherwise look for a device of theirs.

    Raises:
      ValueError: The plugin is not installed, or does not know the topology.
    """
    check_plugin(name)
    jax.config.update("jax_platforms", "cpu")
    os.environ |= LIBTPU_ENVIRONMENT
    gpus = re.fullmatch(r"h100(?::([1-9]\d*))?", name)
    try:
        if gpus:
            return list(
                topologies.get_topology_desc(
                    "h100",
                    platform="cuda",
                    target_config=H100,
                    topology=f"1x1x{gpus[1] or 1}",  # slices, hosts, GPUs of a host
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
    """Refuse the topology `name` where the plugin that compiles for it is not installed."""
    plugin = "jax_cuda12_plugin" if name.startswith("h100") else "libtpu"
    if find_spec(plugin) is None:
        raise ValueError(f"compiling for {name} needs {plugin}: {INSTALL}")
