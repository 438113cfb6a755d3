import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnorm.internal import _numerics


@pytest.mark.parametrize("square", [0.0, 4.0])
def test_the_square_root_has_a_finite_gradient_which_is_zero_at_zero(square):
    value, gradient = jax.value_and_grad(_numerics.safe_sqrt)(square)
    assert value == square**0.5
    assert gradient == (0.25 if square else 0)


def test_the_square_root_of_what_has_none_is_nan():
    assert np.isnan(_numerics.safe_sqrt(jnp.array([-1.0, jnp.nan]))).all()
