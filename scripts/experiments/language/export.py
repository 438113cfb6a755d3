"""Write the small language model and its tokenizer to a folder that `transformers` can load."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files
from experiments.language import folders
from experiments.language.training import CONFIG


def write(folder: Path, params: Mapping[str, Any]) -> None:
    """Write a model whose tokens are bytes; an earlier model in the folder is replaced."""
    with files.in_use(folder), folders.staging(folder, replace=True) as new:
        folders.write(new, ((name, np.asarray(p)) for name, p in params.items()))
        for name, content in {
            "tokenizer.json": tokenizer(),
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
            "config.json": CONFIG,
        }.items():
            files.write(new / name, json.dumps(content, indent=2) + "\n")


def tokenizer() -> dict[str, Any]:
    """The settings of a tokenizer whose tokens are bytes, which is a byte-level BPE without merges.

    The number of each token is the value of its byte.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level(),
        "post_processor": None,
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "vocab": {letter: byte for byte, letter in enumerate(letters())},
            "merges": [],
        },
    }


def byte_level() -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }


def letters() -> list[str]:
    """For each byte value, the visible letter that represents it in GPT-2's byte-level BPE."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]
