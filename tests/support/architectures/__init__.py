"""Published architectures with small widths and few blocks, written from their papers."""

from tests.support.architectures._common import Architecture as Architecture, Make
from tests.support.architectures.convolutions import CONVOLUTIONS
from tests.support.architectures.generative import GENERATIVE
from tests.support.architectures.layers import LAYERS
from tests.support.architectures.recurrent import RECURRENT
from tests.support.architectures.spectral import SPECTRAL
from tests.support.architectures.transformers import TRANSFORMERS

ARCHITECTURES: dict[str, Make] = (
    CONVOLUTIONS | TRANSFORMERS | RECURRENT | SPECTRAL | GENERATIVE | LAYERS
)
