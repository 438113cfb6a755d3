"""Chooses and removes coupled channels of networks, and computes the cost of smaller networks.

A network is a function `apply(params, *inputs)` that JAX can trace. `coupled_channels` finds from
the traced program which channels of which arrays must be removed together. `prune` does all steps
of pruning.
"""

from pruning.channels._cost.cost import (
    Cost as Cost,
    Executable as Executable,
    Timing as Timing,
    cost as cost,
    milliseconds as milliseconds,
)
from pruning.channels._cost.cost_at import cost_at as cost_at
from pruning.channels._cost.widths_for import (
    WidthCost as WidthCost,
    compiled_bytes as compiled_bytes,
    compiled_cycles as compiled_cycles,
    compiled_flops as compiled_flops,
    widths_for as widths_for,
)
from pruning.channels._coupling.coupling import (
    coupled_channels as coupled_channels,
    fixed_channels as fixed_channels,
)
from pruning.channels._coupling.groups import (
    ChannelGroup as ChannelGroup,
    FixedChannels as FixedChannels,
    Position as Position,
)
from pruning.channels._prune import prune as prune
from pruning.channels._removal.checkpoint import (
    Pruned as Pruned,
    load_pruned as load_pruned,
    save_pruned as save_pruned,
)
from pruning.channels._removal.comparison import check_program as check_program
from pruning.channels._removal.removal import (
    mask_channels as mask_channels,
    remove_channels as remove_channels,
    widths as widths,
)
from pruning.channels._removal.resizing import resized as resized
from pruning.channels._repair.batch_norm import fold_batch_norms as fold_batch_norms
from pruning.channels._repair.constants import fold_constants as fold_constants
from pruning.channels._repair.least_squares import (
    least_squares as least_squares,
    rescale as rescale,
)
from pruning.channels._repair.merge_plans import clusters as clusters, transport as transport
from pruning.channels._repair.merging import merge_channels as merge_channels
from pruning.channels._selection.budget import select_within as select_within
from pruning.channels._selection.choice import (
    channel_scores as channel_scores,
    excluding as excluding,
    mean_scores as mean_scores,
    select_globally as select_globally,
    select_layerwise as select_layerwise,
)
from pruning.channels._selection.data_scores import (
    taylor_scores as taylor_scores,
    wanda_scores as wanda_scores,
)
from pruning.channels._selection.greedy import (
    reconstruction_scores as reconstruction_scores,
    swap_channels as swap_channels,
)
from pruning.channels._selection.sensitivity import (
    output_error as output_error,
    sensitivity as sensitivity,
)

__all__ = [
    "ChannelGroup",
    "Cost",
    "Executable",
    "FixedChannels",
    "Position",
    "Pruned",
    "Timing",
    "WidthCost",
    "channel_scores",
    "check_program",
    "clusters",
    "compiled_bytes",
    "compiled_cycles",
    "compiled_flops",
    "cost",
    "cost_at",
    "coupled_channels",
    "excluding",
    "fixed_channels",
    "fold_batch_norms",
    "fold_constants",
    "least_squares",
    "load_pruned",
    "mask_channels",
    "mean_scores",
    "merge_channels",
    "milliseconds",
    "output_error",
    "prune",
    "reconstruction_scores",
    "remove_channels",
    "rescale",
    "resized",
    "save_pruned",
    "select_globally",
    "select_layerwise",
    "select_within",
    "sensitivity",
    "swap_channels",
    "taylor_scores",
    "transport",
    "wanda_scores",
    "widths",
    "widths_for",
]
