"""TPUs and GPUs that are not attached, to compile programs for ahead of time.

libtpu compiles for any TPU topology and the CUDA plugin for an H100, both without the device. One
process compiles for one of them. The devices hold no arrays: pass `jax.ShapeDtypeStruct`s with a
sharding on these devices to `jax.jit(f).trace(...).lower().compile()`.
"""

import os
from importlib.util import find_spec

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
# Without these libtpu asks a metadata server, which answers on a TPU host only, for minutes.
LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it otherwise refuses a second process, for its devices
}
INSTALL = "pip install --constraint constraints.txt --editable '.[compiled]'"


def compile_only_devices(name: str) -> list[jax.Device]:
    """All devices of the topology `name`: "h100", or a TPU's such as "v5e:2x2" or "v5e:16x16".

    Call it before JAX first uses a device: it restricts JAX to the CPU, since both plugins would
    otherwise look for a device of theirs.

    Raises:
      ValueError: The plugin is not installed, or does not know the topology.
    """
    plugin = "jax_cuda12_plugin" if name == "h100" else "libtpu"
    if not is_installed(plugin):
        raise ValueError(f"compiling for {name} needs {plugin}, which is not installed: {INSTALL}")
    jax.config.update("jax_platforms", "cpu")
    os.environ |= LIBTPU_ENVIRONMENT
    if name == "h100":
        gpu = topologies.get_topology_desc(
            "h100", platform="cuda", target_config=H100, topology="1x1x1"
        )
        return list(gpu.devices)
    try:
        return list(topologies.get_topology_desc(name, platform="tpu").devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"the topology must be h100 or one that libtpu knows, such as v5e:4x4; got {name!r}"
        ) from error


def is_installed(plugin: str) -> bool:
    return find_spec(plugin) is not None
