"""Recognizes kernels, and the order of their axes, by names and shapes."""

import re
from collections.abc import Mapping

import numpy as np

# The name of a kernel is the name of its layer, followed by one of these endings.
OWN_NAME = re.compile(r"(^|\.)(weight|kernel|vars\.0)$")
# This pattern matches PyTorch's names of weights. The names include parts of weights under weight
# norm and spectral norm, and weights of attention layers and recurrent layers.
PYTORCH = re.compile(
    r"(^|\.)(\w+_)?weight(_[gv]|_orig|_[ih][hr]_l\d+(_reverse)?)?$"
    r"|parametrizations\.\w+\.original[01]?$"
)
EMBEDDING = re.compile(r"(embeddings?|embed_tokens|embed_positions|wte|wpe)\.weight$")
CONV1D = re.compile(r"(^|\.)(c_attn|c_fc|c_proj|q_attn)\.weight$")
WIDENING = re.compile(r"(^|\.)(c_attn|c_fc)\.weight$")
STATISTICS = ("running_mean", "running_var", "mean", "var", "moving_mean", "moving_variance")
NUMBERED = re.compile(r"(.*)\.vars\.\d+")


def layer(name: str) -> str:
    """The name of the layer if the array is a kernel, and the full name of other arrays."""
    return OWN_NAME.sub("", name) or name


def transposed_names(arrays: Mapping[str, np.ndarray]) -> set[str]:
    """The names of the arrays whose axes have PyTorch's order, (cout, cin, *window)."""
    # The layer Conv1D of GPT-2 stores kernels as (cin, cout). Other networks give the same names to
    # Linear layers, which store (cout, cin). The shapes of the kernels `c_attn` and `c_fc`, which
    # have more outputs than inputs, show the order of the file.
    conv1d = any(
        WIDENING.search(name) and array.ndim == 2 and array.shape[0] < array.shape[1]
        for name, array in arrays.items()
    )
    return {
        name
        for name, array in arrays.items()
        if PYTORCH.search(name)
        and not (array.ndim == 2 and EMBEDDING.search(name))
        and not (conv1d and CONV1D.search(name))
    }


def statistics(arrays: Mapping[str, np.ndarray]) -> set[str]:
    """The names of running means and variances."""
    named = {name for name in arrays if name.split(".")[-1] in STATISTICS}
    return named | _numbered_statistics(arrays)


def _numbered_statistics(arrays: Mapping[str, np.ndarray]) -> set[str]:
    """The names of the statistics of batch norms in Keras's numbered variables.

    If a layer has at least three variables, all of one shape, the last two count as statistics.
    `load` leaves out only the statistics that are vectors.
    """
    layers: dict[str, list[str]] = {}
    for name in arrays:
        if match := NUMBERED.fullmatch(name):
            layers.setdefault(match[1], []).append(name)
    return {
        name
        for names in layers.values()
        if len(names) >= 3 and len({arrays[name].shape for name in names}) == 1
        for name in names[-2:]
    }
