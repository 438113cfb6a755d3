"""No random key is used twice in networks, estimates, ranks, cells and claims."""

import jax
import jax.numpy as jnp
import pytest

from geometry import cells, claims, monte_carlo, networks, ranks
from tests.support import key_use

X = jnp.array([[1.0, 0.2], [0.3, 2.0], [-1.0, 0.4]])


def test_every_layer_of_a_random_network_has_weights_of_its_own(key):
    with key_use.recorded() as use:
        networks.random_network(key, X, depth=5, width=4)
    use.assert_once()
    assert use.count("normal") == 5


@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"draws_per_key": 5}])
def test_every_draw_of_an_estimate_has_a_key_of_its_own(options, key):
    rows = options.get("draws_per_key")
    shape = () if rows is None else (rows,)
    with key_use.recorded() as use:
        one = jax.devices()[:1]
        monte_carlo(lambda k: jax.random.normal(k, shape), key, 60, devices=one, **options)
    use.assert_once()
    assert use.count("normal") >= 60 // (rows or 1)  # the last chunk can have additional draws


def test_rounds_of_an_estimate_go_on_where_the_last_one_ended(key):
    """To reach `target_stderr`, a first round uses 1,000 keys, and a second the next 250."""
    with key_use.recorded() as use:
        found = monte_carlo(
            jax.random.normal,
            key,
            10_000,
            devices=jax.devices()[:1],
            batch_size=250,
            target_stderr=0.03,
        )
    use.assert_once()
    assert found.samples == use.count("normal") > 1000
    assert found.stderr <= 0.03


def test_every_neuron_of_a_growing_rank_and_of_cells_is_drawn_anew(key):
    with key_use.recorded() as use:
        rows, _ = ranks.rows_needed(key, X)
        cells.sampled_cells(jax.random.fold_in(key, 10**6), X, samples=20)
    use.assert_once()
    assert use.count("normal") == int(rows) + 1


def test_every_source_of_claims_has_draws_of_its_own(key):
    claim = claims.Claim("notes", "Theorem 1", "means of normal numbers")

    def one(key):
        return {"x": jax.random.normal(key)}

    def other(key):
        return {"x": jax.random.normal(key) + 1}

    for draw, mean in ((one, 0.0), (other, 1.0)):
        claim.mean("a mean", mean, claims.Draws(draw, samples=50), "x")

    @claim.at_most("a size", 10.0)
    def _(key):
        return jnp.abs(jax.random.normal(key, (3,)))

    with key_use.recorded() as use:
        verdict = claims.check(claim, key)
    use.assert_once()
    assert verdict.as_recorded
    assert use.count("normal") >= 101
