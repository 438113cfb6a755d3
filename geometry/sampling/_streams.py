"""Draws by the million: folded chunk by chunk, on every device, into a state of fixed size.

Draw i has the key `fold_in(key, i)`, and states merge by formulas in which the order of merging is
rounding alone. So neither the size of a chunk nor the number of devices changes a result.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Key

from jaxnorm._numerics import replicated

# Draws that a device holds at a time, where the caller does not say.
CHUNK = 2**14
_MOST = 2**31  # keys, which are counted in 32 bits


class Reduction(NamedTuple):
    """How draws become a state.

    Attributes:
      of: The state of some draws (n, *s), of which those counted matter; further arguments follow.
      merge: The state of two sets of draws from their states; one of zeros is that of no draws.
    """

    of: Callable[..., Any]
    merge: Callable[[Any, Any], Any]


class Plan(NamedTuple):
    """What is drawn, how much of it at a time, and where.

    Attributes:
      draw: Function of a key and of the parameters.
      block: Draws that one key gives, on the leading axis; None for one draw without that axis.
      size: Keys that a device holds at a time.
      devices: Over which the keys are spread; None for those of a traced caller.
    """

    draw: Callable[..., Array]
    block: int | None
    size: int
    devices: tuple[Any, ...] | None


def plan(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    *,
    parameters: tuple[Any, ...],
    batch_size: int | None,
    block: int | None,
    devices: Sequence[Any] | None,
) -> tuple[Plan, int]:
    """Checked sizes as a `Plan`, and the number of keys that `samples` draws take."""
    if samples < 2:
        raise ValueError(f"a standard error needs at least 2 samples; got {samples}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    rows = 1 if block is None else block
    if rows < 1 or samples % rows:
        raise ValueError(f"block must divide samples, {samples:,}; got {rows}")
    keys = samples // rows
    if keys >= _MOST:
        raise ValueError(f"samples must take fewer than {_MOST:,} keys; got {keys:,}: use block")
    if devices is not None and not devices:
        raise ValueError("devices must name at least one device; got none")
    if traced(key, parameters):
        where = None
    else:
        where = tuple(jax.devices() if devices is None else devices)
    size = max(1, (CHUNK if batch_size is None else batch_size) // rows)
    share = -(-keys // len(where or (0,)))
    chunks = -(-share // size)
    return Plan(draw, block, -(-share // chunks), where), keys


def traced(*trees: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def empty(plan: Plan, reduction: Reduction, key: Array, parameters: tuple, extra: tuple) -> Any:
    """The state of no draws."""
    shape = jax.eval_shape(partial(_chunk, plan, reduction), key, 0, 0, parameters, extra)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)


def fold(
    plan: Plan,
    reduction: Reduction,
    key: Key[Array, ""],
    start: int,
    stop: int,
    state: Any,
    parameters: tuple = (),
    extra: tuple = (),
) -> Any:
    """`state` with the draws of keys `start` to `stop` merged into it."""
    if plan.devices is None:
        return _fold(plan, reduction, None, key, start, stop, state, parameters, extra)
    # Plain numbers are the same on all hosts; arrays lie on devices of one.
    data = np.asarray(jax.random.key_data(key))
    given = jax.tree.map(np.asarray, (state, parameters, extra))
    implementation = jax.random.key_impl(key)
    return _fold(plan, reduction, implementation, data, np.int64(start), np.int64(stop), *given)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fold(
    plan: Plan,
    reduction: Reduction,
    implementation: Any,
    key: Array,
    start: Array,
    stop: Array,
    state: Any,
    parameters: tuple,
    extra: tuple,
) -> Any:
    if implementation is not None:
        key = jax.random.wrap_key_data(key, impl=implementation)
    arguments = (key, jnp.int32(start), jnp.int32(stop), state, parameters, extra)
    if plan.devices is None or len(plan.devices) == 1:
        found = _on_one(plan, reduction, 0, 1, *arguments)
        return reduction.merge(state, found)
    mesh = Mesh(np.array(plan.devices), ("draws",))

    def on_each(*arguments: Any) -> Any:
        here = jax.lax.axis_index("draws")
        found = _on_one(plan, reduction, here, len(plan.devices or ()), *arguments)
        return jax.lax.all_gather(found, "draws")

    spread = jax.shard_map(
        on_each,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return jax.lax.scan(lambda a, b: (reduction.merge(a, b), None), state, spread(*arguments))[0]


def _on_one(
    plan: Plan,
    reduction: Reduction,
    here: Array | int,
    devices: int,
    key: Array,
    start: Array,
    stop: Array,
    state: Any,
    parameters: tuple,
    extra: tuple,
) -> Any:
    """The state of one device's draws: every `devices`-th chunk."""
    stride = devices * plan.size
    chunks = (stop - start + stride - 1) // stride

    def step(i: Array, carry: Any) -> Any:
        first = start + i * stride + here * plan.size
        return reduction.merge(carry, _chunk(plan, reduction, key, first, stop, parameters, extra))

    return jax.lax.fori_loop(0, chunks, step, jax.tree.map(jnp.zeros_like, state))


def _chunk(
    plan: Plan,
    reduction: Reduction,
    key: Array,
    first: Array | int,
    stop: Array | int,
    parameters: tuple,
    extra: tuple,
) -> Any:
    """The state of `size` keys' draws from `first` on, of which those before `stop` count."""
    index = first + jnp.arange(plan.size, dtype=jnp.int32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index)
    draws = replicated(jax.vmap(lambda key: plan.draw(key, *parameters))(keys))
    counted: Bool[Array, " n"] = index < stop
    if plan.block is not None:
        if draws.shape[1:2] != (plan.block,):
            raise ValueError(
                f"draw must give {plan.block} draws on its leading axis, as block says; got shape "
                f"{draws.shape[1:]}"
            )
        draws = draws.reshape(-1, *draws.shape[2:])
        counted = jnp.repeat(counted, plan.block)
    return reduction.of(draws.astype(sampled(draws.dtype)), counted, *extra)


def sampled(dtype: np.dtype) -> np.dtype:
    """In which draws of `dtype` are kept: at least float32, and floating for events and counts."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.promote_types(dtype, np.float32)
    return jnp.zeros((), float).dtype
