"""Normalization layers with separate parts, unitization, and measures of covariate shift.

Functions are pure and leave `jit`, `vmap` and `grad` to the caller. Samples lie on the leading axes
of an array, and features on the last axis. `jaxnorm.nnx` and `jaxnorm.linen` contain Flax modules
of the functions. `jaxnorm.models` builds the papers' networks with these modules. `jaxnorm.shift`
measures the shift of a layer's outputs. If your own modules are named `pruning` or `geometry`,
import the packages of these names as `jaxnorm.pruning` and `jaxnorm.geometry`. The subpackages are
imported at first use.
"""

import typing

from jaxnorm._version import __version__ as __version__  # isort: split

from jaxnorm._batch_norm import batch_norm as batch_norm
from jaxnorm._batch_renorm import batch_renorm as batch_renorm
from jaxnorm._decompose import recenter as recenter
from jaxnorm._decompose import rescale as rescale
from jaxnorm._decompose import rescale_rms as rescale_rms
from jaxnorm._decompose import standardize as standardize
from jaxnorm._moments import Moments as Moments
from jaxnorm._moments import merge_moments as merge_moments
from jaxnorm._moments import moments as moments
from jaxnorm._pointwise import derf as derf
from jaxnorm._pointwise import dyt as dyt
from jaxnorm._statistics import BatchStatistics as BatchStatistics
from jaxnorm._statistics import batch_statistics as batch_statistics
from jaxnorm._statistics import bessel as bessel
from jaxnorm._statistics import merge_statistics as merge_statistics
from jaxnorm._unitize import unit_vector as unit_vector
from jaxnorm._unitize import unitize as unitize
from jaxnorm._unitize import unitize_bounded as unitize_bounded
from jaxnorm._unitized_batch_norm import bounded as bounded
from jaxnorm._unitized_batch_norm import interpolated as interpolated
from jaxnorm._unitized_batch_norm import unitized_batch_norm as unitized_batch_norm
from jaxnorm.internal import lazy_modules as _lazy_modules

if typing.TYPE_CHECKING:
    import geometry as geometry
    import pruning as pruning
    from jaxnorm import linen as linen
    from jaxnorm import models as models
    from jaxnorm import nnx as nnx
    from jaxnorm import shift as shift
else:  # hidden from type checkers, which would otherwise accept any name
    __getattr__, __dir__ = _lazy_modules(
        __name__,
        {name: f"jaxnorm.{name}" for name in ("linen", "models", "nnx", "shift")}
        | {name: name for name in ("geometry", "pruning")},
    )
