"""Give the parameters of all model families the names that Llama's files use.

In files of GPT-2 and of mixtures of experts, names and shapes differ from Llama's. When a file is
read, each tensor gets Llama's name. When a file is written, each tensor gets the name and the shape
of its family:

- GPT-2's kernels are (inputs, outputs), and one tensor holds queries, keys and values.
- A file has one tensor for each expert of a layer; our array has all experts of a layer, and the
  shape (experts, outputs, inputs).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.cli import InputError
from experiments.language import folders
from experiments.language.folders import Tensor

MIXTRAL = {
    "mlp.gate": "block_sparse_moe.gate",
    "mlp.experts.gate_proj": "block_sparse_moe.experts.{}.w1",
    "mlp.experts.down_proj": "block_sparse_moe.experts.{}.w2",
    "mlp.experts.up_proj": "block_sparse_moe.experts.{}.w3",
}
QWEN3_MOE = {f"mlp.experts.{x}_proj": f"mlp.experts.{{}}.{x}_proj" for x in ("gate", "up", "down")}
GPT2 = {
    "input_layernorm": "ln_1",
    "self_attn.q_proj": "attn.c_attn",
    "self_attn.k_proj": "attn.c_attn",
    "self_attn.v_proj": "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
    "model.embed_tokens": "wte",
    "model.embed_positions": "wpe",
    "model.norm": "ln_f",
}
IN_FILES = {"mixtral": MIXTRAL, "qwen3_moe": QWEN3_MOE, "gpt2": GPT2}
GPT2_MASKS = re.compile(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias")
LAYERS = "model.layers."


class Part(NamedTuple):
    """A part of a tensor in a file: some outputs of a bias, or of a kernel (inputs, outputs)."""

    tensor: Tensor
    start: int
    stop: int

    @property
    def dtype(self) -> np.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that `read` returns; outputs are the first axis."""
        return (self.stop - self.start, *self.tensor.shape[:-1])

    def read(self) -> np.ndarray:
        """Read the selected outputs, transposed to (outputs, inputs), in the dtype of the file."""
        return np.ascontiguousarray(self.tensor.read()[..., self.start : self.stop].T)


class Stack(NamedTuple):
    """Several tensors in files that have one shape and are stacked along a new first axis."""

    tensors: tuple[Tensor, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.tensors[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: the number of tensors, then the shape of one tensor."""
        return (len(self.tensors), *self.tensors[0].shape)

    def read(self) -> np.ndarray:
        """Read and stack all tensors, in the dtype of the file."""
        return np.stack([tensor.read() for tensor in self.tensors])


Source = Tensor | Part | Stack
Sources = dict[str, Source]


def sources(family: str, tensors: Mapping[str, Tensor]) -> Sources:
    """The places of a family's parameters in files, under Llama's names.

    If the family's table has no entry for a tensor, the name of the tensor remains unchanged.

    Raises:
      InputError: The experts of a layer are not numbered from 0, or differ in shape.
    """
    if family == "gpt2":
        return gpt2_sources(tensors)
    if family not in IN_FILES:
        return dict(tensors)
    ours = {pattern: name for name, pattern in IN_FILES[family].items()}
    found: Sources = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        layer, short = split(name)
        module, _, kind = short.rpartition(".")
        number = re.search(r"\.experts\.(\d+)\.", module)
        pattern = module.replace(number[0], ".experts.{}.") if number else module
        renamed = f"{layer}{ours.get(pattern, module)}.{kind}"
        if number and pattern in ours:
            experts.setdefault(renamed, {})[int(number[1])] = tensor
        else:
            found[renamed] = tensor
    return found | {name: stack(name, parts) for name, parts in experts.items()}


def stack(name: str, parts: Mapping[int, Tensor]) -> Stack:
    """One tensor for all experts of a layer, stacked in the order of the experts' numbers.

    Raises:
      InputError: The number of an expert is missing, or the experts differ in shape.
    """
    numbers, shapes = sorted(parts), {part.shape for part in parts.values()}
    if numbers != list(range(len(parts))) or len(shapes) > 1:
        raise InputError(
            f"the experts of a layer must be numbered from 0 and have one shape; {name} has "
            f"{len(parts)} experts of {len(shapes)} shapes, and the largest number is {numbers[-1]}"
        )
    return Stack(tuple(parts[i] for i in numbers))


def gpt2_sources(tensors: Mapping[str, Tensor]) -> Sources:
    """The parameters of GPT-2 under Llama's names; files need no prefix `transformer.`."""
    ours: dict[str, list[str]] = {}
    for name, pattern in GPT2.items():
        ours.setdefault(pattern, []).append(name)
    found: Sources = {}
    for name, tensor in tensors.items():
        if GPT2_MASKS.fullmatch(name):
            continue
        rest = name.removeprefix("transformer.")
        place = re.fullmatch(r"h\.(\d+)\.(.+)\.(weight|bias)", rest)
        module, kind = (place[2], place[3]) if place else rest.rpartition(".")[::2]
        prefix = f"{LAYERS}{place[1]}." if place else ""
        names = ours.get(module, [])
        if not names:
            found[name] = tensor
        for i, new in enumerate(names):
            width = tensor.shape[-1] // len(names)
            kernel = place and not module.startswith("ln")
            part = Part(tensor, i * width, (i + 1) * width) if kernel else tensor
            found[f"{prefix}{new}.{kind}"] = part
    return found


def split(name: str) -> tuple[str, str]:
    """Split a parameter's name into the prefix of its layer (or "") and the remaining part."""
    place = re.match(r"model\.layers\.\d+\.", name)
    end = place.end() if place else 0
    return name[:end], name[end:]


def to_files(
    family: str, arrays: Iterable[tuple[str, np.ndarray]]
) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays with the names and shapes that the family's files have."""
    pairs = ((file_name(family, name), array) for name, array in arrays)
    for name, group in groupby(pairs, key=lambda pair: pair[0]):
        parts = [array for _, array in group]
        if "{}" in name:
            yield from ((name.format(i), part) for i, part in enumerate(parts[0]))
        elif family == "gpt2" and re.search(r"(attn|mlp)\.c_", name):
            yield name, np.concatenate([part.T for part in parts], -1)
        else:
            yield name, parts[0]


def file_name(family: str, name: str) -> str:
    """The name that a parameter has in the family's files; {} stands for an expert's number."""
    layer, short = split(name)
    module, _, kind = short.rpartition(".")
    known = IN_FILES.get(family, {})
    if family == "gpt2" and module in known:
        layer = layer.replace(LAYERS, "h.")
        return f"transformer.{layer}{known[module]}.{kind}"
    return f"{layer}{known.get(module, module)}.{kind}"


def load(folder: Path, family: str) -> Sources:
    """Find the parameters of a model's folder, and give them Llama's names."""
    return sources(family, folders.tensors(folder))
