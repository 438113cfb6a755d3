"""Remove units (layers, heads, channels, experts) from a decoder, and adapt its norms.

Adapted norms give the remaining channels the same values, if the removed channels are zero.

An RMS norm divides by the square root of a mean over the width, so the result of the norm depends
on the width. The residual stream has d channels in the whole decoder and k channels in the smaller
decoder, and x / √(Σx²/d + ε) γ = x / √(Σx²/k + ε d/k) γ √(d/k). Here γ is the scale of the norm.
Therefore the new norm has the scale γ √(d/k), and the new ε is ε d/k. Three further changes follow
from the new ε and the new width. The norms of single heads also use the new ε, so queries and keys
are multiplied by √(d/k). Gemma scales embeddings by the square root of the width, so Gemma's
embeddings are multiplied by √(d/k). If Gemma's embedding is also the kernel of the output layer,
the scale of the last norm does not change, because the larger embedding already multiplies the
logits by √(d/k).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.cli import InputError
from experiments.language.architecture import EXPERTS, Architecture, layer_kinds, perceptron_width
from experiments.language.naming import Sources

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
POSITIONS, NORM_BIAS = "model.embed_positions.weight", "model.norm.bias"  # only GPT-2 has these
AXES: dict[str, tuple[str, ...]] = {
    "self_attn.q_proj.weight": ("queries", "hidden"),
    "self_attn.k_proj.weight": ("keys", "hidden"),
    "self_attn.v_proj.weight": ("keys", "hidden"),
    "self_attn.o_proj.weight": ("hidden", "queries"),
    "self_attn.q_proj.bias": ("queries",),
    "self_attn.k_proj.bias": ("keys",),
    "self_attn.v_proj.bias": ("keys",),
    "self_attn.o_proj.bias": ("hidden",),
    "self_attn.q_norm.weight": ("dims",),
    "self_attn.k_norm.weight": ("dims",),
    "mlp.gate_proj.weight": ("intermediate", "hidden"),
    "mlp.up_proj.weight": ("intermediate", "hidden"),
    "mlp.down_proj.weight": ("hidden", "intermediate"),
    "mlp.gate_proj.bias": ("intermediate",),
    "mlp.up_proj.bias": ("intermediate",),
    "mlp.down_proj.bias": ("hidden",),
    "mlp.gate.weight": ("experts", "hidden"),
    "mlp.experts.gate_proj.weight": ("experts", "intermediate", "hidden"),
    "mlp.experts.up_proj.weight": ("experts", "intermediate", "hidden"),
    "mlp.experts.down_proj.weight": ("experts", "hidden", "intermediate"),
    "input_layernorm.weight": ("hidden",),
    "post_attention_layernorm.weight": ("hidden",),
    "pre_feedforward_layernorm.weight": ("hidden",),
    "post_feedforward_layernorm.weight": ("hidden",),
    "input_layernorm.bias": ("hidden",),
    "post_attention_layernorm.bias": ("hidden",),
    POSITIONS: ("positions", "hidden"),
    NORM_BIAS: ("hidden",),
    EMBEDDING: ("words", "hidden"),
    HEAD: ("words", "hidden"),
    NORM: ("hidden",),
}
NORMS = [name for name, axes in AXES.items() if axes == ("hidden",) and "norm.weight" in name]
SCALED_HEADS = [f"self_attn.{x}_proj.{kind}" for x in "qk" for kind in ("weight", "bias")]
IGNORED = (
    "rotary_emb.inv_freq",
)  # these arrays are not parameters, because they follow from the configuration


class Counts(NamedTuple):
    """How many units of each kind a decoder has.

    `groups` counts key-value heads, and `intermediate` is the width of a perceptron or an expert.
    """

    layers: int
    groups: int
    intermediate: int
    hidden: int
    experts: int = 1


class Selection(NamedTuple):
    """The indices of the units that remain, in ascending order.

    The fields `groups`, `intermediate` and `experts` have an entry for each layer of the whole
    decoder.
    """

    layers: np.ndarray
    groups: Sequence[np.ndarray]
    intermediate: Sequence[np.ndarray]
    hidden: np.ndarray
    experts: Sequence[np.ndarray]

    @property
    def counts(self) -> Counts:
        """The numbers of units that remain, which are equal in all layers."""
        inner = len(self.groups[0]), len(self.intermediate[0])
        return Counts(len(self.layers), *inner, len(self.hidden), len(self.experts[0]))


def counts(model: Architecture) -> Counts:
    """The numbers of units of the whole decoder."""
    return Counts(model.layers, model.groups, model.intermediate, model.hidden, model.experts)


def whole(model: Architecture) -> Selection:
    """The selection of all units."""
    layers, groups, intermediate, hidden, experts = map(np.arange, counts(model))
    n = len(layers)
    return Selection(layers, [groups] * n, [intermediate] * n, hidden, [experts] * n)


def check_names(model: Architecture, tensors: Sources) -> None:
    """Raise an error if a folder's tensors do not fit the architecture in its `config.json`.

    Raises:
      InputError: A tensor is unknown or missing, or the shape of a tensor does not fit
        `config.json`.
    """
    sizes = axis_sizes(model, counts(model))
    needed = {
        name if at_ends(name) else f"model.layers.{i}.{name}"
        for i in range(model.layers)
        for name in AXES
        if has(model, name) == "always"
    }
    if missing := sorted(needed - tensors.keys()):
        raise InputError(
            f"the weights must have every tensor of a {model.family}; {len(missing)} are missing, "
            f"such as {missing[0]}"
        )
    for name, tensor in tensors.items():
        if name.endswith(IGNORED):
            continue
        if not has(model, short(name)) or layer_of(name) >= model.layers:
            raise InputError(
                f"the weights must be of a {model.family}; {name} is not one of its tensors"
            )
        axes, given = AXES[short(name)], tensor.shape
        if len(axes) != len(given) or any(
            sizes.get(axis, n) != n for axis, n in zip(axes, given, strict=True)
        ):
            shape = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
            raise InputError(
                f"{name} must have the shape ({shape}) that config.json implies; it has {given}"
            )


def has(model: Architecture, name: str) -> Literal["always", "perhaps", ""]:
    """Whether a family's files have a tensor with this short name; "" stands for never."""
    traits, bias = model.traits, name.endswith("bias")
    if name == HEAD:
        return "perhaps"
    if name not in AXES or ("feedforward" in name and not traits.gemma):
        return ""
    if traits.gpt2:
        absent = ("q_norm", "k_norm", "gate", "experts")
        return "" if any(part in name for part in absent) else "always"
    if name in (POSITIONS, NORM_BIAS) or (bias and "norm" in name):
        return ""
    if name.startswith("mlp") and traits.mixture != (".experts." in name or ".gate." in name):
        return ""
    if ("q_norm" in name or "k_norm" in name) and not traits.head_norms:
        return ""
    return "perhaps" if bias else "always"


def at_ends(name: str) -> bool:
    """Whether a parameter with this short name lies outside the layers, before or after them."""
    return name.startswith("model.") or name == HEAD


def short(name: str) -> str:
    """A tensor's name without the prefix of its layer."""
    return name.split(".", 3)[3] if name.startswith("model.layers.") else name


def layer_of(name: str) -> int:
    """The number of the layer to which a tensor belongs; −1 for tensors outside the layers."""
    return int(name.split(".")[2]) if name.startswith("model.layers.") else -1


def axis_sizes(model: Architecture, found: Counts) -> dict[str, int]:
    """The length of every named axis, such as "queries", for the numbers of units in `found`."""
    queries = model.heads // model.groups
    return {
        "queries": found.groups * queries * model.head_dim,
        "keys": found.groups * model.head_dim,
        "intermediate": found.intermediate,
        "hidden": found.hidden,
        "dims": model.head_dim,
        "experts": found.experts,
    }


def parameters(model: Architecture, tensors: Sources, found: Counts) -> int:
    """The number of parameters of a decoder with the given numbers of units."""
    sizes, total = axis_sizes(model, found), 0
    for name, tensor in tensors.items():
        if name.endswith(IGNORED) or layer_of(name) > 0:
            continue
        axes = zip(AXES[short(name)], tensor.shape, strict=True)
        size = int(np.prod([sizes.get(axis, n) for axis, n in axes]))
        total += size * (found.layers if layer_of(name) == 0 else 1)
    return total


def indices(model: Architecture, selection: Selection, layer: int) -> dict[str, np.ndarray]:
    """The indices that remain on every named axis of a layer.

    The layer −1 stands for tensors outside layers.
    """
    if layer < 0:
        return {"hidden": selection.hidden}
    per_key, per_group = model.head_dim, model.head_dim * (model.heads // model.groups)
    groups = selection.groups[layer][:, None]
    return {
        "queries": (groups * per_group + np.arange(per_group)).ravel(),
        "keys": (groups * per_key + np.arange(per_key)).ravel(),
        "intermediate": selection.intermediate[layer],
        "hidden": selection.hidden,
        "experts": selection.experts[layer],
    }


def cut(name: str, array: np.ndarray, remaining: Mapping[str, np.ndarray]) -> np.ndarray:
    """Remove units from the array with the short name `name`; only `remaining` indices stay."""
    for axis, unit in enumerate(AXES[name]):
        if unit in remaining:
            array = array.take(remaining[unit], axis)
    return array


def fold(
    model: Architecture, name: str, array: np.ndarray, hidden: int, *, tied: bool
) -> np.ndarray:
    """Multiply a float32 or float64 array by the scale that the new width requires."""
    factor, offset = (model.hidden / hidden) ** 0.5, float(model.traits.gemma)
    if hidden == model.hidden:
        return array
    if name == NORM and model.traits.gemma and tied:
        return array
    if name in NORMS:
        return (offset + array) * factor - offset
    scaled = name in SCALED_HEADS if model.traits.head_norms else False
    if scaled or (name == EMBEDDING and model.traits.gemma):
        return array * factor
    return array


def smaller_architecture(model: Architecture, selection: Selection) -> Architecture:
    found = selection.counts
    return replace(
        model,
        hidden=found.hidden,
        intermediate=found.intermediate,
        heads=found.groups * (model.heads // model.groups),
        groups=found.groups,
        eps=model.eps * model.hidden / found.hidden,
        windows=tuple(model.windows[i] for i in selection.layers),
        rates=tuple(model.rates[i] for i in selection.layers),
        experts=found.experts,
        experts_per_token=min(model.experts_per_token, found.experts),
    )


def rewrite_config(
    config: Mapping[str, Any], small: Architecture, selection: Selection
) -> dict[str, Any]:
    """The contents of `config.json` for the smaller decoder."""
    if small.traits.gpt2:
        return {**config, "n_layer": small.layers, "n_inner": small.intermediate}
    changed = {
        "hidden_size": small.hidden,
        perceptron_width(small.family): small.intermediate,
        "num_hidden_layers": small.layers,
        "num_attention_heads": small.heads,
        "num_key_value_heads": small.groups,
        "head_dim": small.head_dim,
        "rms_norm_eps": small.eps,
    }
    if small.traits.mixture:
        names = [name for name in EXPERTS if name in config] or EXPERTS[:1]
        changed |= dict.fromkeys(names, small.experts)
        changed["num_experts_per_tok"] = small.experts_per_token
    # all layers of llama and mistral are of one kind, which the configuration does not list
    elif small.family not in ("llama", "mistral"):
        kinds = layer_kinds(config)
        changed["layer_types"] = [kinds[i] for i in selection.layers]
    return {**config, **changed}


def end_names(tensors: Sources) -> Iterator[str]:
    """The names of the tensors that lie before and after all layers."""
    return (name for name, _ in layer_names(tensors, -1))


def layer_names(tensors: Sources, layer: int) -> Iterator[tuple[str, str]]:
    """Yield the short name and the full name of each tensor in a layer.

    The layer −1 stands for tensors outside layers.
    """
    for name in tensors:
        if layer_of(name) == layer and not name.endswith(IGNORED):
            yield short(name), name
