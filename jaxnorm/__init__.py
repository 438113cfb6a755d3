"""Normalization layers and their parts, unitization, and measures of covariate shift.

Functions are pure and leave `jit`, `vmap` and `grad` to the caller. Samples lie on the leading axes
of an array, and features on the last axis. `jaxnorm.nnx` and `jaxnorm.linen` contain the layers as
Flax modules. `jaxnorm.models` contains dense, residual and VGG networks with these modules.
`jaxnorm.shift` measures the shift of a layer's outputs. If your own modules are named `pruning` or
`geometry`, import the packages of these names as `jaxnorm.pruning` and `jaxnorm.geometry`. The
subpackages are imported at first use.
"""

import typing

from jaxnorm._version import __version__ as __version__  # isort: split

from jaxnorm._batch_norm import batch_norm as batch_norm
from jaxnorm._batch_renorm import batch_renorm as batch_renorm
from jaxnorm._decompose import (
    recenter as recenter,
    rescale as rescale,
    rescale_rms as rescale_rms,
    standardize as standardize,
)
from jaxnorm._moments import Moments as Moments, merge_moments as merge_moments, moments as moments
from jaxnorm._pointwise import derf as derf, dyt as dyt
from jaxnorm._statistics import (
    BatchStatistics as BatchStatistics,
    batch_statistics as batch_statistics,
    bessel as bessel,
    merge_statistics as merge_statistics,
)
from jaxnorm._unitize import (
    unit_vector as unit_vector,
    unitize as unitize,
    unitize_bounded as unitize_bounded,
)
from jaxnorm._unitized_batch_norm import (
    bounded as bounded,
    interpolated as interpolated,
    unitized_batch_norm as unitized_batch_norm,
)
from jaxnorm.internal import lazy_modules as _lazy_modules

if typing.TYPE_CHECKING:
    import geometry as geometry
    import pruning as pruning
    from jaxnorm import linen as linen, models as models, nnx as nnx, shift as shift
else:  # type checkers must not see `__getattr__`, or they would accept any name
    __getattr__, __dir__ = _lazy_modules(
        __name__,
        {name: f"jaxnorm.{name}" for name in ("linen", "models", "nnx", "shift")}
        | {name: name for name in ("geometry", "pruning")},
    )
