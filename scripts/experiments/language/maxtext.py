"""Write the smaller decoder as an Orbax checkpoint with MaxText's names and shapes.

Names, shapes and the layout on disk follow `checkpoint_conversion/utils/param_mapping.py` and
`common/checkpointing.py` of MaxText at commit e591f30c, for layers that are scanned along axis 1.
We only read MaxText's sources; we did not run MaxText.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files
from experiments.cli import InputError
from experiments.language import choice, folders
from experiments.language.architecture import parse
from experiments.language.choice import Model
from experiments.language.removal import EMBEDDING, HEAD, NORM
from jaxnorm.internal.checkpoints import write_tree

FAMILIES = ("qwen2", "qwen3")
LAYER_AXIS = 1  # The axis of the layers in stacked parameters, `param_scan_axis` in MaxText.
ITEMS = Path("0") / "items"  # The folder in which Orbax stores the arrays of step 0.
Tree = dict[str, Any]

ATTENTION = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
}
PERCEPTRON = {"wi_0": "mlp.gate_proj", "wi_1": "mlp.up_proj", "wo": "mlp.down_proj"}
NORMS = {
    "pre_self_attention_layer_norm": "input_layernorm",
    "post_self_attention_layer_norm": "post_attention_layernorm",
}
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}


def check(folder: Path) -> None:
    """Raise an error if MaxText does not support a model, or if its layout in MaxText is unknown.

    Raises:
      InputError: The family is not supported, or the model has sliding windows, scaled positions,
        or a bias that MaxText's model lacks.
    """
    config = folders.read_config(folder)
    model = parse(config)
    if model.family not in FAMILIES:
        raise InputError(
            f"--maxtext needs a model of {' or '.join(FAMILIES)}; got a {model.family}"
        )
    scaled = (config.get("rope_scaling") or {}).get("rope_type", "default") != "default"
    scaled |= (config.get("rope_parameters") or {}).get("rope_type", "default") != "default"
    biased = model.family == "qwen3" and config.get("attention_bias", False)
    if any(model.windows) or scaled or biased:
        raise InputError(
            "--maxtext needs a model without sliding windows, scaled positions or biases that "
            f"MaxText's {model.family} lacks; config.json has one of these"
        )


def write(folder: Path, out: Path) -> None:
    """Write a folder's model to OUT/0/items, and its settings to OUT/config.yml.

    All parameters are in memory at once.

    Args:
      folder: The folder of a model in Hugging Face's format.
      out: The folder to write, which must be new.

    Raises:
      InputError: `check` refuses the model.
    """
    check(folder)
    config, model = choice.read_model(folder)
    tree = parameters(model)
    write_tree(out / ITEMS, {"params": {"params": tree}})
    lines = (f"{name}: {json.dumps(value)}" for name, value in settings(model, config).items())
    files.write(out / "config.yml", "\n".join(lines) + "\n")


def parameters(model: Model) -> Tree:
    """Read a model's parameters as a tree with MaxText's names and shapes."""
    whole = model.architecture
    heads = {"query": whole.heads, "key": whole.groups, "value": whole.groups}

    def stack(name: str, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        layers = range(whole.layers)
        return np.stack(
            [change(model.read(f"model.layers.{i}.{name}")) for i in layers], LAYER_AXIS
        )

    def kernel(name: str, *shape: int) -> np.ndarray:
        return stack(f"{name}.weight", lambda w: w.T.reshape(shape or w.T.shape))

    def scales(names: Mapping[str, str]) -> Tree:
        return {ours: {"scale": stack(f"{n}.weight", np.asarray)} for ours, n in names.items()}

    attention: Tree = {}
    for ours, name in ATTENTION.items():
        ends = (whole.hidden, heads[ours]) if ours in heads else (whole.heads, whole.head_dim)
        last = whole.head_dim if ours in heads else whole.hidden
        attention[ours] = {"kernel": kernel(name, *ends, last)}
        if f"model.layers.0.{name}.bias" in model.tensors:
            attention[ours]["bias"] = stack(f"{name}.bias", lambda b: b.reshape(-1, whole.head_dim))
    attention |= scales(HEAD_NORMS) if whole.traits.head_norms else {}
    perceptron = {ours: {"kernel": kernel(name)} for ours, name in PERCEPTRON.items()}
    layers = {"self_attention": attention, "mlp": perceptron, **scales(NORMS)}
    found: Tree = {"layers": layers, "decoder_norm": {"scale": model.read(NORM)}}
    if not model.tied:
        found["logits_dense"] = {"kernel": model.read(HEAD).T}
    return {"token_embedder": {"embedding": model.read(EMBEDDING)}, "decoder": found}


def settings(model: Model, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the model that MaxText reads from a file."""
    whole = model.architecture
    rope = config.get("rope_parameters") or config
    return {
        # MaxText reads the settings that are missing here from its own file base.yml.
        "base_config": "base.yml",
        "decoder_block": whole.family,
        "base_emb_dim": whole.hidden,
        "base_num_query_heads": whole.heads,
        "base_num_kv_heads": whole.groups,
        "head_dim": whole.head_dim,
        "base_mlp_dim": whole.intermediate,
        "base_num_decoder_layers": whole.layers,
        "vocab_size": model.tensors[EMBEDDING].shape[0],
        "mlp_activations": [whole.activation, "linear"],
        "normalization_layer_epsilon": whole.eps,
        "rope_max_timescale": rope.get("rope_theta", 10_000),
        "use_qk_norm": whole.traits.head_norms,
        "attention_bias": whole.family == "qwen2",
        "logits_via_embedding": model.tied,
        "normalize_embedding_logits": False,
        "scan_layers": True,
        "param_scan_axis": LAYER_AXIS,
    }
