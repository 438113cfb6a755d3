"""Read text that every machine has: the sources and help topics of Python's standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

import numpy as np
from jaxtyping import UInt8

LEFT_OUT = {"__pycache__", "idle_test", "site-packages", "test", "tests"}
HELD_OUT = 20  # one document in 20 is held out


def load() -> tuple[UInt8[np.ndarray, " n"], UInt8[np.ndarray, " m"]]:
    """The bytes for training, and the held-out bytes.

    Both parts consist of whole documents, in the order of the documents' names.
    """
    texts = list(documents())
    held_out = texts[::HELD_OUT]
    train = [text for i, text in enumerate(texts) if i % HELD_OUT]
    return join(train), join(held_out)


def documents() -> Iterator[bytes]:
    """Yield the bytes of each source file except tests, and then of each topic of `help()`."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if not LEFT_OUT & set(path.relative_to(library).parts) and path.stem != "topics":
            yield path.read_bytes()
    for _, text in sorted(topics.topics.items()):
        yield text.encode()


def join(texts: list[bytes]) -> UInt8[np.ndarray, " n"]:
    """Join documents to one array of bytes, with a zero byte between two documents."""
    return np.frombuffer(b"\0".join(texts), np.uint8)


def windows(
    text: UInt8[np.ndarray, " n"], length: int, count: int, rng: np.random.Generator
) -> UInt8[np.ndarray, "count length"]:
    """Cut `count` pieces of `length` bytes out of a text, at random places."""
    starts = rng.integers(0, len(text) - length + 1, count)
    return text[starts[:, None] + np.arange(length)]
