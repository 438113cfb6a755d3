"""The bench compares what it says, alternately and after warming up."""

import jax
import numpy as np
import pytest

import bench


def test_the_two_sides_are_called_in_turn_and_warmed_up():
    calls = []
    ours, peer = (lambda: calls.append("a")), (lambda: calls.append("b"))
    a, b = bench.alternately(ours, peer, 4)
    assert calls == ["a", "b"] * 7
    assert a.shape == b.shape == (4,)
    assert (a > 0).all()


def test_both_sides_of_a_layer_compute_the_same(monkeypatch):
    monkeypatch.setattr(bench, "SHAPES", ((16, 4, 4, 3),))
    monkeypatch.setattr(bench.jax.random, "normal", narrow)
    for _, ours, peer in bench.layers():
        (value, _), (_, gradient) = ours()
        (expected, _), (_, wanted) = peer()
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-4)


def narrow(key, shape, normal=jax.random.normal):
    return normal(key, shape, "float32")


def test_too_few_runs_are_refused():
    with pytest.raises(SystemExit, match="--runs must be at least 3; got 1"):
        bench.main(runs=1)
