"""Records the random keys that a run consumes.

A key that is consumed twice gives the same random numbers twice, which is a mistake.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax
import numpy as np
import pytest

SAMPLERS = (
    *("ball", "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare"),
    *("choice", "dirichlet", "exponential", "gamma", "gumbel", "laplace", "loggamma"),
    *("multivariate_normal", "normal", "permutation", "poisson", "rademacher", "randint"),
    *("split", "t", "truncated_normal", "uniform", "fold_in"),
)


class Use:
    """The consumed keys in order, by the name of the sampler."""

    def __init__(self):
        self.keys: list[tuple[str, bytes]] = []

    def count(self, sampler: str) -> int:
        """The number of keys that a sampler consumed, counted at each run of a compiled program."""
        return sum(name == sampler for name, _ in self.keys)

    def assert_once(self) -> None:
        """Assert that no key was consumed twice, even by different samplers.

        `fold_in` may take a key several times, but no other function may then consume the key.
        """
        jax.effects_barrier()
        by_key: dict[bytes, list[str]] = {}
        for name, key in self.keys:
            by_key.setdefault(key, []).append(name)
        several = [names for names in by_key.values() if len(names) > 1]
        twice = [names for names in several if set(names) != {"fold_in"}]
        assert not twice, f"{len(twice)} keys are consumed more than once, by {twice[:3]}"


@contextmanager
def recorded() -> Iterator[Use]:
    """Record the keys that `jax.random` consumes, also inside compiled programs, loops and `vmap`.

    The key of `fold_in` equals the key of `split` at the same index.
    """
    use = Use()

    def noting(name: str, sampler: Callable[..., Any]) -> Callable[..., Any]:
        def note(data: Any) -> None:
            use.keys += [(name, row.tobytes()) for row in np.asarray(data).reshape(-1, 2)]

        @wraps(sampler)
        def call(key: Any, *args: Any, **options: Any) -> Any:
            jax.debug.callback(note, jax.random.key_data(key))
            return sampler(key, *args, **options)

        return call

    jax.clear_caches()  # programs that were traced earlier would record nothing
    with pytest.MonkeyPatch.context() as patch:
        for name in SAMPLERS:
            patch.setattr(jax.random, name, noting(name, getattr(jax.random, name)))
        yield use
        jax.effects_barrier()
    jax.clear_caches()
