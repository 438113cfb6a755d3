"""The page of odd states of eight activations."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.measures import activation_states
from experiments.measures.odd_certificate import Certificate
from experiments.pages import activation_states as states_page
from geometry import mean_field, odd_points
from geometry.odd_points import cluster_spread, odd_state
from tests.support.recorded import assert_as_recorded, condense


def test_a_batch_of_relu_has_the_odd_state_in_closed_form():
    found = activation_states.batch(10, "ReLU")
    assert found["odd"] is not None
    np.testing.assert_allclose(list(found["odd"]["state"].values()), odd_state(10), rtol=1e-9)
    assert found["expansion"] == cluster_spread(10, *activation_states.ACTIVATIONS["ReLU"])


def test_the_states_of_an_activation_are_as_recorded(monkeypatch):
    monkeypatch.setattr(activation_states, "SIZES", (7,))
    monkeypatch.setattr(activation_states, "networks", lambda function: None)
    found = condense(activation_states.measure("leaky ReLU, slope 0.1"), "depth_scale")
    assert_as_recorded("runs/odd_states", found, rtol=1e-5)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Map:
    """The map ρ → a ρ³ + (1 − a) ρ, with its slope at 1."""

    a: Any
    slope: Any
    tail: Any

    def __call__(self, rho):
        return self.a * rho**3 + (1 - self.a) * rho


def cubic_map(function, kinks):
    a = function(1.0) + sum(kinks)
    return Map(a, 1 + 2 * a, 1e-3 * a)


@jax.enable_x64(False)
def test_an_activation_is_measured_in_float64_with_batches_of_all_sizes(monkeypatch):
    """Kernel maps take seconds to compile, so a cubic map stands for them."""
    monkeypatch.setattr(activation_states, "SIZES", (6, 11))
    monkeypatch.setitem(activation_states.ACTIVATIONS, "made up", (lambda x: x / 4, (0.1, 0.05)))
    monkeypatch.setattr(activation_states, "batch", lambda n, name: f"{n} of {name}")
    monkeypatch.setattr(activation_states, "networks", lambda function: function(8.0))
    monkeypatch.setattr(activation_states.mean_field, "kernel_map", cubic_map)
    monkeypatch.setattr(activation_states.mean_field, "cubic_term", lambda m: 7 * m.a)
    monkeypatch.setattr(
        activation_states.mean_field,
        "fixed_point",
        lambda m: mean_field.FixedPoint(m.a + 1, m.a + 2, m.a + 3),
    )
    found = activation_states.measure("made up")
    a, rho = 0.4, np.cos(np.pi * np.arange(61) / 60)
    angles = np.arccos(np.clip(a * rho**3 + (1 - a) * rho, -1, 1))
    np.testing.assert_allclose(found.pop("angles"), angles, atol=1e-7)
    fixed_point = {"cosine": 1.4, "slope": 2.4, "depth_scale": 3.4}
    assert found.pop("fixed_point") == pytest.approx(fixed_point, rel=1e-12)
    numbers = {name: found.pop(name) for name in ("slope", "cubic", "tail")}
    assert numbers == pytest.approx({"slope": 1.8, "cubic": 2.8, "tail": 4e-4}, rel=1e-12)
    batches = {"6": "6 of made up", "11": "11 of made up"}
    assert found == {"batches": batches, "network": 2.0}


@pytest.mark.parametrize("has_odd_state", [True, False])
def test_a_batch_is_measured_at_its_odd_and_at_its_symmetric_state(has_odd_state, monkeypatch):
    """The functions take seconds to compile; fakes return their arguments."""
    function, kinks = activation_states.ACTIVATIONS["ELU"]

    def stability(ratio, n, *given):
        assert given == (function, kinks)
        state = odd_points.OddState(ratio, 0.1 * n, 0.5)
        return odd_points.Stability(state, (0.7, 0.6), (0.4,), 0.3, 2 * ratio)

    def odd_stability(n, *given):
        return stability(3.0, n, *given) if has_odd_state else None

    def walk(n, width, *given):
        assert given == (function, kinks)
        return odd_points.SpreadDistribution(n, width, 1.0, 2.0) if has_odd_state else None

    def spread(n, *given):
        assert given == (function, kinks)
        return 0.01 * n

    for name, fake in {
        "odd_stability": odd_stability,
        "symmetric_stability": partial(stability, 1.0),
        "cluster_spread": spread,
        "spread_distribution": walk,
    }.items():
        monkeypatch.setattr(activation_states.odd_points, name, fake)
    monkeypatch.setattr(
        activation_states,
        "certificate",
        lambda name, n, state: Certificate(f"{name} {n}", state.norm_ratio),
    )
    found = activation_states.batch(8, "ELU")
    same = {"family": (0.7, 0.6), "single": (0.4,), "pairs": 0.3}
    state = {"angle": 0.8, "spread": 0.5}
    symmetric = {"state": {"norm_ratio": 1.0, **state}, **same, "radius": 2.0}
    odd = {"state": {"norm_ratio": 3.0, **state}, **same, "radius": 6.0}
    certificate = {"radius": "ELU 8", "residual": 3.0}
    spreads = {"mean": 8, "shape": 1000, "drift": 1.0, "noise": 2.0}
    assert found == {
        "odd": odd if has_odd_state else None,
        "certificate": certificate if has_odd_state else None,
        "symmetric": symmetric,
        "expansion": 0.08,
        "walk": spreads if has_odd_state else None,
    }


def test_networks_have_the_means_and_errors_of_their_draws(monkeypatch):
    ends = iter([[1.0, 10.0, 7.0], [2.0, 30.0, 7.0], [6.0, 20.0, 7.0]])
    monkeypatch.setattr(activation_states, "DRAWS", 3)
    monkeypatch.setattr(activation_states, "_network", lambda *_: next(ends))
    found = activation_states.networks(np.tanh)
    assert found["norm_ratio"]["mean"] == 3
    assert found["norm_ratio"]["stderr"] == pytest.approx((7 / 3) ** 0.5)
    assert found["angle"] == {"mean": 20, "stderr": pytest.approx(10 / 3**0.5)}
    assert found["spread"] == {"mean": 7, "stderr": 0}


def test_kinds_of_states_are_named():
    symmetric = {"radius": 0.9}
    odd = {"radius": 0.95, "state": {"spread": 0.5}}
    name = states_page._kind({"odd": odd, "symmetric": symmetric})
    assert (
        name
        == "the odd state is stable, its cluster has a spread, and the symmetric state is stable"
    )
    name = states_page._kind({"odd": None, "symmetric": {"radius": 1.1}})
    assert name == "there is no odd state, and the symmetric state is unstable"


@pytest.mark.parametrize(("layers", "longer", "size"), [(0, 16, 25), (1, 3, 1)])
def test_samples_have_one_mean_square_before_every_activation(layers, longer, size, monkeypatch):
    """At first, the norm of the first sample is four times that of the others."""
    grams: list[np.ndarray] = []

    def odd_point(gram):
        grams.append(np.asarray(gram))
        return SimpleNamespace(norm_ratio=1.0, angle=1.0, spread=1.0)

    monkeypatch.setattr(activation_states, "LAYERS", layers)
    monkeypatch.setattr(activation_states, "DRAWS", 2)
    monkeypatch.setattr(activation_states, "_odd_point", odd_point)
    activation_states.networks(lambda x: x)
    for gram in grams:
        assert np.trace(gram) / 10 == pytest.approx(size, rel=0.15 if layers else 0.5)
        assert gram[0, 0] > longer / 2 * np.diagonal(gram)[1:].mean()
    assert (grams[0] != grams[1]).any()


def test_a_network_of_relu_keeps_its_odd_point(monkeypatch):
    monkeypatch.setattr(activation_states, "LAYERS", 30)
    found = activation_states.networks(activation_states.ACTIVATIONS["ReLU"][0])
    assert found["norm_ratio"]["mean"] > 3
    assert found["angle"]["mean"] > 1.4
