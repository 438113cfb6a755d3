"""DyT, Derf and unitization as modules of Flax NNX; the modules have no running statistics."""

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial

from flax import nnx
from flax.typing import Initializer
from jaxtyping import Array, Float

from jaxnorm._pointwise import derf, dyt, unitize_with
from jaxnorm._unitize import unitize
from jaxnorm.internal import check_function, promote_to
from jaxnorm.nnx._layers import Affine, Metadata

HALF = nnx.initializers.constant(0.5)


@dataclass(eq=False, repr=False)
class Stateless(Affine):
    """A layer with the parameters alpha, scale and bias."""

    _: KW_ONLY
    alpha_init: InitVar[Initializer] = HALF
    alpha_metadata: InitVar[Metadata] = None

    def __post_init__(
        self,
        bias_init: Initializer,
        scale_init: Initializer,
        rngs: nnx.Rngs,
        bias_metadata: Metadata,
        scale_metadata: Metadata,
        alpha_init: Initializer,
        alpha_metadata: Metadata,
    ):
        super().__post_init__(bias_init, scale_init, rngs, bias_metadata, scale_metadata)
        self.alpha = self._parameter(alpha_init, rngs, alpha_metadata, self._alpha_shape())

    def _alpha_shape(self) -> tuple[int, ...]:
        return ()

    def _apply(self, function: Callable[..., Array], x: Array, *parameters: Array) -> Array:
        y = function(promote_to(x, self.dtype), *parameters, **self._scale_and_bias())
        return y if self.dtype is None else y.astype(self.dtype)


@dataclass(eq=False, repr=False, kw_only=True)
class DyT(Stateless):
    """A dynamic tanh layer: `dyt` with one learned `alpha`, and learned `scale` and `bias`.

    The layer has no statistics, so training and inference are the same.

    Args:
      num_features: The number of features of the input, along its last axis.
      dtype: The dtype of the result; by default the dtype of the input.
      param_dtype: The dtype of the parameters.
      use_bias: Whether a bias is learned and added.
      use_scale: Whether a scale is learned and applied.
      bias_init: The initializer of the bias.
      scale_init: The initializer of the scale.
      alpha_init: The initializer of alpha; the default is 0.5, as in the paper.
      rngs: Keys for the initializers.
      bias_metadata: Metadata of the bias's variable, such as its sharding.
      scale_metadata: Metadata of the scale's variable.
      alpha_metadata: Metadata of alpha's variable.

    Example:
      >>> import jax.numpy as jnp
      >>> print(DyT(2, rngs=nnx.Rngs(0))(jnp.array([[0.0, 1e3]])))
      [[0. 1.]]
    """

    def __call__(self, x: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        return self._apply(dyt, x, self.alpha[...])


@dataclass(eq=False, repr=False, kw_only=True)
class Derf(Stateless):
    """A Derf layer: `derf` with one learned `alpha` and `offset`, and learned `scale` and `bias`.

    Args:
      offset_init: The initializer of the offset; the default is 0, as in the paper.
      offset_metadata: Metadata of the offset's variable.

    All other arguments are the same as for `DyT`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(Derf(2, rngs=nnx.Rngs(0))(jnp.array([[0.0, 1e3]])))
      [[0. 1.]]
    """

    offset_init: InitVar[Initializer] = nnx.initializers.zeros
    offset_metadata: InitVar[Metadata] = None

    def __post_init__(
        self,
        bias_init: Initializer,
        scale_init: Initializer,
        rngs: nnx.Rngs,
        bias_metadata: Metadata,
        scale_metadata: Metadata,
        alpha_init: Initializer,
        alpha_metadata: Metadata,
        offset_init: Initializer,
        offset_metadata: Metadata,
    ):
        super().__post_init__(
            bias_init, scale_init, rngs, bias_metadata, scale_metadata, alpha_init, alpha_metadata
        )
        self.offset = self._parameter(offset_init, rngs, offset_metadata, ())

    def __call__(self, x: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        return self._apply(derf, x, self.alpha[...], self.offset[...])


@dataclass(eq=False, repr=False, kw_only=True)
class Unitization(Stateless):
    """A layer that only unitizes over features, with learned `alpha`, `scale` and `bias`.

    The layer computes scale ⊙ unitize(x, alpha) + bias for each vector x along the last axis. The
    layer has no batch norm and no statistics. At initialization with the default alpha, an output
    before the scale has the norm ‖x‖ / √(‖x‖² + 10⁻⁵), which is near 1 unless ‖x‖ is small. To make
    the outputs as large as the outputs of a layer norm, pass a `scale_init` that initializes the
    scale to √features.

    Args:
      alpha_init: The initializer of alpha. The parameter alpha has one number for each feature. The
        default is 1, which gives unit vectors, up to the `eps` of `unitize`.
      transform: `unitize` (Equation 10, the default) or `unitize_bounded` (Equation 9). The outputs
        of `unitize_bounded` are bounded for alpha in (0, 1].

    All other arguments are the same as for `DyT`.

    Example:
      >>> import jax.numpy as jnp
      >>> layer = Unitization(2, rngs=nnx.Rngs(0))
      >>> print(layer(jnp.array([[3.0, 4.0]])).round(3))
      [[0.6 0.8]]
    """

    alpha_init: InitVar[Initializer] = nnx.initializers.ones
    transform: Callable[[Array, Array], Array] = unitize

    def _alpha_shape(self) -> tuple[int, ...]:
        return (self.num_features,)

    def __call__(self, x: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        check_function(self.transform, "transform", "jaxnorm.unitize")
        return self._apply(partial(unitize_with, self.transform), x, self.alpha[...])
