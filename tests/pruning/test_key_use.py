"""Statistical tests and simulations that draw random samples use no random key twice."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import pytest

from pruning import ranking, weight_tests
from tests.support import key_use

W = jnp.asarray(jnp.arange(1.0, 31.0) ** 2 % 17 - 8)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda key: ranking.gaussian_similarity(key, num_filters=4, dims=3, ratio=0.5, samples=6),
        lambda key: ranking.permutation_p_value(key, W, W[::-1] + 0, samples=6),
        *(
            partial(
                lambda key, shape: weight_tests.ks_generalized_gaussian(
                    key, W, shape=shape, samples=6
                ),
                shape=shape,
            )
            for shape in (None, 1.0)
        ),
    ],
)
def test_every_sample_is_drawn_by_keys_of_its_own(drawn: Any, key):
    with key_use.recorded() as use:
        drawn(key)
    use.assert_once()
    samplers = ("normal", "permutation", "rademacher", "loggamma")
    assert {use.count(name) for name in samplers} == {0, 6}
