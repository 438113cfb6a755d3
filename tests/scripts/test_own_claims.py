"""The layers that the project's own claims are about, compared with NumPy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from claims.own import normalizers

RNG = np.random.default_rng(7)
X = RNG.normal(2, 3, (6, 5))
SCALE, BIAS = RNG.normal(1, 0.3, 5), RNG.normal(-1, 0.5, 5)
ALPHA, OFFSET = RNG.uniform(0.2, 0.8, 5), RNG.normal(0.5, 0.2, 5)
ERF = np.vectorize(math.erf)


EXPECTED = {
    "layer_norm": (X - X.mean(1, keepdims=True))
    / np.sqrt(X.var(1, keepdims=True) + normalizers.EPS),
    "rms_norm": X / np.sqrt((X**2).mean(1, keepdims=True) + normalizers.EPS),
    "dyt": np.tanh(ALPHA * X),
    "derf": ERF(ALPHA * X + OFFSET),
    "unitized": X / (ALPHA * np.linalg.norm(X, axis=1, keepdims=True) + 1 - ALPHA),
}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("layer_norm", ()),
        ("rms_norm", ()),
        ("dyt", (ALPHA,)),
        ("derf", (ALPHA, OFFSET)),
        ("unitized", (ALPHA,)),
    ],
)
def test_layers_are_their_formulas(name, numbers):
    layer = getattr(normalizers, name)(*map(jnp.asarray, (SCALE, BIAS, *numbers)))
    np.testing.assert_allclose(
        layer.apply(jnp.asarray(X)), SCALE * EXPECTED[name] + BIAS, rtol=1e-12
    )
