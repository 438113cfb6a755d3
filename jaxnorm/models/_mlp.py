"""The dense network of the unitization paper."""

import math
from collections.abc import Sequence
from itertools import pairwise

from flax import nnx
from jaxtyping import Array, Float

from jaxnorm.internal import check_array, check_flags
from jaxnorm.models._norm import Norm, check_norm, check_sizes, check_widths
from jaxnorm.nnx import BatchNorm


class MLP(nnx.Module):
    """A dense network with a dense layer, normalization and ReLU per width, and a last dense layer.

    By default, the network is the MNIST network of the unitization paper, section 4.1: ten layers
    of 100 units and one layer of 8 units. Figure 2 of the paper shows the normalized outputs of the
    layer of 8 units.

    Args:
      inputs: The number of elements of one sample, 784 for MNIST.
      widths: The number of units of each hidden layer.
      classes: The number of outputs.
      norm: The constructor of the normalization, called as `norm(num_features, rngs=rngs)`.
      activation_first: Whether to normalize after the ReLU instead of before the ReLU. The paper's
        text, "layers with ReLU activations [...] A BN/unitization layer follows each", allows both
        orders.
      rngs: Keys for the initializers.

    Raises:
      ValueError: `widths` is empty.

    Example:
      >>> import jax.numpy as jnp
      >>> images = jnp.zeros((2, 28, 28, 1), "float32")
      >>> def last(x):
      ...     return MLP(widths=(100, 8), classes=10, rngs=nnx.Rngs(0)).last_normalized(x)
      >>> print(nnx.eval_shape(last, images).shape)
      (2, 8)
    """

    def __init__(
        self,
        *,
        inputs: int = 784,
        widths: Sequence[int] = (100,) * 10 + (8,),
        classes: int,
        norm: Norm = BatchNorm,
        activation_first: bool = False,
        rngs: nnx.Rngs,
    ):
        check_norm(norm)
        check_sizes(rngs, inputs=inputs, classes=classes)
        check_flags(activation_first=activation_first)
        check_widths("widths", widths)
        if not widths:
            raise ValueError("widths must be a list with the width of at least one layer; got none")
        sizes = [inputs, *widths, classes]
        he_normal = nnx.initializers.he_normal()
        *hidden, self.head = (
            nnx.Linear(fan_in, fan_out, kernel_init=he_normal, rngs=rngs)
            for fan_in, fan_out in pairwise(sizes)
        )
        self.layers = nnx.List(hidden)
        self.norms = nnx.List([norm(width, rngs=rngs) for width in widths])
        self.activation_first = activation_first

    def __call__(self, x: Float[Array, "n *sample"]) -> Float[Array, "n classes"]:
        x = self.last_normalized(x)
        return self.head(x if self.activation_first else nnx.relu(x))

    def last_normalized(self, x: Float[Array, "n *sample"]) -> Float[Array, "n width"]:
        """The output of the last normalization. Each sample is first flattened."""
        check_array(x, "x")
        if x.ndim == 0:
            raise ValueError("x must have samples on its first axis; got a scalar")
        # A reshape to `(n, -1)` would fail if n is 0.
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        if x.shape[1] != (inputs := self.layers[0].kernel.shape[0]):
            raise ValueError(f"a sample of x must have {inputs} elements; got {x.shape[1]}")
        before, after = (
            (nnx.relu, nnx.identity) if self.activation_first else (nnx.identity, nnx.relu)
        )
        *hidden, (layer, norm) = zip(self.layers, self.norms, strict=True)
        for dense, normalize in hidden:
            x = after(normalize(before(dense(x))))
        return norm(before(layer(x)))
