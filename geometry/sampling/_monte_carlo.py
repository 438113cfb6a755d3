"""Monte Carlo estimates that travel with their standard errors.

A draw is a function of a key, and of parameters where there are any. Draw i has the key
`fold_in(key, i)`: results do not depend on `batch_size`, which sets the memory, nor on the devices,
but for rounding. Functions compile once for each function object `draw`, shape of the parameters
and number of draws that are held at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, Bool, Float, Key

from geometry.sampling._streams import Plan, Reduction, empty, fold, plan, traced


class Estimate(NamedTuple):
    """A mean over independent draws, its standard error, and the number of draws."""

    mean: Float[Array, "*s"]
    stderr: Float[Array, "*s"]
    samples: int


class SampleMoments(NamedTuple):
    """Mean and unbiased variance of independent draws, with the standard error of each."""

    mean: Float[Array, "*s"]
    mean_stderr: Float[Array, "*s"]
    variance: Float[Array, "*s"]
    variance_stderr: Float[Array, "*s"]
    samples: int


class SampleCovariance(NamedTuple):
    """Unbiased covariance of the numbers of a draw, and its standard error."""

    covariance: Float[Array, "d d"]
    stderr: Float[Array, "d d"]
    samples: int


def monte_carlo(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    *,
    parameters: tuple[Any, ...] = (),
    batch_size: int | None = None,
    block: int | None = None,
    devices: Sequence[Any] | None = None,
    precision: float | None = None,
    checkpoint: Path | str | None = None,
) -> Estimate:
    """Mean of `draw(key)` over independent keys, and the standard error of that mean.

    Batches and devices are merged as in Chan, Golub and LeVeque (1979). The mean of events is
    their rate. May be traced; then it runs where its caller does.

    Args:
      draw: Any function of a key; its result may have any shape, and be Boolean or an integer.
      key: Of the whole estimate.
      samples: Number of draws, at least 2.
      parameters: Trees of arrays, handed to `draw` after the key: other values are not compiled
        anew.
      batch_size: Draws that a device holds at a time; by default at most 16,384.
      block: Draws that one key gives, on the leading axis of what `draw` returns. A key costs as
        much as a random number: without `block`, drawing single numbers takes twice the time.
      devices: Over which draws are spread; by default all, of all hosts.
      precision: Standard error with which drawing stops before `samples`, if every number has it.
        It is looked at whenever a quarter more has been drawn, from 1,000 keys on.
      checkpoint: Folder in which those states are kept, by Orbax; a call with the same arguments
        goes on from there.

    Raises:
      ValueError: `samples` is below 2, `batch_size` below 1, `block` no divisor of `samples` or
        not what `draw` gives, `precision` not positive, or `checkpoint` of another key or shape; or
        the key or a parameter is traced and `precision` or `checkpoint` is given.

    Example:
      >>> estimate = monte_carlo(jax.random.uniform, jax.random.key(0), 10_000)
      >>> print(abs(estimate.mean - 0.5) < 5 * estimate.stderr)
      True
    """
    state, samples = _central_moments(
        draw, key, samples, parameters, batch_size, block, devices, precision, checkpoint
    )
    return Estimate(state.mean, _mean_stderr(state, samples), samples)


def monte_carlo_moments(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    *,
    parameters: tuple[Any, ...] = (),
    batch_size: int | None = None,
    block: int | None = None,
    devices: Sequence[Any] | None = None,
    precision: float | None = None,
    checkpoint: Path | str | None = None,
) -> SampleMoments:
    """`monte_carlo` with the variance of the draws, and the standard error of that too.

    The variance's is √((m₄ − m₂²)/n) with the central moments m of the draws, merged as in Pébay
    (2008): right where the eighth moment is finite and n is large beside m₄/m₂². `precision` is of
    the mean. Arguments and errors are those of `monte_carlo`.

    Example:
      >>> found = monte_carlo_moments(jax.random.uniform, jax.random.key(0), 10_000)
      >>> print(abs(found.variance - 1 / 12) < 5 * found.variance_stderr)
      True
    """
    state, samples = _central_moments(
        draw, key, samples, parameters, batch_size, block, devices, precision, checkpoint
    )
    return SampleMoments(
        state.mean,
        _mean_stderr(state, samples),
        state.second * (samples / (samples - 1)),
        jnp.sqrt(jnp.maximum(state.fourth - jnp.square(state.second), 0) / samples),
        samples,
    )


def monte_carlo_covariance(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    *,
    parameters: tuple[Any, ...] = (),
    batch_size: int | None = None,
    block: int | None = None,
    devices: Sequence[Any] | None = None,
) -> SampleCovariance:
    """Covariance of the numbers that `draw` gives as a vector, with standard errors.

    They are √((E δᵢ² δⱼ² − cᵢⱼ²)/n), δ the deviations from the mean. Arguments and errors are those
    of `monte_carlo`.

    Raises:
      ValueError: A draw is no vector.

    Example:
      >>> def draw(key):
      ...     return jnp.cumsum(jax.random.normal(key, (2,)))
      >>> found = monte_carlo_covariance(draw, jax.random.key(0), 10_000)
      >>> print(bool((abs(found.covariance - jnp.array([[1.0, 1], [1, 2]])) < 0.1).all()))
      True
    """
    which, keys = plan(
        draw,
        key,
        samples,
        parameters=parameters,
        batch_size=batch_size,
        block=block,
        devices=devices,
    )
    start = empty(which, _CO_MOMENTS, key, parameters, ())
    state = fold(which, _CO_MOMENTS, key, 0, keys, start, parameters)
    spread = jnp.maximum(state.both_squared - jnp.square(state.product), 0)
    return SampleCovariance(
        state.product * (samples / (samples - 1)), jnp.sqrt(spread / samples), samples
    )


class _Moments(NamedTuple):
    """Mean and central moments of `count` draws."""

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Array
    second: Array
    third: Array
    fourth: Array


def _moments(draws: Float[Array, "n *s"], counted: Bool[Array, " n"]) -> _Moments:
    these = counted.reshape(-1, *(1,) * (draws.ndim - 1))
    count = counted.sum(dtype=draws.dtype)
    most = jnp.maximum(count, 1)
    mean = jnp.where(these, draws, 0).sum(0) / most
    apart = jnp.where(these, draws - mean[None], 0)
    square = jnp.square(apart)
    powers = (square.sum(0), (square * apart).sum(0), jnp.square(square).sum(0))
    return _Moments(count, mean, *(power / most for power in powers))


def _merged(a: _Moments, b: _Moments) -> _Moments:
    count, mean, share, (by_a, by_b) = _union(a, b)

    def about(part: _Moments, by: Array) -> Array:
        """Central moments about a mean that is `by` less."""
        second = part.second + by * by
        third = part.third + 3 * by * part.second + by**3
        fourth = part.fourth + 4 * by * part.third + 6 * by**2 * part.second + by**4
        return jnp.stack([second, third, fourth])

    moments = (1 - share) * about(a, by_a) + share * about(b, by_b)
    return _Moments(count, mean, *moments)


class _CoMoments(NamedTuple):
    """Mean of `count` vectors δ + mean, and E δᵢ δⱼ, E δᵢ² δⱼ and E δᵢ² δⱼ²."""

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Array
    product: Array
    squared: Array
    both_squared: Array


def _co_moments(draws: Float[Array, "n *s"], counted: Bool[Array, " n"]) -> _CoMoments:
    if draws.ndim != 2:
        raise ValueError(f"a covariance needs draws that are vectors; got shape {draws.shape[1:]}")
    count = counted.sum(dtype=draws.dtype)
    most = jnp.maximum(count, 1)
    mean = jnp.where(counted[:, None], draws, 0).sum(0) / most
    apart = jnp.where(counted[:, None], draws - mean[None], 0)
    square = jnp.square(apart)
    pairs = ((apart, apart), (square, apart), (square, square))
    products = (jnp.einsum("ni,nj->ij", *pair, precision="highest") / most for pair in pairs)
    return _CoMoments(count, mean, *products)


def _merged_co_moments(a: _CoMoments, b: _CoMoments) -> _CoMoments:
    count, mean, share, (by_a, by_b) = _union(a, b)

    def about(part: _CoMoments, by: Array) -> Array:
        i, j = by[:, None], by[None]
        var = jnp.diagonal(part.product)
        product = part.product + i * j
        squared = part.squared + j * var[:, None] + 2 * i * part.product + i**2 * j
        both = (
            part.both_squared
            + 2 * (j * part.squared + i * part.squared.T)
            + j**2 * var[:, None]
            + i**2 * var[None]
            + 4 * i * j * part.product
            + (i * j) ** 2
        )
        return jnp.stack([product, squared, both])

    products = (1 - share) * about(a, by_a) + share * about(b, by_b)
    return _CoMoments(count, mean, *products)


def _union(a: Any, b: Any) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    """Count and mean of the union, the share of `b` in it, how far the means of both lie off."""
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)
    # No draws have no mean: the square of its distance might overflow.
    delta = jnp.where((a.count > 0) & (b.count > 0), b.mean - a.mean, 0)
    mean = jnp.where(a.count > 0, a.mean + share * delta, b.mean)
    return count, mean, share, (-share * delta, (1 - share) * delta)


_MOMENTS = Reduction(_moments, _merged)
_CO_MOMENTS = Reduction(_co_moments, _merged_co_moments)


def _mean_stderr(state: _Moments, samples: int) -> Array:
    return jnp.sqrt(state.second / (samples - 1))


def _central_moments(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    parameters: tuple[Any, ...],
    batch_size: int | None,
    block: int | None,
    devices: Sequence[Any] | None,
    precision: float | None,
    checkpoint: Path | str | None,
) -> tuple[_Moments, int]:
    """Moments of the draws, and the number of those that were made."""
    which, keys = plan(
        draw,
        key,
        samples,
        parameters=parameters,
        batch_size=batch_size,
        block=block,
        devices=devices,
    )
    state = empty(which, _MOMENTS, key, parameters, ())
    if precision is None and checkpoint is None:
        return fold(which, _MOMENTS, key, 0, keys, state, parameters), samples
    if traced(key, parameters):
        raise ValueError(
            "precision and checkpoint need a key that is not traced, and such parameters"
        )
    if precision is not None and not precision > 0:
        raise ValueError(f"precision must be positive; got {precision}")
    return _in_rounds(which, key, keys, state, parameters, precision, checkpoint)


def _in_rounds(
    which: Plan,
    key: Key[Array, ""],
    keys: int,
    state: _Moments,
    parameters: tuple[Any, ...],
    precision: float | None,
    checkpoint: Path | str | None,
) -> tuple[_Moments, int]:
    """The same, drawn by and by: until it is precise, and from where an earlier call stopped."""
    done, rows = 0, which.block or 1
    folder = None if checkpoint is None else Path(checkpoint)
    if folder is not None:
        state, done = _restored(folder, key, state)
    for end in _ends(keys):
        if end > done:
            state = fold(which, _MOMENTS, key, done, end, state, parameters)
            done = end
            if folder is not None:
                _save(folder, key, state, done)
        stderr = np.asarray(_mean_stderr(state, done * rows))
        if precision is not None and (stderr <= precision).all():
            break
    return state, done * rows


def _ends(keys: int) -> Iterator[int]:
    """Ends of the rounds, each a quarter beyond the last: the same for every batch size."""
    end = 1000
    while end < keys:
        yield end
        end += end // 4
    yield keys


def _save(folder: Path, key: Key[Array, ""], state: _Moments, done: int) -> None:
    leaves = [np.asarray(leaf) for leaf in (jax.random.key_data(key), *state)]
    with _checkpoints(folder) as checkpoints:
        checkpoints.save(done, args=ocp.args.StandardSave(leaves), force=True)


def _restored(folder: Path, key: Key[Array, ""], state: _Moments) -> tuple[_Moments, int]:
    """State and number of keys that `folder` holds; those given where it holds none."""
    with _checkpoints(folder) as checkpoints:
        done = checkpoints.latest_step()
        if done is None:
            return state, 0
        like = [np.asarray(leaf) for leaf in (jax.random.key_data(key), *state)]
        data, *found = _leaves(checkpoints, done, like, folder)
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in state]:
        shapes = f"{state.mean.shape}; {folder} is of {found[1].shape}"
        raise ValueError(f"checkpoint must be of draws of the shape {shapes}")
    if not np.array_equal(data, like[0]):
        raise ValueError(f"checkpoint must be of the same key; {folder} is of another")
    return _Moments(*map(jnp.asarray, found)), done


def _leaves(
    checkpoints: ocp.CheckpointManager, done: int, like: list[np.ndarray], folder: Path
) -> Any:
    try:
        return checkpoints.restore(done, args=ocp.args.StandardRestore(like))
    except Exception as error:  # Orbax and TensorStore raise many kinds
        raise ValueError(
            f"checkpoint must be an estimate's; {folder} cannot be read ({type(error).__name__})"
        ) from error


def _checkpoints(folder: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, cleanup_tmp_directories=True, enable_async_checkpointing=False
    )
    return ocp.CheckpointManager(folder.resolve(), options=options)
