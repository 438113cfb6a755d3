"""Read a decoder's architecture from `config.json`; each family is described relative to Llama."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments.cli import InputError


class Family(NamedTuple):
    """A family of decoders, described by how it differs from Llama.

    Attributes:
      head_norms: Whether an RMS norm is applied to each head's queries and keys.
      gemma: Whether norms scale by 1 + weight, norms also follow attention and perceptrons, and
        embeddings are multiplied by √hidden.
      divides: Whether `transformers` requires that the hidden width is a multiple of the number of
        heads.
      mixture: Whether perceptrons are mixtures of experts, Shazeer et al. (2017).
      gpt2: Whether positions are learned, norms subtract the mean and have a bias, and perceptrons
        have no gate.
    """

    head_norms: bool = False
    gemma: bool = False
    divides: bool = False
    mixture: bool = False
    gpt2: bool = False

    @property
    def units(self) -> tuple[str, ...]:
        """The kinds of units, besides layers, that can be removed from a model of the family."""
        if self.gpt2:
            return ("intermediate",)
        return ("heads", "experts" if self.mixture else "intermediate", "hidden")


FAMILIES = {
    "llama": Family(divides=True),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(head_norms=True),
    "gemma2": Family(gemma=True, divides=True),
    "gemma3_text": Family(gemma=True, head_norms=True, divides=True),
    "gpt2": Family(gpt2=True),
    "mixtral": Family(mixture=True),
    "qwen3_moe": Family(head_norms=True, mixture=True),
}
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "gelu_new", "gelu", "relu")
GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
# Two releases have different names for one entry of config.json.
EXPERTS = ("num_local_experts", "num_experts")
GEMMA_HEAD = 256  # The default of `head_dim`, which a `config.json` of Gemma can omit.
THETA = 10_000.0


@dataclass(frozen=True)
class Architecture:
    """The architecture of a decoder. The fields `windows` and `rates` have an entry for each layer.

    Attributes:
      family: The `model_type` of the family.
      hidden: Width of the residual stream.
      intermediate: Width of the multilayer perceptrons.
      heads: Number of query heads.
      groups: Number of key-value heads; each key-value head serves the same number of query heads.
      head_dim: Width of a head.
      eps: Number that is added to mean squares in the norms.
      activation: Activation of the perceptrons, one of `ACTIVATIONS`.
      score_scale: Number by which products of queries and keys are multiplied.
      score_cap, logit_cap: The number c that limits scores or logits x to c tanh(x / c); None for
        no limit.
      windows: For each layer, the number of positions to which a position attends, including
        itself; None for itself and all earlier positions.
      rates: For each layer, the angles by which rotary positions rotate at position 1; empty if
        positions are learned.
      experts: Number of experts in each layer.
      experts_per_token: Number of experts to which a token is sent.
      shares_sum_to_one: Whether the weights of a token's experts are divided by their sum.
    """

    family: str
    hidden: int
    intermediate: int
    heads: int
    groups: int
    head_dim: int
    eps: float
    activation: str
    score_scale: float
    score_cap: float | None
    logit_cap: float | None
    windows: tuple[int | None, ...]
    rates: tuple[tuple[float, ...], ...]
    experts: int = 1
    experts_per_token: int = 1
    shares_sum_to_one: bool = True

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def traits(self) -> Family:
        """The properties of the decoder's family that differ from Llama."""
        return FAMILIES[self.family]


def parse(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a `config.json` of `transformers`, release 4 or 5, describes.

    Raises:
      InputError: The architecture is not supported, or an entry is missing.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(
            f"model_type must be one of {', '.join(FAMILIES)}, which are supported; got {family}"
        )
    config = with_common_names(config)
    check_plain(config)
    heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
    head_dim = config.get("head_dim") or (GEMMA_HEAD if FAMILIES[family].gemma else hidden // heads)
    kinds, gemma2 = layer_kinds(config), family == "gemma2"
    window = config.get("sliding_window")
    scalar = config.get("query_pre_attn_scalar", 256) if FAMILIES[family].gemma else head_dim
    rates = {
        kind: () if family == "gpt2" else frequencies(rotary(config, kind), head_dim)
        for kind in set(kinds)
    }
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=whole(config, perceptron_width(family)),
        heads=heads,
        groups=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        eps=config.get("rms_norm_eps", 1e-5 if family == "mixtral" else 1e-6),
        activation=activation(config),
        score_scale=scalar**-0.5,
        score_cap=config.get("attn_logit_softcapping", 50.0 if gemma2 else None),
        logit_cap=config.get("final_logit_softcapping", 30.0 if gemma2 else None),
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
        rates=tuple(rates[kind] for kind in kinds),
        **mixture(config),
    )


def with_common_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the configuration; for GPT-2, Llama's names of the entries are added."""
    found = dict(config)
    if config["model_type"] == "gpt2":
        defaults = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
        found |= {
            name: config.get(old) or config.get(name) or defaults.get(old)
            for old, name in GPT2_NAMES.items()
        }
        if found["intermediate_size"] is None:
            found["intermediate_size"] = 4 * whole(found, "hidden_size")
    return found


def perceptron_width(family: str) -> str:
    """The name of the entry in `config.json` that gives the width of a perceptron or an expert."""
    return "moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size"


def mixture(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Architecture` about experts; empty for families without experts.

    Raises:
      InputError: Some layers have no experts, or an entry is missing.
    """
    if not FAMILIES[config["model_type"]].mixture:
        return {}
    step, without = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers")
    if step != 1 or without:
        raise InputError(
            "every layer must have experts; config.json has decoder_sparse_step "
            f"{step} and mlp_only_layers {without}"
        )
    name = next((name for name in EXPERTS if name in config), EXPERTS[0])
    mixtral = config["model_type"] == "mixtral"
    return {
        "experts": whole(config, name),
        "experts_per_token": min(whole(config, "num_experts_per_tok"), whole(config, name)),
        "shares_sum_to_one": mixtral or bool(config.get("norm_topk_prob", False)),
    }


def check_plain(config: Mapping[str, Any]) -> None:
    """Raise an error if the configuration has an option that the code does not support.

    Raises:
      InputError: An option is not supported; for example, the weights are quantized.
    """
    if "quantization_config" in config:
        raise InputError("the weights must not be quantized; config.json has quantization_config")
    if config.get("use_bidirectional_attention"):
        raise InputError("attention must be causal; config.json has use_bidirectional_attention")
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.get(name):
            raise InputError(f"{name} must be false in config.json; it is true")
    if config["model_type"] == "gpt2" and not config.get("scale_attn_weights", True):
        raise InputError("scale_attn_weights must be true in config.json; it is false")


def whole(config: Mapping[str, Any], name: str) -> int:
    """The positive integer with the key `name` in the configuration.

    Raises:
      InputError: `name` is missing, or is not a positive integer.
    """
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"config.json must have a positive whole number {name}; got {value}")
    return value


def activation(config: Mapping[str, Any]) -> str:
    """The name of the activation of the perceptrons.

    Raises:
      InputError: The activation is unknown.
    """
    gemma = FAMILIES[config["model_type"]].gemma
    name = config.get("hidden_activation") if gemma else config.get("hidden_act")
    name = name or ("gelu_pytorch_tanh" if gemma else "silu")
    if name not in ACTIVATIONS:
        raise InputError(f"the activation must be one of {', '.join(ACTIVATIONS)}; got {name}")
    return name


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer: "full_attention" or "sliding_attention".

    Raises:
      InputError: `layer_types` does not have one entry for each layer, or has an unknown kind.
    """
    layers, family = whole(config, "num_hidden_layers"), config["model_type"]
    listed = config.get("layer_types")
    if listed is None:
        sliding = [slides(config, family, i) for i in range(layers)]
        return ["sliding_attention" if s else "full_attention" for s in sliding]
    if len(listed) != layers or set(listed) - {"sliding_attention", "full_attention"}:
        raise InputError(
            f"layer_types must name full_attention or sliding_attention for {layers} layers; got "
            f"{len(listed)} entries, {', '.join(sorted(set(map(str, listed))))}"
        )
    return list(listed)


def slides(config: Mapping[str, Any], family: str, layer: int) -> bool:
    """Whether a layer has a sliding window, if the configuration has no `layer_types`."""
    if family == "gemma2":
        return layer % 2 == 0
    if family == "gemma3_text":
        pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern", 6)
        return bool((layer + 1) % pattern)
    if family == "qwen3_moe":
        return bool(config.get("use_sliding_window"))
    if family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)
        return bool(config.get("use_sliding_window")) and layer >= first
    return family in ("mistral", "mixtral") and config.get("sliding_window") is not None


def rotary(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The parameters of rotary positions for a kind of layer, with the names of release 5."""
    known = config.get("rope_parameters") or {}
    if kind in known:
        return known[kind] or {}
    if known:
        return known
    if config["model_type"] == "gemma3_text" and kind == "sliding_attention":
        return {"rope_theta": config.get("rope_local_base_freq", THETA)}
    default = 1e6 if config["model_type"] in ("gemma3_text", "mixtral") else THETA
    scaling = dict(config.get("rope_scaling") or {})
    return {"rope_type": scaling.pop("type", "default"), **scaling} | {
        "rope_theta": config.get("rope_theta", default)
    }


def frequencies(rope: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    """The rotary angles at position 1, scaled as `rope_type` says, Su et al. (2021).

    Raises:
      InputError: The code does not support `rope_type`, or only a part of a head is rotated.
    """
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3") or rope.get("partial_rotary_factor", 1) != 1:
        raise InputError(
            "rotary positions must have the type default, linear or llama3, and must rotate whole "
            f"heads; got {dict(rope)}"
        )
    base = rope.get("rope_theta", THETA)
    rates = 1 / base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if kind == "linear":
        rates = rates / rope["factor"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rates * rope["original_max_position_embeddings"] / (2 * np.pi)
        # `share` is 1 for fast rotations, which keep their rates, and 0 for slow rotations.
        share = np.clip((turns - low) / (high - low), 0, 1)
        rates = rates * (share + (1 - share) / rope["factor"])
    return tuple(map(float, rates))
