"""Published networks for tokens: transformers, mixers and state space models."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn, nnx
from jax import lax

from tests.support.architectures._common import (
    Architecture,
    Make,
    normal,
    of_equinox,
    of_linen,
    of_nnx,
)

WORDS, WIDTH, TOKENS, CLASSES = 11, 8, 6, 5


def words(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(WORDS, size=(2, TOKENS))


class Model(nn.Module):
    """The network `body(*inputs)`, which uses Linen's layers."""

    body: Callable[..., Any]

    @nn.compact
    def __call__(self, *inputs):
        return self.body(self, *inputs)


def model(body: Callable[..., Any], make_inputs: Callable[[Any], tuple[Any, ...]]) -> Make:
    return lambda dtype: of_linen(Model(body), dtype, *make_inputs(dtype))


def embedded(module, x):
    table = module.param("positions", nn.initializers.normal(), (TOKENS, WIDTH))
    return nn.Embed(WORDS, WIDTH)(x) + table[None]


def attention(x, y=None, mask=None):
    return nn.MultiHeadDotProductAttention(2, deterministic=True)(x, y, mask=mask)


def mlp(x, width=24):
    return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(width)(x)))


def encoder_block(x, mask=None):
    h = nn.LayerNorm()(x)
    x = x + attention(h, h, mask)
    return x + mlp(nn.LayerNorm()(x))


def vit(module, x):
    """Dosovitskiy et al. (2021)."""
    x = nn.Conv(WIDTH, (4, 4), (4, 4))(x)
    x = x.reshape(len(x), -1, WIDTH)
    token = module.param("token", nn.initializers.zeros, (1, 1, WIDTH))
    x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], 1)
    x = x + module.param("positions", nn.initializers.normal(), (1, *x.shape[1:]))
    for _ in range(2):
        x = encoder_block(x)
    return nn.Dense(CLASSES)(nn.LayerNorm()(x)[:, 0])


def windows(x, size):
    b, h, w, c = x.shape
    x = x.reshape(b, h // size, size, w // size, size, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, size * size, c)


def swin(module, x):
    """Swin: attention in shifted windows, without masks, Liu et al. (2021a)."""
    x = nn.Conv(WIDTH, (2, 2), (2, 2))(x)
    b, h, w, c = x.shape
    for shift in (0, 1):
        y = windows(jnp.roll(nn.LayerNorm()(x), (shift, shift), (1, 2)), 2)
        y = attention(y, y).reshape(b, h // 2, w // 2, 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
        x = x + jnp.roll(y.reshape(b, h, w, c), (-shift, -shift), (1, 2))
        x = x + mlp(nn.LayerNorm()(x))
    return nn.Dense(CLASSES)(nn.LayerNorm()(x).mean((1, 2)))


def mixer(module, x):
    """Tolstikhin et al. (2021)."""
    x = nn.Conv(WIDTH, (4, 4), (4, 4))(x).reshape(len(x), -1, WIDTH)
    for _ in range(2):
        y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        x = x + jnp.swapaxes(mlp(y), 1, 2)
        x = x + mlp(nn.LayerNorm()(x))
    return nn.Dense(CLASSES)(nn.LayerNorm()(x).mean(1))


def gated_mlp(module, x):
    """gMLP: half of the channels, mixed over tokens, gates the other half, Liu et al. (2021b)."""
    x = embedded(module, x)
    for _ in range(2):
        u, v = jnp.split(nn.gelu(nn.Dense(24)(nn.LayerNorm()(x))), 2, -1)
        v = jnp.swapaxes(nn.Dense(TOKENS)(jnp.swapaxes(nn.LayerNorm()(v), 1, 2)), 1, 2)
        x = x + nn.Dense(WIDTH)(u * v)
    return nn.Dense(WORDS)(x)


def gpt(module, x):
    """GPT-2 with an embedding that is also the kernel of the logits, Radford et al. (2019)."""
    embed = nn.Embed(WORDS, WIDTH)
    h = embed(x) + module.param("positions", nn.initializers.normal(), (1, TOKENS, WIDTH))
    for _ in range(2):
        h = encoder_block(h, nn.make_causal_mask(x))
    return embed.attend(nn.LayerNorm()(h))


def encoder_decoder(module, x, y):
    """A transformer with norms before the layers, Vaswani et al. (2017)."""
    embed = nn.Embed(WORDS, WIDTH)
    h, g = encoder_block(embed(x)), embed(y)
    g = g + attention(nn.LayerNorm()(g), mask=nn.make_causal_mask(y))
    g = g + attention(nn.LayerNorm()(g), h)
    return nn.Dense(WORDS)(g + mlp(nn.LayerNorm()(g)))


def experts(module, x):
    """A Switch layer in which each token uses all experts, after Fedus et al. (2022)."""
    x = embedded(module, x)
    shares = nn.softmax(nn.Dense(3)(x), -1)
    up = module.param("up", nn.initializers.lecun_normal(), (3, WIDTH, 12))
    down = module.param("down", nn.initializers.lecun_normal(), (3, 12, WIDTH))
    h = nn.relu(jnp.einsum("btc,ech->bteh", x, up))
    y = jnp.einsum("bteh,ehc->btec", h, down)
    return nn.Dense(WORDS)(x + jnp.einsum("bte,btec->btc", shares, y))


def sorted_experts(module, x):
    """Experts whose tokens are next to each other, for `lax.ragged_dot`, Gale et al. (2023)."""
    x = embedded(module, x)
    tokens = x.reshape(-1, WIDTH)
    router = nn.Dense(3)(tokens)
    expert = jnp.argmax(router, -1)
    order, counts = jnp.argsort(expert), jnp.bincount(expert, length=3)
    up = module.param("up", nn.initializers.lecun_normal(), (3, WIDTH, 24))
    down = module.param("down", nn.initializers.lecun_normal(), (3, 12, WIDTH))
    gate, h = jnp.split(lax.ragged_dot(tokens[order], up, counts), 2, -1)
    y = lax.ragged_dot(nn.silu(gate) * h, down, counts)[jnp.argsort(order)]
    return nn.Dense(WORDS)(x + (y * nn.softmax(router, -1).max(-1, keepdims=True)).reshape(x.shape))


def normed_heads(module, x):
    """OLMo 2: norms of queries and of keys, and norms after the layers, Walsh et al. (2024).

    Four heads of queries share two heads of keys in `jax.nn.dot_product_attention`.
    """
    x = nn.Embed(WORDS, WIDTH)(x)
    q, k = nn.RMSNorm()(nn.Dense(8)(x)), nn.RMSNorm()(nn.Dense(4)(x))
    heads = (
        q.reshape(2, TOKENS, 4, -1),
        *(y.reshape(2, TOKENS, 2, -1) for y in (k, nn.Dense(4)(x))),
    )
    y = jax.nn.dot_product_attention(*heads, is_causal=True).reshape(2, TOKENS, -1)
    x = x + nn.RMSNorm()(nn.Dense(WIDTH)(y))
    gate, h = jnp.split(nn.Dense(24)(x), 2, -1)
    x = x + nn.RMSNorm()(nn.Dense(WIDTH)(nn.silu(gate) * h))
    return nn.Dense(WORDS)(nn.RMSNorm()(x))


class NnxBlock(nnx.Module):
    """A transformer block of modules from flax.nnx."""

    def __init__(self, rngs: nnx.Rngs, dtype: Any):
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        self.embed = nnx.Embed(WORDS, WIDTH, **options)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, **options) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, **options)
        self.up = nnx.Linear(WIDTH, 24, **options)
        self.down = nnx.Linear(24, WIDTH, **options)

    def __call__(self, x):
        x = self.embed(x)
        x = x + self.attention(self.norms[0](x))
        x = x + self.down(nnx.gelu(self.up(self.norms[1](x))))
        return self.embed.attend(x)


def nnx_block(dtype: Any) -> Architecture:
    return of_nnx(lambda rngs: NnxBlock(rngs, dtype), dtype, words())


class EquinoxBlock(eqx.Module):
    """A block like BERT's for one sentence, of modules from Equinox."""

    embed: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    norms: list[eqx.nn.LayerNorm]
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(WORDS, WIDTH, key=keys[0])
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[1])
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]
        self.up = eqx.nn.Linear(WIDTH, 24, key=keys[2])
        self.down = eqx.nn.Linear(24, WIDTH, key=keys[3])

    def __call__(self, x):
        x = jax.vmap(self.embed)(x)
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h)
        h = jax.vmap(self.up)(jax.vmap(self.norms[1])(x))
        return x + jax.vmap(self.down)(jax.nn.gelu(h))


def equinox_block(dtype: Any) -> Architecture:
    return of_equinox(EquinoxBlock, dtype, words())


def llama(dtype: Any) -> Architecture:
    """LLaMA with grouped queries, as a plain function, Touvron et al. (2023)."""
    shapes = {"embed": (WORDS, 8), "q": (8, 2, 2, 4), "k": (8, 2, 4), "v": (8, 2, 4)}
    shapes |= {"o": (2, 2, 4, 8), "gate": (8, 12), "up": (8, 12), "down": (12, 8)}
    shapes |= {"one": (8,), "two": (8,), "head": (8, WORDS)}
    params = {name: normal(dtype, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}

    def rms(x, scale):
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale[None, None]

    def turned(x):
        a, b = jnp.split(x, 2, -1)
        angles = np.arange(TOKENS)[:, None] * 100.0 ** -np.arange(2)[None]
        shape = (1, TOKENS, *(1,) * (x.ndim - 3), 2)
        cos, sin = (f(angles).reshape(shape).astype(dtype) for f in (np.cos, np.sin))
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def apply(p, x):
        h = p["embed"][x]
        y = rms(h, p["one"])
        q, k = jnp.einsum("btc,clhd->btlhd", y, p["q"]), jnp.einsum("btc,chd->bthd", y, p["k"])
        scores = jnp.einsum("bqlhd,bkhd->blhqk", turned(q), turned(k)) / 2.0
        later = np.triu(np.ones((TOKENS, TOKENS), bool), 1)[None, None, None]
        shares = jax.nn.softmax(jnp.where(later, -1e9, scores), -1)
        values = jnp.einsum("btc,chd->bthd", y, p["v"])
        h = h + jnp.einsum("blhqk,bkhd,lhdc->bqc", shares, values, p["o"])
        y = rms(h, p["two"])
        return (h + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]) @ p["head"]

    return Architecture(apply, params, (words(),))


def mamba(module, x):
    """A selective state space model, Gu and Dao (2023), as a scan."""
    x = nn.Embed(WORDS, WIDTH)(x)
    inner, gate = jnp.split(nn.Dense(24)(x), 2, -1)
    inner = nn.silu(nn.Conv(12, (3,), padding=[(2, 0)], feature_group_count=12)(inner))
    rate, write, read = nn.softplus(nn.Dense(12)(inner)), nn.Dense(3)(inner), nn.Dense(3)(inner)
    decay = -jnp.exp(module.param("decay", nn.initializers.zeros, (12, 3), inner.dtype))

    def step(state, now):
        x, rate, write, read = now
        state = jnp.exp(rate[..., None] * decay[None]) * state
        state = state + (rate * x)[..., None] * write[:, None]
        return state, (state * read[:, None]).sum(-1)

    over = [jnp.swapaxes(y, 0, 1) for y in (inner, rate, write, read)]
    start = jnp.zeros((len(x), 12, 3), inner.dtype)
    y = jnp.swapaxes(lax.scan(step, start, over)[1], 0, 1)
    return nn.Dense(WORDS)(x + nn.Dense(WIDTH)(y * nn.silu(gate)))


def images(dtype: Any) -> tuple[Any, ...]:
    return (normal(dtype, 2, 8, 8, 3),)


def sentence(dtype: Any) -> tuple[Any, ...]:
    return (words(),)


def sentences(dtype: Any) -> tuple[Any, ...]:
    return words(), words(1)


TRANSFORMERS: dict[str, Make] = {
    "ViT": model(vit, images),
    "Swin": model(swin, images),
    "MLP-Mixer": model(mixer, images),
    "gMLP": model(gated_mlp, sentence),
    "GPT": model(gpt, sentence),
    "LLaMA": llama,
    "Transformer, encoder and decoder": model(encoder_decoder, sentences),
    "Transformer (flax.nnx)": nnx_block,
    "BERT (Equinox)": equinox_block,
    "Switch, mixture of experts": model(experts, sentence),
    "Experts with sorted tokens": model(sorted_experts, sentence),
    "OLMo 2": model(normed_heads, sentence),
    "Mamba": model(mamba, sentence),
}
