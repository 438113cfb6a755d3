"""Monte Carlo estimates with their standard errors.

A draw is a function of a key, and possibly of parameters. Draw i has the key `fold_in(key, i)`.
Therefore, up to rounding, results do not depend on the devices or on `batch_size`. Only the memory
that is needed depends on `batch_size`. The program is compiled again if the function object `draw`,
the shapes of the parameters or the number of draws in memory change.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from geometry.sampling._streams import Inputs, Sampler, compiled, empty, fold, number_of_keys
from jaxnorm.internal import CentralMoments, check_positive, is_traced


class Estimate(NamedTuple):
    """A mean over independent draws, its standard error, and the number of draws."""

    mean: Float[Array, "*s"]
    stderr: Float[Array, "*s"]
    samples: int


class SampleMoments(NamedTuple):
    """The mean and unbiased variance of independent draws, with a standard error for each."""

    mean: Float[Array, "*s"]
    mean_stderr: Float[Array, "*s"]
    variance: Float[Array, "*s"]
    variance_stderr: Float[Array, "*s"]
    samples: int


def monte_carlo(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    *,
    parameters: tuple[Any, ...] = (),
    batch_size: int | None = None,
    draws_per_key: int | None = None,
    devices: Sequence[Any] | None = None,
    target_stderr: float | None = None,
) -> Estimate:
    """The mean of `draw(key)` over independent keys, and the standard error of the mean.

    The moments of batches and devices are merged as in Chan, Golub and LeVeque (1979). If draws are
    Boolean, the mean is the rate of the event. If `monte_carlo` is traced, the draws are computed
    on the devices of the caller.

    Args:
      draw: Any function of a key. The result of `draw` may have any shape, and may be Boolean or an
        integer.
      key: The random key from which the keys of all draws are derived.
      samples: The number of draws, at least 2.
      parameters: Trees of arrays that are passed to `draw` after the key. New values of parameters
        do not recompile the program.
      batch_size: The number of draws that a device holds at a time; by default at most 16,384.
      draws_per_key: The number of draws from one key, on the leading axis of the result of `draw`.
        Making a key takes as long as drawing a random number. Therefore one key for each random
        number doubles the time.
      devices: The devices that share the draws. The default is the devices of the mesh that
        `jax.set_mesh` has set, or else all devices of all hosts. Without a mesh, the default on
        CPUs is one device of each process, because the CPU devices of a process share its cores.
        Several CPU devices can wait for each other forever if `draw` calls LAPACK, such as
        `jnp.linalg.svd`, and the process has no more cores than devices. If the environment
        variable `NPROC` is twice the number of devices, the devices do not wait.
      target_stderr: If every standard error is at most `target_stderr`, drawing stops before
        `samples` draws. The standard errors are checked after 1,000 keys, and then whenever the
        number of keys has grown by a quarter.

    Raises:
      TypeError: `draw` is not a function or returns no array, `key` is not a random key, or a
        number of draws is not an `int`.
      ValueError: `samples` is below 2, or `batch_size` is below 1. `draws_per_key` does not divide
        `samples`, or is not the number of draws that `draw` returns. `target_stderr` is not
        positive, or is given although the key or a parameter is traced. There are several
        `devices`, but `jax.set_mesh` has set a mesh with a different number of devices.

    Example:
      >>> import jax
      >>> estimate = monte_carlo(jax.random.uniform, jax.random.key(0), 10_000)
      >>> print(abs(estimate.mean - 0.5) < 5 * estimate.stderr)
      True
    """
    sampler = Sampler(draw, parameters, batch_size, draws_per_key, devices, highest=2)
    state, samples = _central_moments(sampler, key, samples, target_stderr)
    return Estimate(state.mean, _mean_stderr(state, samples), samples)


def monte_carlo_moments(
    draw: Callable[..., Array],
    key: Key[Array, ""],
    samples: int,
    *,
    parameters: tuple[Any, ...] = (),
    batch_size: int | None = None,
    draws_per_key: int | None = None,
    devices: Sequence[Any] | None = None,
) -> SampleMoments:
    """The result of `monte_carlo`, the variance of the draws, and that variance's standard error.

    The standard error of the variance is √((m₄ − m₂²)/n), where m₂ and m₄ are the central moments
    of the draws, merged as in Pébay (2008). The standard error of the variance is accurate if the
    eighth moment is finite and n is large compared with m₄/m₂². If fourth powers of the draws
    overflow (in float32, for draws above 10⁹), the standard error of the variance is NaN or ∞.
    Arguments and errors are the same as for `monte_carlo`, except that there is no `target_stderr`.

    Example:
      >>> import jax
      >>> moments = monte_carlo_moments(jax.random.uniform, jax.random.key(0), 10_000)
      >>> print(abs(moments.variance - 1 / 12) < 5 * moments.variance_stderr)
      True
    """
    sampler = Sampler(draw, parameters, batch_size, draws_per_key, devices)
    state, samples = _central_moments(sampler, key, samples, None)
    return SampleMoments(
        state.mean,
        _mean_stderr(state, samples),
        state.second * (samples / (samples - 1)),
        jnp.sqrt(jnp.maximum(state.fourth - jnp.square(state.second), 0) / samples),
        samples,
    )


def _central_moments(
    sampler: Sampler, key: Key[Array, ""], samples: int, target_stderr: float | None
) -> tuple[CentralMoments, int]:
    """The moments of the draws, and the number of draws."""
    keys = number_of_keys(sampler, key, samples)
    program = compiled(sampler, key, keys)
    inputs = Inputs(key, sampler.parameters)
    state, done = empty(program, inputs), 0
    if target_stderr is None:
        return fold(program, inputs, 0, keys, state), samples
    if is_traced((key, sampler.parameters)):
        raise ValueError("target_stderr needs a key and parameters that are not traced")
    check_positive(target_stderr, "target_stderr")
    draws_per_key = sampler.draws_per_key or 1
    for end in _round_ends(keys):
        state, done = fold(program, inputs, done, end, state), end
        if (np.asarray(_mean_stderr(state, done * draws_per_key)) <= target_stderr).all():
            break
    return state, done * draws_per_key


def _round_ends(keys: int) -> Iterator[int]:
    """The numbers of keys after which standard errors are checked, equal for all batch sizes.

    Each number is a quarter larger than the previous number; the last number is `keys`.
    """
    end = 1000
    while end < keys:
        yield end
        end += end // 4
    yield keys


def _mean_stderr(state: CentralMoments, samples: int) -> Array:
    return jnp.sqrt(state.second / (samples - 1))
