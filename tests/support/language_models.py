"""Random tiny language models in Hugging Face's format, and a reference decoder in NumPy.

The decoder processes one sequence, and in it one head and one position at a time.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as library
from scipy.special import erf, expit, softmax

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "mixtral",
    "qwen3_moe",
)
WORDS = 40
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def random_config(family: str, rng: np.random.Generator) -> dict[str, Any]:
    """A random configuration, as in a `config.json` of release 4 of `transformers`."""
    if family == "gpt2":
        return random_gpt2(rng)
    groups, queries = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    heads = groups * queries
    config = {
        "model_type": family,
        "vocab_size": WORDS,
        "hidden_size": heads * int(rng.integers(3, 7)),
        "intermediate_size": int(rng.integers(8, 33)),
        "num_hidden_layers": int(rng.integers(2, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": 2 * int(rng.integers(2, 6)),
        "rms_norm_eps": float(10 ** rng.uniform(-6, -2)),
        "rope_theta": float(10 ** rng.uniform(2, 5)),
        "max_position_embeddings": 64,
        "tie_word_embeddings": bool(rng.integers(2)),
        "hidden_act": "silu",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    layers, chance = config["num_hidden_layers"], rng.random() < 0.5
    match family:
        case "llama":
            config |= {"attention_bias": chance, "mlp_bias": bool(rng.integers(2))}
            config |= {"rope_scaling": LLAMA3} if rng.integers(2) else {}
        case "mistral":
            config["sliding_window"] = 3 if chance else None
        case "mixtral":
            config |= {"num_local_experts": int(rng.integers(2, 6))}
            config |= {"num_experts_per_tok": int(rng.integers(1, 4))}
            config["num_experts_per_tok"] = min(
                config["num_experts_per_tok"], config["num_local_experts"]
            )
            config["sliding_window"] = 3 if chance else None
        case "qwen3_moe":
            config |= {"num_experts": int(rng.integers(2, 9)), "num_experts_per_tok": 2}
            config |= {"moe_intermediate_size": config["intermediate_size"]}
            config |= {"norm_topk_prob": bool(rng.integers(2)), "intermediate_size": 999}
            config |= {"use_sliding_window": chance, "sliding_window": 3}
            config |= {"attention_bias": bool(rng.integers(2))}
            config |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
        case "qwen2" | "qwen3":
            config |= {"use_sliding_window": chance, "sliding_window": 3, "max_window_layers": 1}
            config |= {"attention_bias": bool(rng.integers(2))} if family == "qwen3" else {}
        case _:
            config |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 7}
            config |= {"sliding_window": 3, "attention_bias": chance}
            config |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}
            if family == "gemma2":
                config |= {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
            else:
                kinds = ["sliding_attention", "full_attention"]
                config["layer_types"] = [kinds[i] for i in rng.integers(0, 2, layers)]
                config["rope_local_base_freq"] = 50.0
                config |= {"rope_scaling": {"rope_type": "linear", "factor": 3.0}} if chance else {}
    return config


def random_gpt2(rng: np.random.Generator) -> dict[str, Any]:
    heads = int(rng.integers(1, 5))
    width = heads * int(rng.integers(4, 9))
    return {
        "model_type": "gpt2",
        "vocab_size": WORDS,
        "n_positions": 32,
        "n_embd": width,
        "n_head": heads,
        "n_layer": int(rng.integers(2, 5)),
        "n_inner": int(rng.integers(8, 33)) if rng.integers(2) else None,
        "activation_function": str(rng.choice(["gelu_new", "gelu"])),
        "layer_norm_epsilon": float(10 ** rng.uniform(-6, -2)),
        "tie_word_embeddings": bool(rng.integers(2)),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def gpt2_weights(config: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random parameters of GPT-2, whose kernels have the shape (inputs, outputs)."""
    d, inner = config["n_embd"], config["n_inner"] or 4 * config["n_embd"]
    shapes = {"wte.weight": (WORDS, d), "wpe.weight": (config["n_positions"], d)}
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    for i in range(config["n_layer"]):
        kernels = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d)}
        kernels |= {"mlp.c_fc": (d, inner), "mlp.c_proj": (inner, d)}
        for name, shape in kernels.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": (d,), f"h.{i}.{name}.bias": (d,)}
    shapes = {f"transformer.{name}": shape for name, shape in shapes.items()}
    shapes |= {} if config["tie_word_embeddings"] else {"lm_head.weight": (WORDS, d)}
    found = {}
    for name, shape in shapes.items():
        center = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
        fan_in = shape[0] if ".c_" in name else shape[-1]
        deviation = 0.3 if len(shape) == 1 else 1 / fan_in**0.5
        found[name] = (center + deviation * rng.standard_normal(shape)).astype(np.float32)
    return found


def random_weights(config: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random parameters, scaled such that every part of the network changes the result."""
    if config["model_type"] == "gpt2":
        return gpt2_weights(config, rng)
    family, d, f = config["model_type"], config["hidden_size"], config["intermediate_size"]
    n = config["head_dim"]
    q, k = config["num_attention_heads"] * n, config["num_key_value_heads"] * n
    gemma = family.startswith("gemma")
    attention_bias = config.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (WORDS, d), "model.norm": (d,)}
    shapes |= {} if config["tie_word_embeddings"] else {"lm_head": (WORDS, d)}
    for i in range(config["num_hidden_layers"]):
        at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        shapes |= {f"{at}.q_proj": (q, d), f"{at}.k_proj": (k, d), f"{at}.v_proj": (k, d)}
        shapes |= {f"{at}.o_proj": (d, q)} | perceptron_shapes(config, f"model.layers.{i}", d, f)
        norms = ["input", "post_attention"]
        norms += ["pre_feedforward", "post_feedforward"] if gemma else []
        shapes |= {f"model.layers.{i}.{norm}_layernorm": (d,) for norm in norms}
        if family in ("qwen3", "qwen3_moe", "gemma3_text"):
            shapes |= {f"{at}.q_norm": (n,), f"{at}.k_norm": (n,)}
        if attention_bias or family == "qwen2":
            shapes |= {
                f"{at}.{x}_proj.bias": (size,) for x, size in zip("qkv", (q, k, k), strict=True)
            }
        if attention_bias:
            shapes[f"{at}.o_proj.bias"] = (d,)
        if config.get("mlp_bias"):
            shapes |= {f"{mlp}.gate_proj.bias": (f,), f"{mlp}.up_proj.bias": (f,)}
            shapes[f"{mlp}.down_proj.bias"] = (d,)
    named = {n if n.endswith("bias") else f"{n}.weight": shape for n, shape in shapes.items()}
    center = 0.0 if gemma else 1.0
    return {name: draw(name, shape, center, rng) for name, shape in named.items()}


def perceptron_shapes(
    config: dict[str, Any], layer: str, d: int, f: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of one perceptron, or of the experts and their router."""
    names = {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
    match config["model_type"]:
        case "mixtral":
            at, count = f"{layer}.block_sparse_moe", config["num_local_experts"]
            names = {"w1": (f, d), "w3": (f, d), "w2": (d, f)}
        case "qwen3_moe":
            at, count = f"{layer}.mlp", config["num_experts"]
            f = config["moe_intermediate_size"]
            names = {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
        case _:
            return {f"{layer}.mlp.{name}": shape for name, shape in names.items()}
    found: dict[str, tuple[int, ...]] = {f"{at}.gate": (count, d)}
    for e in range(count):
        found |= {f"{at}.experts.{e}.{name}": shape for name, shape in names.items()}
    return found


def draw(
    name: str, shape: tuple[int, ...], of_norms: float, rng: np.random.Generator
) -> np.ndarray:
    deviation = 0.3 if len(shape) == 1 else 1 / shape[-1] ** 0.5
    center = of_norms if "norm" in name else 0.0
    return (center + deviation * rng.standard_normal(shape)).astype(np.float32)


def write(
    folder: Path, config: dict[str, Any], weights: dict[str, np.ndarray], *, shards: int = 1
) -> Path:
    """Write a folder in the format of `transformers`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if shards == 1:
        library.save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    placed = {name: names[i % shards] for i, name in enumerate(weights)}
    for name in names:
        part = {key: weights[key] for key in weights if placed[key] == name}
        library.save_file(part, folder / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The configuration and the weights in a folder, read by the safetensors library."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= library.load_file(path)
    return config, weights


def logits(config: dict[str, Any], weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits of one sequence, in float64.

    For mixtures of experts, `config["removed_experts"]` may list, for every layer, the experts that
    get no tokens.
    """
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    if config["model_type"] == "gpt2":
        return gpt2_logits(config, w, tokens)
    gemma = config["model_type"].startswith("gemma")
    x = [w["model.embed_tokens.weight"][token] for token in tokens]
    x = [row * math.sqrt(len(row)) for row in x] if gemma else x
    for i in range(config["num_hidden_layers"]):
        p = {k.split(".", 3)[3]: a for k, a in w.items() if k.startswith(f"model.layers.{i}.")}
        x = block(config, p, i, x)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    found = [head @ norm(config, row, w["model.norm.weight"]) for row in x]
    cap = config.get("final_logit_softcapping")
    return np.array([cap * np.tanh(row / cap) if cap else row for row in found])


def norm(config: dict[str, Any], x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    offset = 1 if config["model_type"].startswith("gemma") else 0
    return x / math.sqrt(sum(x * x) / len(x) + config["rms_norm_eps"]) * (offset + weight)


def block(config: dict[str, Any], p: dict[str, Any], i: int, x: list[np.ndarray]) -> list:
    gemma = config["model_type"].startswith("gemma")
    h = [norm(config, row, p["input_layernorm.weight"]) for row in x]
    mixed = [affine(p, "self_attn.o_proj", row) for row in attention(config, p, i, h)]
    if gemma:
        mixed = [norm(config, row, p["post_attention_layernorm.weight"]) for row in mixed]
    x = [a + b for a, b in zip(x, mixed, strict=True)]
    before = "pre_feedforward" if gemma else "post_attention"
    out = []
    for row in x:
        h = norm(config, row, p[f"{before}_layernorm.weight"])
        if config["model_type"] in ("mixtral", "qwen3_moe"):
            out.append(row + mixture(config, p, i, h))
            continue
        gate, up = (affine(p, f"mlp.{name}_proj", h) for name in ("gate", "up"))
        y = affine(p, "mlp.down_proj", activation(config, gate) * up)
        out.append(row + (norm(config, y, p["post_feedforward_layernorm.weight"]) if gemma else y))
    return out


def mixture(config: dict[str, Any], p: dict[str, Any], i: int, h: np.ndarray) -> np.ndarray:
    """The output of a mixture of experts for one position, expert by expert."""
    mixtral = config["model_type"] == "mixtral"
    at, names = ("block_sparse_moe", ["w1", "w3", "w2"]) if mixtral else ("mlp", [])
    names = names or ["gate_proj", "up_proj", "down_proj"]
    scores = p[f"{at}.gate.weight"] @ h
    removed = config.get("removed_experts")
    if removed:
        scores[removed[i]] = -np.inf
    weights = softmax(scores)
    possible = int(np.isfinite(scores).sum())
    chosen = np.argsort(-weights)[: min(config["num_experts_per_tok"], possible)]
    total = weights[chosen].sum() if mixtral or config["norm_topk_prob"] else 1
    y = np.zeros_like(h)
    for e in chosen:
        gate, up, down = (p[f"{at}.experts.{e}.{name}.weight"] for name in names)
        y += weights[e] / total * (down @ (activation(config, gate @ h) * (up @ h)))
    return y


def gpt2_logits(config: dict[str, Any], w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    w = {name.removeprefix("transformer."): array for name, array in w.items()}
    x = [w["wte.weight"][token] + w["wpe.weight"][t] for t, token in enumerate(tokens)]
    n = config["n_embd"] // config["n_head"]

    def standardize(name: str, row: np.ndarray) -> np.ndarray:
        row = row - sum(row) / len(row)
        row = row / math.sqrt(sum(row * row) / len(row) + config["layer_norm_epsilon"])
        return row * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name: str, row: np.ndarray) -> np.ndarray:
        return row @ w[f"{name}.weight"] + w[f"{name}.bias"]

    for i in range(config["n_layer"]):
        q, k, v = (
            [part.reshape(-1, n) for part in parts]
            for parts in zip(
                *(
                    np.split(linear(f"h.{i}.attn.c_attn", standardize(f"h.{i}.ln_1", row)), 3)
                    for row in x
                ),
                strict=True,
            )
        )
        for t in range(len(x)):
            mixed = []
            for head in range(config["n_head"]):
                shares = softmax([q[t][head] @ k[s][head] / math.sqrt(n) for s in range(t + 1)])
                mixed.append(sum(share * v[s][head] for s, share in enumerate(shares)))
            x[t] = x[t] + linear(f"h.{i}.attn.c_proj", np.concatenate(mixed))
            h = linear(f"h.{i}.mlp.c_fc", standardize(f"h.{i}.ln_2", x[t]))
            h = tanh_gelu(h) if config["activation_function"] == "gelu_new" else exact_gelu(h)
            x[t] = x[t] + linear(f"h.{i}.mlp.c_proj", h)
    head = w.get("lm_head.weight", w["wte.weight"])
    return np.array([head @ standardize("ln_f", row) for row in x])


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + erf(x / 2**0.5))


def activation(config: dict[str, Any], x: np.ndarray) -> np.ndarray:
    if config["model_type"].startswith("gemma"):
        return tanh_gelu(x)
    return exact_gelu(x) if config["hidden_act"] == "gelu" else x * expit(x)


def affine(p: dict[str, Any], name: str, x: np.ndarray) -> np.ndarray:
    return p[f"{name}.weight"] @ x + p.get(f"{name}.bias", 0)


def attention(config: dict[str, Any], p: dict[str, Any], i: int, h: list) -> list[np.ndarray]:
    heads, groups, n = (
        config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    gemma = config["model_type"].startswith("gemma")
    scale = (config["query_pre_attn_scalar"] if gemma else n) ** -0.5
    cap, window = config.get("attn_logit_softcapping"), window_of(config, i)
    q, k, v = ([affine(p, f"self_attn.{x}_proj", row).reshape(-1, n) for row in h] for x in "qkv")
    for name, rows in (("q", q), ("k", k)):
        for t, row in enumerate(rows):
            if f"self_attn.{name}_norm.weight" in p:
                row = np.array([norm(config, u, p[f"self_attn.{name}_norm.weight"]) for u in row])
            rows[t] = np.array([turned(config, i, u, t) for u in row])
    found = []
    for t in range(len(h)):
        parts = []
        for head in range(heads):
            group = head // (heads // groups)
            seen = [s for s in range(t + 1) if window is None or t - s < window]
            scores = np.array([q[t][head] @ k[s][group] * scale for s in seen])
            scores = cap * np.tanh(scores / cap) if cap else scores
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            parts.append(sum(share * v[s][group] for share, s in zip(shares, seen, strict=True)))
        found.append(np.concatenate(parts))
    return found


def slides(config: dict[str, Any], i: int) -> bool:
    if "layer_types" in config:
        return config["layer_types"][i] == "sliding_attention"
    match config["model_type"]:
        case "mistral" | "mixtral":
            return config["sliding_window"] is not None
        case "qwen3_moe":
            return config["use_sliding_window"]
        case "qwen2" | "qwen3":
            return config["use_sliding_window"] and i >= config["max_window_layers"]
        case "gemma2":
            return i % 2 == 0
    return False


def window_of(config: dict[str, Any], i: int) -> int | None:
    return config["sliding_window"] if slides(config, i) else None


def turned(config: dict[str, Any], i: int, u: np.ndarray, t: int) -> np.ndarray:
    """The vector of a head after rotary position embedding, which rotates pairs of elements."""
    u, half, scaling = u.copy(), len(u) // 2, config.get("rope_scaling")
    local = config["model_type"] == "gemma3_text" and slides(config, i)
    theta = config["rope_local_base_freq"] if local else config["rope_theta"]
    for j in range(half):
        rate = theta ** (-2 * j / len(u))
        if scaling and not local:
            rate = scaled(rate, scaling)
        cos, sin = math.cos(t * rate), math.sin(t * rate)
        u[j], u[j + half] = u[j] * cos - u[j + half] * sin, u[j + half] * cos + u[j] * sin
    return u


def scaled(rate: float, scaling: dict[str, Any]) -> float:
    if scaling["rope_type"] == "linear":
        return rate / scaling["factor"]
    wavelength, context = 2 * math.pi / rate, scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if wavelength < context / high:
        return rate
    if wavelength > context / low:
        return rate / scaling["factor"]
    smooth = (context / wavelength - low) / (high - low)
    return (1 - smooth) * rate / scaling["factor"] + smooth * rate
