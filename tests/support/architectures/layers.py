"""Networks with one layer of some kind between two other layers."""

import jax.numpy as jnp
from flax import linen as nn

from tests.support.architectures._common import Make
from tests.support.architectures.convolutions import conv, conv_norm, shuffled
from tests.support.architectures.generative import codes
from tests.support.architectures.transformers import encoder_block, images, model


def classified(x):
    return nn.Dense(5)(x.mean(tuple(range(1, x.ndim - 1))))


def between(layer) -> Make:
    """A network of a convolution, `layer` and a head."""
    return model(lambda module, x: classified(layer(module, nn.Conv(8, (3, 3))(x))), images)


def after_dense(layer) -> Make:
    return model(lambda module, x: nn.Dense(5)(layer(module, nn.Dense(8)(x))), codes)


def pixel_shuffle(module, x):
    b, h, w, c = x.shape
    x = nn.relu(x).reshape(b, h, w, c // 4, 2, 2).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(b, 2 * h, 2 * w, c // 4)


def gated(module, x):
    a, b = jnp.split(nn.Dense(16)(nn.relu(x)), 2, -1)
    return a * nn.sigmoid(b)


def scalar_gate(module, x):
    return x + module.param("gate", nn.initializers.ones, ()) * nn.relu(nn.Dense(8)(x))


def tokens(module, x):
    return encoder_block(x.reshape(len(x), -1, x.shape[-1]))


def shuffle(module, x):
    return conv(shuffled(conv_norm(x, 8, groups=2)), 8, groups=2)


LAYERS: dict[str, Make] = {
    "convolution, batch norm": between(lambda module, x: conv_norm(x, 8)),
    "depthwise convolution": between(lambda module, x: conv_norm(nn.relu(x), 8, groups=8)),
    "grouped convolution": between(lambda module, x: conv_norm(nn.relu(x), 8, groups=2)),
    "transposed convolution": between(lambda module, x: nn.ConvTranspose(8, (3, 3))(nn.relu(x))),
    "instance norm": between(lambda module, x: nn.relu(nn.InstanceNorm()(x))),
    "group norm": between(lambda module, x: nn.relu(nn.GroupNorm(2)(x))),
    "layer norm": after_dense(lambda module, x: nn.relu(nn.LayerNorm()(x))),
    "PReLU": between(lambda module, x: nn.PReLU()(x)),
    "scalar gate": after_dense(scalar_gate),
    "gated linear unit": after_dense(gated),
    "transformer layer": between(tokens),
    "pixel shuffle": between(pixel_shuffle),
    "channel shuffle": between(shuffle),
}
