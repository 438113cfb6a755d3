"""Algorithm 3 of Huang and Yu as printed, which trains a critic with clipped weights."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.nn.initializers import he_normal
from jaxtyping import Array, Float, Key

from jaxnorm.internal import check_key, check_positive, promote_to_float32
from jaxnorm.shift._pairs import train, train_and_test_pairs

Params = list[tuple[Array, Array]]  # the kernel and the bias of each layer

CHANNELS, STRIDES, LEARNING_RATE = (64, 64, 128, 128), (2, 1, 2, 1), 5e-5


def emd_critic(
    key: Key[Array, ""],
    x_train: Float[Array, "n *features"],
    y_train: Float[Array, "n *features"],
    x_test: Float[Array, "m *features"],
    y_test: Float[Array, "m *features"],
    *,
    steps: int = 1500,
    batch_size: int = 128,
    clip: float = 0.01,
) -> Float[Array, ""]:
    """The mean value of a clipped critic on x minus its mean value on y, by Algorithm 3.

    The critic is the network of appendix B.1. The critic has 3×3 convolutions of 64, 64, 128 and
    128 channels with strides 2, 1, 2 and 1. ReLU follows each convolution. A dense layer and a
    sigmoid follow the convolutions. Weights have He initialization. Every step changes the
    parameters along the gradient on a minibatch, and clips the parameters to ±`clip`. The paper
    names no optimizer. `emd_critic` uses RMSProp, which is usual for Wasserstein GANs.

    The result is not an estimate of the distance. The sigmoid keeps the result in (−1, 1) for any
    distance. The clipped weights limit the critic's Lipschitz constant to an unknown largest value.
    The trained critic does not attain this value. For the 16 pairs of distributions that
    `scripts/shift_estimators.py` measures, the result is far too small: 10⁻⁷ to 2 · 10⁻⁶ times the
    distance of the pair. `emd_lower_bound` has the same arguments except `clip`, and its result is
    a lower bound of the distance.

    Args:
      key: The random key for initialization and minibatches.
      x_train: (n, h, w, c) images. A sample that does not have the shape of an image is used as an
        image of one pixel. Row i of `x_train` and row i of `y_train` come from the same input.
      y_train: Outputs for the same inputs as `x_train`, before or after a change of the weights.
      x_test: Samples that are not used in training.
      y_test: Outputs for the same inputs as `x_test`, at the same time of training as `y_train`.
      steps: The number T of training steps.
      batch_size: The number of samples of x, and of y, in one step.
      clip: The largest absolute value of a parameter.

    Raises:
      ValueError: `emd_1d` would raise an error for the samples, or x and y have different numbers
        of samples. `steps`, `batch_size` or `clip` is not positive.
    """
    check_key(key)
    clip = check_positive(clip, "clip")
    train_pairs, test_pairs = train_and_test_pairs(x_train, y_train, x_test, y_test)
    init_key, training_key = jax.random.split(key)
    params = train(
        _convolutional,
        _init_convolutional(init_key, x_train.shape, promote_to_float32(x_train).dtype),
        training_key,
        train_pairs,
        project=partial(jax.tree.map, lambda w: jnp.clip(w, -clip, clip)),
        optimizer=optax.rmsprop(LEARNING_RATE),
        steps=steps,
        batch_size=batch_size,
    )
    return test_pairs.difference(partial(_convolutional, params), batch_size)


def _init_convolutional(key: Key[Array, ""], shape: tuple[int, ...], dtype: Any) -> Params:
    """Kernels (9 c_in, c_out), biases and the dense layer for samples of the given shape."""
    height, width, channels = _as_images(shape)[1:]
    fans = []
    for features, stride in zip(CHANNELS, STRIDES, strict=True):
        fans.append((9 * channels, features))
        height, width, channels = -(-height // stride), -(-width // stride), features
    fans.append((height * width * channels, 1))
    keys = jax.random.split(key, len(fans))
    return [
        (he_normal()(k, fan, dtype), jnp.zeros(fan[1], dtype))
        for k, fan in zip(keys, fans, strict=True)
    ]


def _convolutional(params: Params, z: Float[Array, "n *features"]) -> Float[Array, " n"]:
    h = promote_to_float32(z).reshape(_as_images(z.shape))
    for (kernel, bias), stride in zip(params[:-1], STRIDES, strict=True):
        h = jax.nn.relu(_convolve(h, kernel, stride) + bias[None, None, None])
    kernel, bias = params[-1]
    return jax.nn.sigmoid(jnp.matmul(h.reshape(len(h), -1), kernel) + bias[None])[:, 0]


def _as_images(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    if len(shape) == 4:
        return shape
    return shape[0], 1, 1, math.prod(shape[1:])


def _convolve(
    x: Float[Array, "n h w c"], kernel: Float[Array, "9*c d"], stride: int
) -> Float[Array, "n i j d"]:
    # On XLA's CPU back end, a convolution inside a loop is slow. If samples are vectors, 50 steps
    # take 2.3 s with convolutions, and 0.6 s with matrix products of patches.
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=lambda x, kernel: jnp.matmul(_patches(x, stride), kernel),
        default=lambda x, kernel: jax.lax.conv_general_dilated(
            x,
            kernel.reshape(3, 3, x.shape[-1], -1),
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
    )


def _patches(x: Float[Array, "n h w c"], stride: int) -> Float[Array, "n i j 9*c"]:
    """The 3×3 neighborhoods of pixels with zero padding.

    With the neighborhoods as rows, a convolution is a matrix product.
    """
    height, width = x.shape[1:3]
    pads = jax.lax.padtype_to_pads((height, width), (3, 3), (stride, stride), "SAME")
    padded = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    return jnp.concatenate(
        [
            padded[:, i : i + height : stride, j : j + width : stride]
            for i in range(3)
            for j in range(3)
        ],
        -1,
    )
