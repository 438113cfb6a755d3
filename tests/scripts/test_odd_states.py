"""The page of odd states of eight activations."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.measures import activation_states
from experiments.pages import activation_states as states_page
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
    assert name == "a stable odd state whose cluster keeps a spread, the symmetric state stable"
    name = states_page._kind({"odd": None, "symmetric": {"radius": 1.1}})
    assert name == "no odd state, the symmetric state unstable"


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
