"""Moments of any number of draws, in chunks on all devices, with a state of fixed size.

Draw i has the key `fold_in(key, i)`, and the order in which the states of devices are merged
changes only rounding. Therefore neither the size of a chunk nor the number of devices changes a
result, except for rounding.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Bool, Key

from geometry.sampling._moments import central_moments
from jaxnorm.internal import (
    CentralMoments,
    check_call,
    check_key,
    check_whole,
    is_traced,
    merge_central_moments,
    replicate,
    varying_like,
)

# The default number of draws that a device computes at a time.
_CHUNK = 2**14
_MAX_KEYS = 2**31  # keys are counted by 32-bit integers


class Sampler(NamedTuple):
    """A function to draw from, and how many draws each device computes at a time.

    Attributes:
      draw: A function of a key and of the parameters.
      parameters: Trees of arrays that are passed to `draw` after the key.
      batch_size: The number of draws that a device holds at a time.
      draws_per_key: The size of the leading axis of `draw`'s result, if one key gives several
        draws; None if the result is one draw.
      devices: The devices that share the keys; None for `default_devices`, or for the devices of a
        traced caller.
      highest: The highest order of the computed moments, 2 or 4. Higher moments are zero, so
        that powers of large draws do not overflow.
    """

    draw: Callable[..., Array]
    parameters: tuple[Any, ...] = ()
    batch_size: int | None = None
    draws_per_key: int | None = None
    devices: Sequence[Any] | None = None
    highest: int = 4


class Program(NamedTuple):
    """The compiled program that computes the moments of draws for a range of keys.

    Attributes:
      size: The number of keys that a device holds at a time.
      mesh: The mesh whose devices share the keys; None for the devices of a traced caller, or for a
        single device.
      highest: The highest order of the computed moments, as for `Sampler`.
    """

    draw: Callable[..., Array]
    draws_per_key: int | None
    size: int
    mesh: Mesh | AbstractMesh | None
    highest: int


class Inputs(NamedTuple):
    """The inputs of a program: a key, and the parameters of `draw`."""

    key: Key[Array, ""]
    parameters: tuple[Any, ...] = ()


def number_of_keys(sampler: Sampler, key: Key[Array, ""], samples: int) -> int:
    """The number of keys that give `samples` draws, after checks of all arguments."""
    check_key(key)
    _, _, batch_size, draws_per_key, devices, _ = sampler
    _check_sequence(sampler.parameters, "parameters", "(x,)")
    like = "a random key" + ", and of the parameters" * bool(sampler.parameters)
    check_call(sampler.draw, "draw", "jax.random.normal", like, key, *sampler.parameters)
    if devices is not None:
        _check_sequence(devices, "devices", "jax.devices()")
    check_whole(samples=samples)
    for name, rows in (("batch_size", batch_size), ("draws_per_key", draws_per_key)):
        if rows is not None:
            check_whole(**{name: rows})
    if samples < 2:
        raise ValueError(
            f"samples must be at least 2, because a standard error needs two; got {samples}"
        )
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    rows = 1 if draws_per_key is None else draws_per_key
    if rows < 1 or samples % rows:
        raise ValueError(f"draws_per_key must divide samples, {samples:,}; got {rows}")
    keys = samples // rows
    if keys >= _MAX_KEYS:
        raise ValueError(
            f"the number of random keys must be below {_MAX_KEYS:,}; got {keys:,}: draw several "
            "samples from each key by draws_per_key"
        )
    if devices is not None and not devices:
        raise ValueError("devices must name at least one device; got none")
    return keys


def _check_sequence(x: Any, name: str, example: str) -> None:
    if not isinstance(x, tuple | list):
        raise TypeError(f"{name} must be a list or a tuple, such as {example}; got {x!r}")


def compiled(sampler: Sampler, key: Key[Array, ""], keys: int) -> Program:
    """The program for `keys` keys in chunks of equal size."""
    mesh = None if is_traced((key, sampler.parameters)) else _mesh(sampler.devices)
    batch_size = _CHUNK if sampler.batch_size is None else sampler.batch_size
    size = max(1, batch_size // (sampler.draws_per_key or 1))
    share = -(-keys // (1 if mesh is None else mesh.size))
    chunks = -(-share // size)
    return Program(sampler.draw, sampler.draws_per_key, -(-share // chunks), mesh, sampler.highest)


def _mesh(devices: Sequence[Any] | None) -> Mesh | AbstractMesh | None:
    """A mesh of `devices`, or the mesh of `jax.set_mesh`; None for one device or in `shard_map`.

    JAX allows only one mesh at a time. Therefore, if a mesh is set, `devices` must be one device or
    as many devices as the mesh has.
    """
    context = jax.sharding.get_abstract_mesh()
    if context.manual_axes or (devices is not None and len(devices) == 1):
        return None
    if not context.empty:
        if devices is not None and len(devices) != context.size:
            raise ValueError(
                f"devices must be one device or the {context.size} devices of the mesh that "
                f"jax.set_mesh has set; got {len(devices)}"
            )
        return context
    devices = default_devices() if devices is None else devices
    return Mesh(np.array(devices), ("draws",)) if len(devices) > 1 else None


def default_devices() -> list[Any]:
    """All devices of all hosts, or one device of each process if the devices are CPUs.

    The CPU devices of a process share its cores, so several devices are not faster than one.
    Several devices can even wait for each other forever, if each device calls LAPACK in a loop and
    the process has no more cores than devices (JAX 0.10.2 and 0.12.0).
    """
    devices = jax.devices()
    if devices[0].platform != "cpu":
        return devices
    return list({device.process_index: device for device in reversed(devices)}.values())[::-1]


def empty(program: Program, inputs: Inputs) -> CentralMoments:
    shape = jax.eval_shape(partial(_chunk, program), inputs, 0, 0)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape)


def fold(
    program: Program, inputs: Inputs, start: int, stop: int, state: CentralMoments
) -> CentralMoments:
    """The `state` merged with the draws of keys `start` to `stop` − 1."""
    bounds = np.int64(start), np.int64(stop)
    if is_traced(inputs):
        return _fold(program, None, inputs, *bounds, state)
    # The arguments become NumPy arrays, because all hosts can pass equal NumPy arrays to the
    # program, but a JAX array is on the devices of one host.
    implementation = jax.random.key_impl(inputs.key)
    # If a caller is traced, the key data would be a tracer without this context.
    with jax.ensure_compile_time_eval():
        inputs = inputs._replace(key=jax.random.key_data(inputs.key))
        inputs, state = jax.tree.map(np.asarray, (inputs, state))
    return _fold(program, implementation, inputs, *bounds, state)


@partial(jax.jit, static_argnums=(0, 1))
def _fold(
    program: Program,
    implementation: Any,
    inputs: Inputs,
    start: Array,
    stop: Array,
    state: CentralMoments,
) -> CentralMoments:
    if implementation is not None:
        inputs = inputs._replace(key=jax.random.wrap_key_data(inputs.key, impl=implementation))
    arguments = (inputs, jnp.int32(start), jnp.int32(stop), state)
    mesh = program.mesh
    if mesh is None:
        return _merge(program, state, _on_device(program, 0, *arguments))

    def on_each(*arguments: Any) -> Any:
        found = _on_device(program, jax.lax.axis_index(mesh.axis_names), *arguments)
        return jax.lax.all_gather(found, mesh.axis_names)

    states = jax.shard_map(
        on_each, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )(*arguments)
    return jax.lax.scan(lambda a, b: (_merge(program, a, b), None), state, states)[0]


def _merge(program: Program, a: CentralMoments, b: CentralMoments) -> CentralMoments:
    merged = merge_central_moments(a, b)
    if program.highest == 4:
        return merged
    zero = jnp.zeros_like(merged.second)
    return merged._replace(third=zero, fourth=zero)


def _on_device(
    program: Program,
    index: Array | int,
    inputs: Inputs,
    start: Array,
    stop: Array,
    state: CentralMoments,
) -> CentralMoments:
    """The moments that one device computes from its chunks of draws.

    With n devices, chunk k is computed by device k mod n.
    """
    stride = (1 if program.mesh is None else program.mesh.size) * program.size
    chunks = (stop - start + stride - 1) // stride

    def step(i: Array, carry: Any) -> Any:
        first = start + i * stride + index * program.size
        return _merge(program, carry, _chunk(program, inputs, first, stop))

    none = jax.tree.map(jnp.zeros_like, state)
    if program.mesh is None and jax.sharding.get_abstract_mesh().manual_axes:
        drawn = jax.eval_shape(partial(_chunk, program), inputs, start, stop)
        none = varying_like(none, drawn)  # in a `shard_map`, the loop needs this type
    return jax.lax.fori_loop(0, chunks, step, none)


def _chunk(
    program: Program, inputs: Inputs, first: Array | int, stop: Array | int
) -> CentralMoments:
    """The state of the draws for `size` keys, beginning with key `first`.

    Keys from `stop` on are ignored.
    """
    index = first + jnp.arange(program.size, dtype=jnp.int32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(inputs.key, index)
    draws = replicate(jax.vmap(lambda key: one_draw(program.draw, key, inputs.parameters))(keys))
    counted: Bool[Array, " n"] = index < stop
    if program.draws_per_key is not None:
        if draws.shape[1:2] != (program.draws_per_key,):
            raise ValueError(
                f"draw must return {program.draws_per_key} draws on its leading axis, the number "
                f"draws_per_key; got shape {draws.shape[1:]}"
            )
        draws = draws.reshape(-1, *draws.shape[2:])
        counted = jnp.repeat(counted, program.draws_per_key)
    return central_moments(draws.astype(draw_dtype(draws.dtype)), counted)


def one_draw(draw: Callable[..., Any], key: Key[Array, ""], parameters: tuple[Any, ...]) -> Array:
    """The draw for a key; raise unless the draw is an array of real numbers."""
    drawn = draw(key, *parameters)
    if not isinstance(drawn, jax.Array | np.ndarray | np.generic | int | float):
        raise TypeError(f"draw must return an array; got {type(drawn).__name__}")
    if not jnp.isrealobj(drawn):
        raise TypeError(
            f"draw must return real numbers; got {jnp.asarray(drawn).dtype}: return the real and "
            "the imaginary part on a new axis"
        )
    return jnp.asarray(drawn)


def draw_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which moments of draws are computed: at least float32.

    Booleans and integers are converted to floats.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return np.promote_types(dtype, np.float32)
    return jnp.zeros((), float).dtype
