"""Train a small language model of bytes from random weights; `compare_lm.py` prunes the model."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from experiments.language import decoder
from experiments.language.architecture import Architecture, parse

Params = dict[str, Any]

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 256,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_sliding_window": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}
MODEL = parse(CONFIG)


class State(NamedTuple):
    """The state of a training run: the parameters and the state of the optimizer."""

    params: Any
    optimizer: Any


def shapes(model: Architecture, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """For a Qwen 3 model with tied embeddings, the names and the shapes of all parameters."""
    d, f, n = model.hidden, model.intermediate, model.head_dim
    q, k = model.heads * n, model.groups * n
    block = {
        "input_layernorm": (d,),
        "self_attn.q_proj": (q, d),
        "self_attn.k_proj": (k, d),
        "self_attn.v_proj": (k, d),
        "self_attn.o_proj": (d, q),
        "self_attn.q_norm": (n,),
        "self_attn.k_norm": (n,),
        "post_attention_layernorm": (d,),
        "mlp.gate_proj": (f, d),
        "mlp.up_proj": (f, d),
        "mlp.down_proj": (d, f),
    }
    ends = {"model.embed_tokens.weight": (vocabulary, d), "model.norm.weight": (d,)}
    return ends | {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(model.layers)
        for name, shape in block.items()
    }


def init(key: Key[Array, ""], model: Architecture, vocabulary: int) -> Params:
    """Random initial parameters; norms are one, and kernels have a standard deviation of 0.02.

    Kernels that write to the residual stream have the standard deviation 0.02 / √(2 · number of
    layers).
    """
    named = shapes(model, vocabulary)
    keys = jax.random.split(key, len(named))

    def draw(key: Key[Array, ""], name: str, shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            return jnp.ones(shape, jnp.float32)
        into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = 0.02 / (2 * model.layers) ** 0.5 if into_stream else 0.02
        return deviation * jax.random.normal(key, shape, jnp.float32)

    return {
        name: draw(k, name, shape) for k, (name, shape) in zip(keys, named.items(), strict=True)
    }


def layer_of(params: Mapping[str, Any], layer: int) -> Params:
    """The parameters of one layer; the keys are names without the layer's prefix."""
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}


def forward(
    model: Architecture, params: Params, tokens: Int[Array, "b t"]
) -> Float[Array, "b t w"]:
    """The logits of the next token at every position of `tokens`."""
    places = params.get("model.embed_positions.weight")
    x = decoder.embed(model, params["model.embed_tokens.weight"], tokens, places)
    for i in range(model.layers):
        at = decoder.positions(model, i, tokens.shape[1])
        x = decoder.layer(model, layer_of(params, i), x, at)
    head = params.get("lm_head.weight", params["model.embed_tokens.weight"])
    norm, bias = params["model.norm.weight"], params.get("model.norm.bias")
    return decoder.logits(model, norm, head, x, bias)


def loss(model: Architecture, params: Params, tokens: Int[Array, "b t+1"]) -> Float[Array, ""]:
    """The mean cross entropy of the next token, in nats."""
    found = forward(model, params, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:]).mean()


MEASURE = jax.jit(loss, static_argnums=0)


def make_optimizer(rate: float, steps: int) -> optax.GradientTransformation:
    """AdamW with clipped gradients; the rate warms up in a twentieth of the steps, then decays."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(1, steps // 20), steps, rate / 20)
    kernels = partial(jax.tree.map, lambda p: p.ndim > 1)
    adam = optax.adamw(schedule, b2=0.95, weight_decay=0.1, mask=kernels)
    return optax.chain(optax.clip_by_global_norm(1.0), adam)


def make_step(
    model: Architecture, optimizer: optax.GradientTransformation
) -> Callable[[State, Any], tuple[State, Array]]:
    """A function that takes one training step.

    The function returns the next state, and the loss of the batch before the step.
    """

    @partial(jax.jit, donate_argnums=0)
    def step(state: State, tokens: Int[Array, "b t"]) -> tuple[State, Float[Array, ""]]:
        value, gradient = jax.value_and_grad(partial(loss, model))(state.params, tokens)
        updates, after = optimizer.update(gradient, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, updates), after), value

    return step


def perplexity(model: Architecture, params: Params, tokens: Int[np.ndarray, "n t"]) -> float:
    """The perplexity, exp(mean cross entropy), over all sequences; eight run at a time."""
    parts = [tokens[i : i + 8] for i in range(0, len(tokens), 8)]
    losses = (float(MEASURE(model, params, jnp.asarray(part, jnp.int32))) for part in parts)
    total = sum(value * len(part) for value, part in zip(losses, parts, strict=True))
    return float(np.exp(total / len(tokens)))
