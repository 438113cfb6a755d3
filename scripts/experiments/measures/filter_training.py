"""Train a small convolutional network with a given `Setting`; all seeds are trained by vmap.

The network has a convolution of 8×8 images, a mean pooling, and further convolutions of equal
width. Each convolution has batch norm and ReLU. After the convolutions, the network has a mean over
pixels and a dense layer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.nn import initializers
from jaxtyping import Array, Float, Int, Key

import jaxnorm
from experiments.data.datasets import Images
from experiments.training.scan import scan_steps

RATE, CLASSES, PATCH = 0.05, 10, 3
EPSILON = 1e-5  # the eps of batch norm

Params = dict[str, Any]
Batch = tuple[Float[Array, "n h w 1"], Float[Array, "n classes"]]


def drops(*ends: float) -> Callable[[int], optax.Schedule]:
    """A function that makes a schedule: the rate is divided by ten at each given fraction."""
    return lambda steps: optax.piecewise_constant_schedule(
        RATE, {round(end * steps): 0.1 for end in ends}
    )


def momentum(schedule: Callable[[int], optax.Schedule]) -> Callable[..., Any]:
    return lambda steps: optax.sgd(schedule(steps), momentum=0.9)


def l2(strength: float) -> Callable[[list[Array]], Any]:
    """A penalty function that returns half of `strength` times the sum of all squared weights."""
    return lambda kernels: strength / 2 * sum(jnp.square(w).sum() for w in kernels)


def relu(key: Key[Array, ""], h: Array) -> Array:
    return jax.nn.relu(h)


def unchanged(key: Key[Array, ""], batch: Batch) -> Batch:
    return batch


class Averaged(NamedTuple):
    """The state of an optimizer, and the mean of the parameters over the later training steps."""

    inner: Any
    mean: Any
    step: Int[Array, ""]


class Setting(NamedTuple):
    """One training setting, which is the base setting after one part is changed.

    Attributes:
      group: The part that differs from the base setting, such as "optimizer"; "base" for the base
        setting itself.
      name: Name of the setting.
      initializer: JAX initializer of convolutions.
      optimizer: A function that takes the number of steps and returns an optimizer.
      penalty: A function that takes the kernels and returns a term that is added to the loss.
      activation: The activation in training, a function that takes a key and the layer's values.
      augment: A function of a key and a batch that returns an augmented batch.
      is_normalized: Whether the network has batch norm.
      width: Number of filters of each convolution.
      depth: Number of convolutions.
      steps: Number of training steps.
      batch: Number of images in a step.
    """

    group: str = "base"
    name: str = "base"
    initializer: Any = initializers.variance_scaling(2.0, "fan_in", "normal")
    optimizer: Callable[[int], optax.GradientTransformation] = momentum(drops(0.5, 0.75))
    penalty: Callable[[list[Array]], Any] = l2(5e-4)
    activation: Callable[[Key[Array, ""], Array], Array] = relu
    augment: Callable[[Key[Array, ""], Batch], Batch] = unchanged
    is_normalized: bool = True
    width: int = 32
    depth: int = 3
    steps: int = 300
    batch: int = 32


# the four numbers of the base setting that are stored with the results
BASE = {name: getattr(Setting(), name) for name in ("depth", "width", "steps", "batch")}


def init(key: Key[Array, ""], setting: Setting) -> Params:
    """Draw the parameters of the network before training."""
    *keys, head = jax.random.split(key, setting.depth + 1)
    inputs = [1] + [setting.width] * (setting.depth - 1)
    return {
        "kernels": [
            setting.initializer(k, (PATCH, PATCH, n, setting.width), jnp.float32)
            for k, n in zip(keys, inputs, strict=True)
        ],
        "scales": [jnp.ones(setting.width) for _ in inputs],
        "biases": [jnp.zeros(setting.width) for _ in inputs],
        "head": initializers.he_normal()(head, (setting.width, CLASSES), jnp.float32),
        "head_bias": jnp.zeros(CLASSES),
    }


def convolve(x: Float[Array, "n h w c"], kernel: Float[Array, "3 3 c d"]) -> Array:
    """Convolve images with a kernel, computed as a matrix product of patches and the kernel.

    Under `vmap` over kernels, the product is still a matrix product.
    """
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = [padded[:, i : i + height, j : j + width] for i in range(PATCH) for j in range(PATCH)]
    return jnp.concatenate(shifts, -1) @ kernel.reshape(-1, kernel.shape[-1])


def normalized(h: Array, scale: Float[Array, " c"], bias: Float[Array, " c"]) -> Array:
    """Apply batch norm with the statistics of the batch."""
    return jaxnorm.batch_norm(h, scale, bias, eps=EPSILON)[0]


def logits(
    params: Params, x: Array, setting: Setting, activation: Callable[[int, Array], Array]
) -> Float[Array, "n classes"]:
    """The logits of a batch; batch norm uses the statistics of this batch.

    The function `activation` takes the number of the layer and the layer's values.
    """
    layers = zip(params["kernels"], params["scales"], params["biases"], strict=True)
    for i, (kernel, scale, bias) in enumerate(layers):
        h = convolve(x, kernel)
        h = normalized(h, scale, bias) if setting.is_normalized else h + bias[None, None, None]
        x = activation(i, h)
        if i == 0:
            n, height, width, c = x.shape
            x = x.reshape(n, height // 2, 2, width // 2, 2, c).mean((2, 4))
    return x.mean((1, 2)) @ params["head"] + params["head_bias"][None]


def train(
    key: Key[Array, ""], setting: Setting, x: Array, y: Int[Array, " n"]
) -> tuple[list[Array], list[Array], Params]:
    """Train a network; return kernels before and after training, and all trained parameters."""
    start, steps = jax.random.split(key)
    params = init(start, setting)
    optimizer = setting.optimizer(setting.steps)

    def loss(params: Params, key: Key[Array, ""]) -> Float[Array, ""]:
        draw, change, noise = jax.random.split(key, 3)
        index = jax.random.randint(draw, (setting.batch,), 0, len(x))
        images, labels = setting.augment(change, (x[index], jax.nn.one_hot(y[index], CLASSES)))

        def activation(layer: int, h: Array) -> Array:
            return setting.activation(jax.random.fold_in(noise, layer), h)

        scores = logits(params, images, setting, activation)
        return optax.softmax_cross_entropy(scores, labels).mean() + setting.penalty(
            params["kernels"]
        )

    keys = jax.random.split(steps, setting.steps)
    trained, state = scan_steps(loss, optimizer, params, optimizer.init(params), keys)
    trained = state.mean if isinstance(state, Averaged) else trained
    return params["kernels"], trained["kernels"], trained


def run(setting: Setting, images: Images, seeds: int) -> tuple[Any, Any, Float[Array, " seeds"]]:
    """Train all seeds; return kernels before and after training, and test accuracies."""
    train_set = jnp.asarray(images.x_train), jnp.asarray(images.y_train)
    x, y = jnp.asarray(images.x_test), jnp.asarray(images.y_test)

    def one(key: Key[Array, ""]) -> tuple[Any, Any, Float[Array, ""]]:
        before, after, params = train(key, setting, *train_set)
        scores = logits(params, x, setting, lambda layer, h: jax.nn.relu(h))
        return before, after, (scores.argmax(-1) == y).mean()

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), seeds))
