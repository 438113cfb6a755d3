"""Compare the time of `coupled_channels` for a deep decoder with the time of JAX's tracing."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import pruning
from experiments.benchmarks import transformers
from experiments.benchmarks.timing import Pair

LAYERS, WIDTH, HEADS, WORDS, TOKENS = 32, 4096, 32, 32_000, 128  # The sizes of LLaMA-7B.
RUNS = 10  # The largest number of timed calls, which is small because a call takes seconds.


def groups() -> dict[str, Callable[[], list[Pair]]]:
    return {f"coupled channels of a LLaMA of {LAYERS} layers, compared with tracing by JAX": pairs}


def pairs() -> list[Pair]:
    """Pairs of functions to time, for a decoder that loops over layers and one that uses a scan."""
    return [
        pair("layers unrolled / tracing", transformers.unrolled_llama, parameters(scanned=False)),
        pair("layers in a scan / tracing", transformers.llama, parameters(scanned=True)),
    ]


def parameters(*, scanned: bool) -> transformers.Params:
    """The shapes and dtypes of the decoder's parameters.

    With `scanned`, one array holds a parameter of all blocks, stacked along a leading axis.
    """

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    block = transformers.llama_block_shapes(WIDTH, HEADS)
    stacked = {name: array(LAYERS, *shape) for name, shape in block.items()}
    listed = [{name: array(*shape) for name, shape in block.items()} for _ in range(LAYERS)]
    ends = {"words": array(WORDS, WIDTH), "scale": array(WIDTH), "head": array(WIDTH, WORDS)}
    return ends | {"layers": stacked if scanned else listed}


def pair(name: str, apply: Callable[..., Any], params: transformers.Params) -> Pair:
    """A pair of functions to time: one runs `coupled_channels` on `apply`, one traces `apply`.

    Each timed run traces a newly defined function, so that no run reads JAX's cache.
    """
    tokens = jax.ShapeDtypeStruct((1, TOKENS), jnp.int32)

    def own() -> Callable[..., Any]:
        return lambda params, tokens: apply(params, tokens)

    def ours() -> Any:
        return pruning.coupled_channels(own(), params, tokens, resize=True)

    return Pair(name, ours, lambda: jax.make_jaxpr(own())(params, tokens), runs=RUNS)
