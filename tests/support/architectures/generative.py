"""Generative networks, and other networks whose outputs are images."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn, nnx
from jax import lax

from tests.support.architectures._common import Architecture, Make, normal, of_linen, of_nnx
from tests.support.architectures.convolutions import conv_norm, max_pool
from tests.support.architectures.transformers import images, model


def u_net(module, x):
    """Ronneberger et al. (2015)."""
    a = conv_norm(x, 8)
    b = conv_norm(max_pool(a), 12)
    c = conv_norm(max_pool(b), 16)
    b = conv_norm(jnp.concatenate([nn.ConvTranspose(8, (2, 2), (2, 2))(c), b], -1), 12)
    a = conv_norm(jnp.concatenate([nn.ConvTranspose(8, (2, 2), (2, 2))(b), a], -1), 8)
    return nn.Conv(2, (1, 1))(a)


class NnxUNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.one = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.down = nnx.Conv(8, 12, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(12, rngs=rngs)
        self.up = nnx.ConvTranspose(12, 8, (2, 2), strides=2, rngs=rngs)
        self.last = nnx.Conv(16, 2, (3, 3), rngs=rngs)

    def __call__(self, x):
        a = nnx.relu(self.one(x))
        b = nnx.relu(self.norm(self.down(a)))
        return self.last(jnp.concatenate([a, self.up(b)], -1))


def feature_pyramid(module, x):
    """A feature pyramid: each map is added to the next larger map, Lin et al. (2017)."""
    maps = [conv_norm(x, 8, stride=2)]
    maps.append(conv_norm(maps[-1], 12, stride=2))
    sides = [nn.Conv(8, (1, 1))(y) for y in maps]
    top = jnp.repeat(jnp.repeat(sides[1], 2, 1), 2, 2)
    return [nn.Conv(3, (3, 3))(y) for y in (sides[0] + top, sides[1])]


def super_resolution(module, x):
    """Super-resolution by rearranging channels into pixels, Shi et al. (2016)."""
    x = nn.tanh(nn.Conv(8, (5, 5))(x))
    x = nn.tanh(nn.Conv(8, (3, 3))(x))
    x = nn.tanh(nn.Conv(16, (3, 3))(x))
    b, h, w, _ = x.shape
    x = x.reshape(b, h, w, 2, 2, 4).transpose(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, 4)
    return nn.Conv(3, (3, 3))(x)


def autoencoder(module, x, noise):
    """The variational autoencoder of Kingma and Welling (2014)."""
    h = nn.relu(nn.Dense(16)(x))
    mean, log_var = nn.Dense(4)(h), nn.Dense(4)(h)
    z = mean + jnp.exp(0.5 * log_var) * noise
    return nn.Dense(6)(nn.relu(nn.Dense(16)(z))), mean, log_var


def quantized(module, x):
    """The vector-quantized autoencoder of van den Oord et al. (2017)."""
    x = nn.Conv(4, (1, 1))(nn.relu(nn.Conv(8, (4, 4), (2, 2))(x)))
    book = module.param("book", nn.initializers.normal(), (5, 4))
    apart = jnp.square(x[..., None, :] - book[None, None, None]).sum(-1)
    x = x + lax.stop_gradient(book[apart.argmin(-1)] - x)
    return nn.ConvTranspose(3, (4, 4), (2, 2))(nn.relu(nn.Conv(8, (3, 3))(x)))


def dcgan_generator(module, z):
    """Radford et al. (2016)."""
    x = nn.relu(nn.Dense(2 * 2 * 16)(z)).reshape(len(z), 2, 2, 16)
    for width in (12, 8):
        x = nn.ConvTranspose(width, (4, 4), (2, 2))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=True)(x))
    return nn.tanh(nn.ConvTranspose(3, (4, 4), (2, 2))(x))


def dcgan_discriminator(module, x):
    for width in (8, 12):
        x = nn.leaky_relu(nn.Conv(width, (4, 4), (2, 2))(x), 0.2)
    return nn.Dense(1)(x.reshape(len(x), -1))


def convolve(x, w):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)


def equalized(dtype: Any) -> Architecture:
    """A discriminator with gains that are computed from kernel shapes, Karras et al. (2018)."""
    shapes = {"a": (1, 1, 3, 8), "b": (3, 3, 8, 12), "c": (3, 3, 12, 12), "d": (12, 8), "e": (8, 1)}
    params = {name: normal(dtype, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}

    def apply(p, x):
        for name in "abc":
            gain = (2 / math.prod(p[name].shape[:-1])) ** 0.5
            x = jax.nn.leaky_relu(convolve(x, p[name] * gain), 0.2)
        x = x.mean((1, 2))
        for name in "de":
            x = x @ p[name] * p[name].shape[0] ** -0.5
        return x

    return Architecture(apply, params, images(dtype))


def progressive_generator(dtype: Any) -> Architecture:
    """A generator that normalizes the vector of each pixel, Karras et al. (2018)."""
    shapes = {"a": (3, 3, 4, 8), "b": (3, 3, 8, 8), "c": (8, 3)}
    params = {name: normal(dtype, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}

    def apply(p, x):
        for name in "ab":
            gain = (2 / math.prod(p[name].shape[:-1])) ** 0.5
            x = jax.nn.leaky_relu(convolve(x, p[name] * gain), 0.2)
            x = x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-8)
        return x @ p["c"]

    return Architecture(apply, params, (normal(dtype, 2, 4, 4, 4),))


def style(dtype: Any) -> Architecture:
    """StyleGAN2's synthesis network, with modulated kernels, Karras et al. (2020)."""
    shapes = {"start": (4, 4, 8), "map": (6, 8), "w0": (3, 3, 8, 8), "w1": (3, 3, 8, 12)}
    shapes |= {"a0": (8, 8), "a1": (8, 8), "rgb": (12, 3), "n0": (), "b0": (8,), "b1": (12,)}
    params = {name: normal(dtype, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}

    def modulated(x, w, scale):
        w = w[None] * scale[:, None, None, :, None]
        w = w * lax.rsqrt(jnp.square(w).sum((1, 2, 3), keepdims=True) + 1e-8)
        b, *sizes, n = w.shape
        x = jnp.moveaxis(x, 0, 2).reshape(1, *x.shape[1:3], -1)
        w = jnp.moveaxis(w, 0, 3).reshape(*sizes, b * n)
        numbers = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=b
        )
        return jnp.moveaxis(y.reshape(*y.shape[1:3], b, n), 2, 0)

    def apply(p, z, noise):
        z = jax.nn.leaky_relu(z @ p["map"], 0.2)
        x = jnp.broadcast_to(p["start"], (len(z), *p["start"].shape))
        for i in "01":
            x = modulated(x, p[f"w{i}"], 1 + z @ p[f"a{i}"])
            x = x + p["n0"] * noise + p[f"b{i}"][None, None, None]
            x = jax.nn.leaky_relu(x, 0.2)
        return x @ p["rgb"]

    return Architecture(apply, params, (normal(dtype, 2, 6), normal(dtype, 2, 4, 4, 1, seed=2)))


class Diffusion(nn.Module):
    """A residual block with group norms and an embedding of time, Ho et al. (2020)."""

    @nn.compact
    def __call__(self, x, time):
        angles = time[:, None] * jnp.asarray(10.0 ** -np.arange(4), time.dtype)[None]
        t = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        t = nn.Dense(12)(nn.swish(nn.Dense(16)(t)))
        x = nn.Conv(8, (3, 3))(x)
        h = nn.Conv(12, (3, 3))(nn.swish(nn.GroupNorm(2)(x)))
        h = nn.swish(nn.GroupNorm(2)(h + t[:, None, None]))
        x = nn.Conv(12, (1, 1))(x) + nn.Conv(12, (3, 3))(h)
        return nn.Conv(3, (3, 3))(nn.swish(x))


def diffusion(dtype: Any) -> Architecture:
    return of_linen(Diffusion(), dtype, *images(dtype), normal(dtype, 2, seed=3))


def radiance_field(module, x):
    """NeRF: the input is concatenated to the middle layer, Mildenhall et al. (2020)."""
    h = x
    for layer in range(4):
        h = nn.relu(nn.Dense(16)(h))
        h = jnp.concatenate([x, h], -1) if layer == 1 else h
    return nn.Dense(4)(h)


def codes(dtype: Any) -> tuple[Any, ...]:
    return (normal(dtype, 2, 6),)


def codes_and_noise(dtype: Any) -> tuple[Any, ...]:
    return normal(dtype, 2, 6), normal(dtype, 2, 4, seed=2)


GENERATIVE: dict[str, Make] = {
    "U-Net": model(u_net, images),
    "U-Net (flax.nnx)": lambda dtype: of_nnx(NnxUNet, dtype, *images(dtype)),
    "Feature pyramid": model(feature_pyramid, images),
    "Super-resolution, pixel shuffle": model(super_resolution, images),
    "Variational autoencoder": model(autoencoder, codes_and_noise),
    "Vector-quantized autoencoder": model(quantized, images),
    "DCGAN, generator": model(dcgan_generator, codes),
    "DCGAN, discriminator": model(dcgan_discriminator, images),
    "Progressive GAN, generator": progressive_generator,
    "Progressive GAN, discriminator, equalized": equalized,
    "StyleGAN2, synthesis": style,
    "Diffusion block": diffusion,
    "Radiance field": model(radiance_field, codes),
}
