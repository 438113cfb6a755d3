"""Identify what results depend on: data, settings, code, versions and processor type."""

import hashlib
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jaxnorm
from experiments import cli
from experiments.data.datasets import Images
from experiments.recipes import Recipe

NOT_SHARED = ("normalization", "crop", "scales", "test_scales")


def settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe's fields except the normalization and the fields for streamed images."""
    return {name: value for name, value in asdict(recipe).items() if name not in NOT_SHARED}


def digest(settings: object, files: Iterable[Path] = ()) -> str:
    """A hash of settings (valid in JSON), files, the libraries' versions and the processor type."""
    decisive = [settings, cli.versions(), platform.machine()]
    sha = hashlib.sha256(json.dumps(decisive).encode())
    for path in files:
        sha.update(path.read_bytes())
    return sha.hexdigest()


def code() -> list[Path]:
    """The source files on which, besides the recipe, the training of a network depends."""
    experiments = Path(__file__).parents[1]
    folders = (experiments / "data", experiments / "training", Path(jaxnorm.__file__).parent)
    modules = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [experiments / "recipes.py", *modules]


def packages() -> list[Path]:
    """The files of the three packages, in a fixed order."""
    root = Path(jaxnorm.__file__).parent.parent
    names = ("jaxnorm", "pruning", "geometry")
    return [path for name in names for path in sorted((root / name).rglob("*.py"))]


def describe(images: Images, probe: int) -> dict[str, Any]:
    """Describe a data set; the number of measured test images is at most `probe`."""
    return {
        "name": images.name,
        "train": len(images.x_train),
        "test": len(images.x_test),
        "probe": min(probe, len(images.x_test)),
        "shape": list(images.x_train.shape[1:]),
        "classes": images.classes,
        "note": images.note,
    }
