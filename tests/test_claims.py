from dataclasses import FrozenInstanceError, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from geometry import cell_volumes_2d
from geometry.claims import ALL, Claim, check
from jaxnorm import unitize
from pruning import expected_spearman

ALPHA_BOUND, IMAGES, RATIO, RANKS, CELLS, NORM = ALL


@pytest.fixture(scope="module")
def verdicts():
    return {claim.name: check(claim, jax.random.key(7)) for claim in ALL}


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.name)
def test_the_printed_number_is_wrong_and_the_corrected_one_right(claim, verdicts):
    verdict = verdicts[claim.name]
    assert verdict.z_printed > 6 or (claim.kind == "value" and verdict.z_printed < -6)
    assert abs(verdict.z_corrected) < 4
    assert not verdict.printed_holds
    assert verdict.corrected_holds
    assert verdict.text == (
        "printed value rejected, corrected value holds"
        if claim.kind == "value"
        else "printed bound violated, corrected value holds"
    )


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.9, 1.1])
@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.name)
def test_a_corrected_number_that_is_off_by_ten_percent_is_noticed(claim, factor, verdicts):
    estimate, stderr, *_ = verdicts[claim.name]
    mutant = replace(
        claim,
        predicted=factor * claim.predicted,
        draw=partial(normal_draw, estimate, stderr * claim.samples**0.5),
        samples=claim.samples,
    )
    verdict = check(mutant, jax.random.key(1))
    assert not verdict.corrected_holds
    assert verdict.text.endswith("corrected value rejected")


def normal_draw(mean, deviation, key):
    """Has the estimate and standard error of a claim without the cost of its draws."""
    return mean + deviation * jax.random.normal(key)


def toy(printed, predicted, kind: Literal["value", "upper bound"] = "value"):
    return Claim(
        paper="none",
        name="uniform",
        statement="E u = 1/2",
        printed="",
        corrected="",
        kind=kind,
        printed_value=printed,
        predicted=predicted,
        draw=jax.random.uniform,
        samples=1000,
    )


@pytest.mark.parametrize(
    ("printed", "kind", "holds", "words"),
    [
        (0.5, "value", True, "printed value not rejected"),
        (0.2, "value", False, "printed value rejected"),
        (0.8, "value", False, "printed value rejected"),
        (0.8, "upper bound", True, "printed bound not violated"),
        (0.5, "upper bound", True, "printed bound not violated"),
        (0.2, "upper bound", False, "printed bound violated"),
    ],
)
def test_how_a_printed_number_is_judged(printed, kind, holds, words, key):
    verdict = check(toy(printed, 0.5, kind), key)
    assert verdict.printed_holds is holds
    assert verdict.text == words + ", corrected value holds"


def test_estimates_are_deterministic_and_in_standard_errors(key):
    first, second = check(toy(0.4, 0.5), key), check(toy(0.4, 0.5), key)
    assert first == second
    assert abs(first.stderr * 12**0.5 * 1000**0.5 - 1) < 0.1
    np.testing.assert_allclose((first.z_printed - first.z_corrected) * first.stderr, 0.1)


def test_without_spread_only_the_very_number_holds(key):
    exact = replace(toy(0.5, 2.0), draw=lambda key: jnp.ones(()) / 2)
    verdict = check(exact, key)
    assert (verdict.z_printed, verdict.z_corrected) == (0, -np.inf)
    assert verdict.printed_holds
    assert not verdict.corrected_holds


def test_claims_are_immutable_and_distinct():
    with pytest.raises(FrozenInstanceError):
        setattr(ALL[0], "predicted", 1.0)  # noqa: B010
    assert len({claim.name for claim in ALL}) == 6
    assert sorted({claim.paper for claim in ALL}) == [
        "Batch Normalization Decomposed",
        "CWDA",
        "Unitization",
    ]
    assert all(claim.printed_value != claim.predicted for claim in ALL)


def test_eq_10_predicts_the_integral_over_the_radius():
    def density(r):
        return np.exp(special.xlogy(63, r) - r**2 / 2 - 31 * np.log(2) - special.gammaln(32))

    def moved(r, eps=1e-12):
        return abs(
            np.subtract(*(0.5 * s * r / np.hypot(s * r, eps**0.5) + 0.5 * s * r for s in (1, 3)))
        )

    expected, _ = integrate.quad(lambda r: moved(r) * density(r), 0, 30)
    np.testing.assert_allclose(ALPHA_BOUND.predicted, expected, rtol=1e-6)


def test_eq_10_obeys_the_corrected_bound(key):
    x = jax.random.normal(key, (2000, 64))
    norm = jnp.linalg.norm(x, axis=1)
    bound = 2 + 0.5 * (jax.nn.relu(norm - 1).mean() + jax.nn.relu(3 * norm - 1).mean())
    cost = jnp.linalg.norm(unitize(x, 0.5) - unitize(3 * x, 0.5), axis=1).mean()
    assert ALPHA_BOUND.printed_value < cost < bound


def test_algorithm_2_predicts_the_integral_over_the_angle():
    dims, m = 8 * 8 * 16, 32.0
    # cos = (m + z)/√((m + z)² + χ²) with z normal along u and χ² of dims − 1 across it.
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    chi = np.linspace(24, 40, 2001)
    density = np.exp((dims - 2) * np.log(chi / 32) - (chi**2 - 32**2) / 2)
    cos = (m + z[:, None]) / np.hypot(m + z[:, None], chi)
    expected = (weight @ cos @ density) / (weight.sum() * density.sum())
    np.testing.assert_allclose(IMAGES.predicted, 2 * 64 * expected, rtol=1e-9)
    assert IMAGES.predicted < 2 * 64  # no two images of norm HW are farther apart


def test_theorem_1_is_judged_by_the_ledgers_number():
    np.testing.assert_allclose(64 * RATIO.predicted, 0.06832, atol=5e-6)
    assert RATIO.predicted < (np.pi - 3) / (2 * 64) < RATIO.printed_value / 15


def test_ranks_are_judged_by_the_number_of_the_pruning_package():
    assert abs(RANKS.predicted - 0.9266) < 5e-5
    np.testing.assert_allclose(
        RANKS.predicted, expected_spearman(128, 576, ("l1", "l2")), rtol=1e-12
    )


def test_the_cell_is_one_of_those_of_the_exact_volumes():
    turn = 2 * np.pi * np.arange(5) / 5
    x = jnp.asarray(np.stack([np.cos(turn), np.sin(turn)], 1))
    np.testing.assert_allclose(cell_volumes_2d(x), CELLS.predicted, rtol=1e-13)


def test_the_norm_of_theorem_14_is_the_ledgers_series():
    assert abs(NORM.predicted - (1 - 5 / (8 * 20))) < 1 / 20**2
