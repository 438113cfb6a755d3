"""Kinds of block that act on the last axis of images, tokens or vectors."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from tests.support.random_blocks import Kinds, last

relu, sigmoid, tanh = jax.nn.relu, jax.nn.sigmoid, jnp.tanh


def normalized(x, axes, eps=1e-3):
    x = x - x.mean(axes, keepdims=True)
    return x * lax.rsqrt(jnp.square(x).mean(axes, keepdims=True) + eps)


def halves(x):
    c = x.shape[-1] // 2
    return x[..., :c], x[..., c:]


def gated(parts):
    a, b = parts
    return a * sigmoid(b)


def gated_sum(parts):
    a, b, c = parts
    return sigmoid(a) * tanh(b) + relu(c)


def outer(p, x):
    return jnp.einsum("...i,...j->...ij", x, x @ p["w"]).reshape(*x.shape[:-1], -1)


def joined(*parts):
    return jnp.concatenate(parts, -1)


def running(p, x):
    """Batch norm with running statistics."""
    mean, scale, bias = (last(p[name], x) for name in ("m", "s", "b"))
    return (x - mean) * (scale * lax.rsqrt(last(p["v"], x) + 1e-3)) + bias


def experts(p, x):
    shares = jax.nn.softmax(x @ p["g"], -1)
    return jnp.einsum("...l,...ln->...n", shares, jnp.einsum("...c,lcn->...ln", x, p["w"]))


def shuffled(x):
    return jnp.swapaxes(x.reshape(*x.shape[:-1], 2, -1), -1, -2).reshape(x.shape)


def nearest(p, x):
    """Vector quantization with a straight-through gradient."""
    score = x @ p["w"].T - jnp.expand_dims(jnp.square(p["w"]).sum(-1), range(x.ndim - 1)) / 2
    return x + lax.stop_gradient(p["w"][jnp.argmax(score, -1)] - x)


@jax.custom_vjp
def straight(x):
    return jnp.round(4 * x) / 4


straight.defvjp(lambda x: (straight(x), None), lambda _, g: (g,))


def layers(p, x):
    return lax.scan(lambda h, q: (h + tanh(h @ q["w"]) @ q["u"], None), x, p)[0]


def until(p, x):
    """A loop whose number of steps depends on the values of the input."""

    def more(state):
        return (state[0] < 3) & (jnp.abs(state[1]).max() > 1e-6)

    def step(state):
        return state[0] + 1, tanh(state[1] @ p["w"])

    return lax.while_loop(more, step, (0, x))[1]


DENSE: Kinds = {
    "dense": ("w:cn b:n", lambda p, x: relu(x @ p["w"] + last(p["b"], x))),
    "dense, sigmoid": ("w:cn b:n", lambda p, x: sigmoid(x @ p["w"] + last(p["b"], x))),
    "dense, exponential": ("w:cn", lambda p, x: jnp.exp(tanh(x @ p["w"]))),
    "dense, cosine": ("w:cn", lambda p, x: jnp.cos(x @ p["w"])),
    "dense, reciprocal": ("w:cn", lambda p, x: 1 / (1 + jnp.square(x @ p["w"]))),
    "dense and norm": ("w:cn m:n s:n v:n b:n", lambda p, x: relu(running(p, x @ p["w"]))),
    "two layers": ("w:cm b:m u:mn", lambda p, x: relu(x @ p["w"] + last(p["b"], x)) @ p["u"]),
    "shared": ("w:cn u:nn", lambda p, x: tanh(tanh(x @ p["w"] @ p["u"]) @ p["u"])),
    "residual": ("w:cm u:mc", lambda p, x: x + tanh(x @ p["w"]) @ p["u"]),
    "rezero": ("w:cm u:mc g:s", lambda p, x: x + p["g"] * (tanh(x @ p["w"]) @ p["u"])),
    "largest of two": ("w:cn u:cn", lambda p, x: jnp.maximum(x @ p["w"], x @ p["u"])),
    "bilinear": ("w:cn u:cn", lambda p, x: (x @ p["w"]) * (x @ p["u"])),
    "chosen": ("w:cn u:cn z:cn", lambda p, x: jnp.where(x @ p["w"] > 0, x @ p["u"], x @ p["z"])),
    "dense layer": ("w:cn", lambda p, x: joined(x, tanh(x @ p["w"]))),
    "experts": ("w:lcn g:cl", experts),
    "vmap": ("w:lcn", lambda p, x: jax.vmap(lambda w: tanh(x @ w))(p["w"]).sum(0)),
    "jit": ("w:cn", lambda p, x: jax.jit(lambda w, x: tanh(x @ w))(p["w"], x)),
    "checkpoint": ("w:cm u:mn", jax.checkpoint(lambda p, x: tanh(x @ p["w"]) @ p["u"])),
    "custom derivative": ("w:cn", lambda p, x: straight(x @ p["w"])),
    "scan over layers": ("w:lcm u:lmc", layers),
    "scan with checkpoint": ("w:lcm u:lmc", jax.checkpoint(layers)),
    "fori": ("w:cc", lambda p, x: lax.fori_loop(0, 2, lambda _, h: tanh(h @ p["w"]), x)),
    "while": ("w:cc", until),
    "cond": (
        "w:cn u:cn",
        lambda p, x: lax.cond(x.mean() > 0, lambda: x @ p["w"], lambda: tanh(x @ p["u"])),
    ),
    "grouped": (
        "w:lin",
        lambda p, x: jnp.einsum(
            "...li,lin->...ln", x.reshape(*x.shape[:-1], 2, -1), p["w"]
        ).reshape(*x.shape[:-1], -1),
    ),
    "swiglu": ("w:cm u:cm o:mn", lambda p, x: (jax.nn.silu(x @ p["w"]) * (x @ p["u"])) @ p["o"]),
}

LIMITS = {
    "maxima with 1": lambda h: jnp.maximum(h, 1.0),
    "maxima with -1": lambda h: jnp.maximum(h, -1.0),
    "minima with 1": lambda h: jnp.minimum(h, 1.0),
    "minima with -1": lambda h: jnp.minimum(h, -1.0),
    "values to six": jax.nn.relu6,
}


def gate_of_sums(limit, p, x):
    """A gate that depends on the sum over all output channels of a dense layer."""
    return x * tanh(limit(x @ p["w"]).sum(-1, keepdims=True))


GATES: Kinds = {
    **{f"gate of {name}": ("w:cn", partial(gate_of_sums, f)) for name, f in LIMITS.items()},
    "prelu": ("g:s", lambda p, x: jnp.where(x > 0, x, p["g"] * x)),
    "prelu of channels": ("g:c", lambda p, x: jnp.where(x > 0, x, last(p["g"], x) * x)),
    "gate of weights": ("w:cn g:s", lambda p, x: tanh(x @ (p["g"] * p["w"]))),
    "shifted weights": ("w:cn g:s", lambda p, x: tanh(x @ (p["g"] + p["w"]))),
    "temperature": ("g:s", lambda p, x: jax.nn.softmax(x / p["g"], -1)),
    "scalar bias": ("g:s", lambda p, x: relu(x + p["g"])),
    "scalar power": ("g:s", lambda p, x: (1 + jnp.abs(x)) ** p["g"]),
    "clamp": ("g:s", lambda p, x: lax.clamp(-jnp.asarray(p["g"]), x, jnp.asarray(p["g"]))),
    "power of channels": ("v:c", lambda p, x: (1 + jnp.abs(x)) ** last(p["v"], x)),
    "scale": ("g:c", lambda p, x: x * last(p["g"], x)),
    "divisor": ("v:c b:c", lambda p, x: x / last(p["v"], x) + last(p["b"], x)),
    "norm without eps": ("v:c", lambda p, x: x * lax.rsqrt(last(p["v"], x))),
    "logarithm": ("v:c", lambda p, x: x * jnp.log(last(p["v"], x))),
    "layer norm": ("s:c b:c", lambda p, x: normalized(x, -1) * last(p["s"], x) + last(p["b"], x)),
    "rms norm": ("s:c", lambda p, x: x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-3)),
    "unit vector": ("", lambda p, x: x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-3)),
    "batch norm": ("s:c", lambda p, x: normalized(x, tuple(range(x.ndim - 1))) * last(p["s"], x)),
    "glu by split": ("w:cN", lambda p, x: gated(jnp.split(x @ p["w"], 2, -1))),
    "glu by slices": ("w:cN b:N", lambda p, x: gated(halves(x @ p["w"] + last(p["b"], x)))),
    "glu of channels": ("", lambda p, x: gated(jnp.split(x, 2, -1))),
    "gates of three": ("w:cT", lambda p, x: gated_sum(jnp.split(x @ p["w"], 3, -1))),
    "gate by a product": ("w:cn u:cn", lambda p, x: (x @ p["w"]) * sigmoid(x @ p["u"])),
    "mean gate": ("", lambda p, x: x * sigmoid(x.mean(-1, keepdims=True))),
    "nearest": ("w:rc", nearest),
}

MOVES: Kinds = {
    "maxout": ("w:cN", lambda p, x: (x @ p["w"]).reshape(*x.shape[:-1], -1, 2).max(-1)),
    "maxout of parts": ("w:cN", lambda p, x: (x @ p["w"]).reshape(*x.shape[:-1], 2, -1).max(-2)),
    "stack and sum": ("w:cn u:cn", lambda p, x: jnp.stack([tanh(x @ p["w"]), x @ p["u"]]).sum(0)),
    "stack beside": ("w:cn", lambda p, x: jnp.stack([x @ p["w"], tanh(x @ p["w"])], -1).max(-1)),
    "stack interleaved": (
        "w:cn u:cn",
        lambda p, x: jnp.stack([x @ p["w"], x @ p["u"]], -1).reshape(*x.shape[:-1], -1),
    ),
    "tile": ("", lambda p, x: jnp.tile(x, 2)),
    "tile of a parameter": ("b:i", lambda p, x: x + last(jnp.tile(p["b"], 2), x)),
    "repeat": ("", lambda p, x: jnp.repeat(x, 2, -1)),
    "concatenate": ("w:cn", lambda p, x: joined(x, x @ p["w"], -x)),
    "beside zeros": ("", lambda p, x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 1)])),
    "beside ones": ("", lambda p, x: joined(x, jnp.ones((*x.shape[:-1], 2), x.dtype))),
    "reverse": ("w:cc", lambda p, x: x[..., ::-1] + tanh(x @ p["w"])),
    "roll": ("", lambda p, x: x + jnp.roll(x, 1, -1)),
    "shuffle": ("", lambda p, x: shuffled(x)),
    "shuffle after groups": ("w:lin", lambda p, x: shuffled(DENSE["grouped"][1](p, x))),
    "even and odd": ("", lambda p, x: x[..., ::2] * x[..., 1::2]),
    "sum of halves": ("", lambda p, x: halves(x)[0] + tanh(halves(x)[1])),
    "swapped halves": ("", lambda p, x: x + joined(*halves(x)[::-1])),
    "outer product": ("w:cr", outer),
    "running sum": ("", lambda p, x: jnp.cumsum(x, -1) / 4),
    "sorted": ("", lambda p, x: jnp.sort(x, -1)),
    "largest": ("", lambda p, x: lax.top_k(x, x.shape[-1])[0]),
    "spectrum": ("", lambda p, x: jnp.fft.fft(x, axis=-1).real / 2),
    "set": ("g:s", lambda p, x: x.at[..., 0].set(p["g"])),
    "added along positions": ("", lambda p, x: x.at[:, 0].add(tanh(x[:, -1]))),
    "written along positions": ("g:s", lambda p, x: x.at[:, 0].set(p["g"] * x[:, -1])),
}
