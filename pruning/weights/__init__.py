"""Reads weights of trained networks from the files of six libraries into Flax's layout.

No file can run code, because the reader of pickles calls only functions that make tensors and plain
containers. If a file is truncated or corrupt, or declares more data than it contains, reading the
file raises `WeightsError`.
"""

from pruning.weights._limits import WeightsError as WeightsError
from pruning.weights._load import load as load
from pruning.weights._save import restore as restore, save as save

__all__ = ["WeightsError", "load", "restore", "save"]
