"""Convert texts to sequences of a model's token numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from experiments import files
from experiments.cli import InputError
from experiments.language import export

BYTES = 256  # the size of the vocabulary of a model whose tokens are bytes

Tokens = Int[np.ndarray, "sequences length"]


def read(folder: Path, text: Path, vocabulary: int) -> Int[np.ndarray, " n"]:
    """Read the token numbers of a text file or of an .npy file.

    The tokenizer of the folder splits a text file into tokens. If the tokens of the model are
    bytes, no tokenizer is needed. An .npy file contains token numbers.

    Raises:
      InputError: The file or the tokenizer does not exist, the .npy file is not a vector of
        integers, or a token is not in the vocabulary.
    """
    if not text.is_file():
        raise InputError(f"--text must be a file; there is none at {text}")
    if text.suffix == ".npy":
        found = np.load(text, allow_pickle=False)
    elif vocabulary == BYTES and are_bytes(folder):
        found = np.frombuffer(text.read_bytes(), np.uint8)
    elif (folder / "tokenizer.json").is_file():
        found = np.asarray(encoder(folder)(text.read_text(encoding="utf-8")))
    else:
        raise InputError(
            f"{folder} must have a tokenizer.json to read {text.name}; give an .npy file of the "
            "token numbers instead"
        )
    if found.ndim != 1 or found.dtype.kind not in "iu":
        got = f"{found.dtype} of shape {found.shape}"
        raise InputError(f"{text} must hold one row of whole numbers; got {got}")
    if found.size and not 0 <= found.min() <= found.max() < vocabulary:
        wrong = found.min() if found.min() < 0 else found.max()
        raise InputError(f"tokens must lie in 0..{vocabulary - 1}; {text.name} has {wrong}")
    return found.astype(np.int32)


def are_bytes(folder: Path) -> bool:
    """Whether the tokens of the model in a folder are bytes.

    The tokens are bytes if the folder has no tokenizer or has the tokenizer of `train_lm.py`.
    """
    tokenizer = folder / "tokenizer.json"
    return not tokenizer.is_file() or files.read_json(tokenizer, dict) == export.tokenizer()


def encoder(folder: Path) -> Any:
    """A function that converts a text to its token numbers.

    Raises:
      InputError: The library of tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "tokenizers must be installed to read text by tokenizer.json: pip install tokenizers, "
            "or give --text as an .npy file of token numbers"
        ) from error
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def divide(
    tokens: Int[np.ndarray, " n"], length: int, sequences: int, held_out: int, seed: int
) -> tuple[Tokens, Tokens]:
    """Cut a text into sequences of `length` + 1 tokens, for repair and scores, or held out.

    Sequences for repair and scores are drawn at random from the first nine tenths and do not
    overlap. The held-out sequences are evenly spaced in the last tenth, and the same for every
    seed. If the last tenth is short, there are fewer than `held_out` held-out sequences.

    Raises:
      InputError: The text is too short.
    """
    split, whole = len(tokens) * 9 // 10, length + 1
    needed = max(-(-whole * sequences * 10 // 9), 10 * whole - 9)
    if len(tokens) < needed:
        raise InputError(
            f"--text must hold {needed} tokens for {sequences} sequences of {length} tokens and "
            f"for held-out text; it holds {len(tokens)}"
        )
    places = np.random.default_rng(seed).permutation(split // whole)[:sequences] * whole
    rest = len(tokens) - split - whole
    others = split + np.linspace(0, rest, min(held_out, rest // whole + 1)).astype(int)
    within = np.arange(whole)
    return tokens[np.sort(places)[:, None] + within], tokens[others[:, None] + within]
