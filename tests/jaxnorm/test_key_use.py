"""Training of critics and drawing of directions use no random key twice."""

import jax
import jax.numpy as jnp
import pytest

from jaxnorm.shift import emd_critic, emd_lower_bound, emd_sliced
from tests.support import key_use


@pytest.fixture
def samples():
    rows = jax.random.normal(jax.random.key(7), (4, 12, 3))
    return [rows[0], rows[1] + 2, rows[2], rows[3] + 2]


@pytest.mark.parametrize(("distance", "critics"), [(emd_critic, 1), (emd_lower_bound, 2)])
def test_every_step_of_every_critic_draws_its_own_minibatch(distance, critics, samples, key):
    with key_use.recorded() as use:
        distance(key, *samples, steps=5, batch_size=4)
    use.assert_once()
    assert use.count("randint") == 5 * critics


def test_directions_are_drawn_once(samples, key):
    with key_use.recorded() as use:
        emd_sliced(key, jnp.concatenate(samples[:2]), samples[2], projections=4)
    use.assert_once()
    assert use.count("normal") == 1


def test_a_key_that_is_consumed_twice_is_noticed(key):
    with key_use.recorded() as use:
        jax.jit(lambda k: jax.random.normal(k) + jax.random.uniform(k))(key)
    with pytest.raises(AssertionError, match=r"1 keys .* by \[\['normal', 'uniform'\]\]"):
        use.assert_once()
    with key_use.recorded() as use:
        jax.vmap(jax.random.normal)(jnp.stack([key, key]))
    with pytest.raises(AssertionError, match="more than once"):
        use.assert_once()
    with key_use.recorded() as use:
        jax.lax.map(lambda n: jax.random.normal(jax.random.fold_in(key, n)), jnp.arange(3))
    use.assert_once()
    assert (use.count("fold_in"), use.count("normal")) == (3, 3)
    with key_use.recorded() as use:  # the last key of split(key, 3) equals fold_in(key, 2)
        jax.random.split(key, 3)
        jax.random.fold_in(key, 2)
    with pytest.raises(AssertionError, match=r"by \[\['split', 'fold_in'\]\]"):
        use.assert_once()
