"""Kinds of block for images with channels last."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.support.prunable import convolve
from tests.support.random_blocks import Kinds, last
from tests.support.random_blocks.channels import normalized, running, shuffled
from tests.support.random_blocks.weights import directions

relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh
NHWC = ("NHWC", "HWIO", "NHWC")


def windows(x, combine, start, stride=2):
    size = (1, stride, stride, 1)
    return lax.reduce_window(x, start, combine, size, size, "SAME")


def dilated(p, x):
    return relu(
        lax.conv_general_dilated(
            x, p["w"], (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=NHWC
        )
    )


def channels_first(p, x):
    x = jnp.moveaxis(x, -1, 1)
    numbers = ("NCHW", "OIHW", "NCHW")
    x = lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", dimension_numbers=numbers)
    return jnp.moveaxis(relu(x + p["b"][None, :, None, None]), 1, -1)


def depthwise(p, x):
    return relu(convolve(x, p["w"], groups=x.shape[-1]) @ p["u"])


def by_groups(p, x):
    return relu(convolve(x, p["w"], groups=2))


def shuffle_net(p, x):
    return relu(convolve(shuffled(relu(convolve(x, p["w"], groups=2))), p["u"], groups=2))


def group_norm(p, x):
    x = convolve(x, p["w"])
    parts = x.reshape(*x.shape[:-1], 2, -1)
    return relu(normalized(parts, (1, 2, 4)).reshape(x.shape) * last(p["s"], x))


def squeezed(p, x):
    h = relu(x.mean((1, 2)) @ p["w"] + p["b"][None])
    return x * sigmoid(h @ p["u"])[:, None, None]


def inception(p, x):
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
    parts = [x @ p["w"], convolve(relu(x @ p["a"]), p["u"]), pooled @ p["p"]]
    return relu(jnp.concatenate(parts, -1))


def space_to_depth(x, by=2):
    b, h, w, c = x.shape
    x = x.reshape(b, h // by, by, w // by, by, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(b, h // by, w // by, by * by * c)


def depth_to_space(x, by=2):
    """The inverse of `space_to_depth`. The channels of one pixel are consecutive."""
    b, h, w, c = x.shape
    x = x.reshape(b, h, w, by, by, c // by**2).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(b, h * by, w * by, c // by**2)


def pixel_shuffle(x, by=2):
    """`depth_to_space` in PyTorch's order, in which each output channel has consecutive inputs."""
    b, h, w, c = x.shape
    x = x.reshape(b, h, w, c // by**2, by, by).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(b, h * by, w * by, c // by**2)


def modulated(p, x):
    """StyleGAN2's modulated convolution, as one convolution with a group for each image."""
    b, h, w, c = x.shape
    style = 1 + x.mean((1, 2)) @ p["a"]
    kernel = p["w"][None] * style[:, None, None, :, None]
    kernel = kernel * lax.rsqrt(jnp.square(kernel).sum((1, 2, 3), keepdims=True) + 1e-3)
    n = kernel.shape[-1]
    kernel = jnp.moveaxis(kernel, 0, 3).reshape(*kernel.shape[1:4], b * n)
    x = jnp.moveaxis(x, 0, 2).reshape(1, h, w, b * c)
    y = convolve(x, kernel, groups=b).reshape(h, w, b, n)
    return tanh(jnp.moveaxis(y, 2, 0))


def modulated_outside(p, x):
    """StyleGAN2's modulated convolution, as a plain convolution with scaled inputs and outputs."""
    style = 1 + x.mean((1, 2)) @ p["a"]
    power = jnp.einsum("hwcn,bc->bn", jnp.square(p["w"]), jnp.square(style))
    y = convolve(x * style[:, None, None], p["w"])
    return tanh(y * lax.rsqrt(power + 1e-3)[:, None, None])


def conditional(p, x):
    """CondConv: each image has a mixture of kernels, by `vmap`, Yang et al. (2019)."""
    kernels = jnp.einsum("be,ehwio->bhwio", sigmoid(x.mean((1, 2)) @ p["r"]), p["w"])
    return tanh(jax.vmap(lambda x, kernel: convolve(x[None], kernel)[0])(x, kernels))


def standardized(p, x):
    w = p["w"] - p["w"].mean((0, 1, 2), keepdims=True)
    return relu(convolve(x, directions(w, (0, 1, 2), 1e-3)))


def coordinates(p, x):
    ramp = jnp.linspace(-1.0, 1.0, x.shape[1])[None, :, None, None]
    plane = jnp.broadcast_to(ramp, (*x.shape[:-1], 1))
    return relu(convolve(jnp.concatenate([x, plane], -1), p["w"]) + last(p["b"], x))


def u_net(p, x):
    inner = relu(convolve(windows(x, lax.max, -jnp.inf), p["w"]))
    up = jnp.repeat(jnp.repeat(inner, 2, 1), 2, 2)
    return jnp.concatenate([x, up[:, : x.shape[1], : x.shape[2]]], -1)


def resized(p, x):
    x = relu(convolve(x, p["w"]))
    return jax.image.resize(x, (len(x), x.shape[1] + 2, *x.shape[2:]), "linear")


def spatial_attention(p, x):
    seen = jnp.stack([x.mean(-1), x.max(-1)], -1)
    return x * sigmoid(convolve(seen, p["w"]))


def pre_activation(p, x):
    return x + convolve(relu(running(p, x)), p["w"]) @ p["u"]


def rows(p, x):
    return jax.vmap(
        lambda row: lax.conv_general_dilated(
            row, p["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
    )(x)


IMAGES: Kinds = {
    "convolution": ("w:kkcn b:n", lambda p, x: relu(convolve(x, p["w"]) + last(p["b"], x))),
    "convolution and norm": (
        "w:kkcn m:n s:n v:n b:n",
        lambda p, x: relu(running(p, convolve(x, p["w"]))),
    ),
    "strided": ("w:kkcn", lambda p, x: relu(convolve(x, p["w"], 2))),
    "dilated": ("w:kkcn", dilated),
    "transposed convolution": (
        "w:kkcn",
        lambda p, x: relu(lax.conv_transpose(x, p["w"], (2, 2), "SAME")),
    ),
    "transposed convolution, other kernel": (
        "w:kknc",
        lambda p, x: relu(lax.conv_transpose(x, p["w"], (2, 2), "SAME", transpose_kernel=True)),
    ),
    "channels first": ("w:nckk b:n", channels_first),
    "convolution of rows": ("w:kcn", rows),
    "depthwise": ("w:kk1c u:cn", depthwise),
    "depthwise, twice as many": ("w:kk1C u:Cn", depthwise),
    "by groups": ("w:kkiN", by_groups),
    "shuffle net": ("w:kkiN u:kknM", shuffle_net),
    "instance norm": ("w:kkcn", lambda p, x: relu(normalized(convolve(x, p["w"]), (1, 2)))),
    "group norm": ("w:kkcN s:N", group_norm),
    "largest in a window": ("", lambda p, x: windows(x, lax.max, -jnp.inf)),
    "mean of a window": ("", lambda p, x: windows(x, lax.add, 0.0) / 4),
    "resized": ("w:kkcn", resized),
    "squeeze and excitation": ("w:cm b:m u:mc", squeezed),
    "spatial attention": ("w:kkr1", spatial_attention),
    "residual of convolutions": (
        "w:kkcm u:kkmc",
        lambda p, x: relu(x + convolve(relu(convolve(x, p["w"])), p["u"])),
    ),
    "projected residual": (
        "w:kkcm u:kkmn p:cn",
        lambda p, x: relu(
            (x @ p["p"])[:, ::2, ::2] + convolve(relu(convolve(x, p["w"], 2)), p["u"])
        ),
    ),
    "shortcut beside zeros": (
        "w:kkcZ",
        lambda p, x: relu(convolve(x, p["w"]) + jnp.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)))),
    ),
    "pre-activation": ("m:c s:c v:c b:c w:kkcm u:mc", pre_activation),
    "bottleneck": (
        "w:cM u:kkmM z:Mc",
        lambda p, x: relu(x + relu(convolve(relu(x @ p["w"]), p["u"], groups=2)) @ p["z"]),
    ),
    "dense block": ("w:kkcn", lambda p, x: jnp.concatenate([x, relu(convolve(x, p["w"]))], -1)),
    "u-net": ("w:kkcn", u_net),
    "inception": ("w:cn a:cm u:kkmn p:cm", inception),
    "space to depth": (
        "w:kkFn z:cm u:mn",
        lambda p, x: relu(convolve(space_to_depth(even(x) @ p["z"]), p["w"])),
    ),
    "space to depth and back": ("", lambda p, x: depth_to_space(tanh(space_to_depth(even(x))))),
    "pixel shuffle": ("w:kkcF", lambda p, x: pixel_shuffle(tanh(convolve(x, p["w"])))),
    "modulated kernel": ("w:kkcn a:cc", modulated),
    "modulated kernel, outside": ("w:kkcn a:cc", modulated_outside),
    "conditional kernel": ("w:lkkcn r:cl", conditional),
    "standardized kernel": ("w:kkcn", standardized),
    "equalized kernel": (
        "w:kkcn",
        lambda p, x: relu(convolve(x, p["w"]) * (9 * x.shape[-1]) ** -0.5),
    ),
    "coordinates": ("w:kkzn b:n", coordinates),
    "low rank kernel": (
        "w:kkcr u:rn",
        lambda p, x: relu(convolve(x, jnp.einsum("hwcr,rn->hwcn", p["w"], p["u"]))),
    ),
    "padded kernel": (
        "w:kkcn",
        lambda p, x: relu(convolve(x, jnp.pad(p["w"], ((1, 1), (1, 1), (0, 0), (0, 0))))),
    ),
    "flipped kernel": ("w:kkcn", lambda p, x: relu(convolve(x, p["w"][::-1, ::-1]))),
}


def even(x):
    """The image without the last row or column if their number is odd."""
    return x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
