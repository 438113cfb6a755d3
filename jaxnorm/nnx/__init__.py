"""Flax NNX modules for the functions of `jaxnorm`, and functions for models with norms."""

from jaxnorm.nnx._layers import (
    BatchNorm as BatchNorm,
    BatchRenorm as BatchRenorm,
    UnitizedBatchNorm as UnitizedBatchNorm,
)
from jaxnorm.nnx._microbatches import microbatched as microbatched
from jaxnorm.nnx._models import layer_outputs as layer_outputs, norm_parameters as norm_parameters
from jaxnorm.nnx._recalibration import recalibrate as recalibrate
from jaxnorm.nnx._stateless import Derf as Derf, DyT as DyT, Unitization as Unitization
from jaxnorm.nnx._surgery import (
    fix_pixels as fix_pixels,
    fold as fold,
    replace_batch_norm as replace_batch_norm,
)
from jaxnorm.nnx._widths import fit_widths as fit_widths
