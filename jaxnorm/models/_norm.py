"""The type of the normalization that networks take."""

from collections.abc import Callable

from jaxtyping import Array

Norm = Callable[..., Callable[..., Array]]
"""Constructor of a layer, called as `norm(num_features, rngs=rngs)`; the layer keeps shapes."""
