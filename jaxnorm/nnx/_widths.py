"""Sets attributes with sizes, such as `features` of a layer, to the sizes of the layer's arrays."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from jaxnorm.nnx._surgery import batch_norms


def fit_widths(model: nnx.Module) -> nnx.Module:
    """Set the stored sizes of each layer in `model` to its arrays' sizes; return `model`.

    Use `fit_widths` for a model whose arrays were replaced by smaller arrays, as by
    `pruning.remove_channels`. Without `fit_widths`, depthwise convolutions, heads of attention and
    recurrent cells keep their old sizes. In a depthwise convolution, each group has one input
    channel, and the number of outputs of a group does not change. All other convolutions keep their
    number of groups. A group norm keeps the size of its groups. Arrays may have leading axes, as in
    layers that `nnx.vmap` stacked for a scan.

    Example:
      >>> conv = nnx.Conv(4, 8, 3, feature_group_count=4, rngs=nnx.Rngs(0))
      >>> conv.kernel = nnx.Param(conv.kernel[..., :6])
      >>> print(fit_widths(conv).feature_group_count, conv.in_features, conv.out_features)
      3 3 6
    """
    norms = batch_norms(model)
    for _, layer in nnx.iter_modules(model):
        for kind, fit in FITS.items():
            if isinstance(layer, kind):
                fit(layer)
    for norm in norms:
        norm.num_features = norm.mean[...].shape[-1]
    return model


def _conv(layer: nnx.Conv) -> None:
    shape = layer.kernel[...].shape
    if 1 < layer.feature_group_count == layer.in_features:
        layer.feature_group_count = shape[-1] * layer.in_features // layer.out_features
    layer.in_features = shape[-2] * layer.feature_group_count
    layer.out_features, layer.kernel_shape = shape[-1], shape[-len(layer.kernel_shape) :]


def _conv_transpose(layer: nnx.ConvTranspose) -> None:
    layer.kernel_shape = layer.kernel[...].shape[-len(layer.kernel_shape) :]
    ends = layer.kernel_shape[-2:]
    layer.in_features, layer.out_features = ends[::-1] if layer.transpose_kernel else ends


def _linear(layer: nnx.Linear) -> None:
    layer.in_features, layer.out_features = layer.kernel[...].shape[-2:]


def _linear_general(layer: nnx.LinearGeneral) -> None:
    shape, count = layer.kernel[...].shape, len(layer.out_features)
    layer.in_features = shape[-count - len(layer.in_features) : -count]
    layer.out_features = shape[-count:]


def _einsum(layer: nnx.Einsum) -> None:
    layer.kernel_shape = layer.kernel[...].shape[-len(layer.kernel_shape) :]
    if layer.bias is not None and layer.bias_shape is not None:
        layer.bias_shape = layer.bias[...].shape[-len(layer.bias_shape) :]


def _embed(layer: nnx.Embed) -> None:
    layer.num_embeddings, layer.features = layer.embedding[...].shape[-2:]


def _norm(layer: nnx.LayerNorm | nnx.RMSNorm | nnx.InstanceNorm) -> None:
    layer.num_features = _channels(layer, layer.num_features)


def _group_norm(layer: nnx.GroupNorm) -> None:
    """Adapt a group norm from which whole groups of channels were removed.

    The number of channels in a group does not change.
    """
    layer.num_groups = _channels(layer, layer.num_groups * layer.group_size) // layer.group_size


def _channels(layer: nnx.Module, default: int) -> int:
    """The number of channels of the norm's scale or bias, or `default` if the norm has neither."""
    found = (getattr(layer, name, None) for name in ("scale", "bias"))
    return next((x[...].shape[-1] for x in found if x is not None), default)


def _attention(layer: nnx.MultiHeadAttention) -> None:
    """Adapt attention to the shapes of its projections.

    The kernels of query, key and value have the axes (inputs, heads, head features). The kernel of
    the output has the axes (heads, head features, outputs).
    """
    layer.in_features, layer.num_heads, layer.head_dim = layer.query.kernel[...].shape[-3:]
    layer.in_kv_features, layer.num_kv_heads, _ = layer.key.kernel[...].shape[-3:]
    layer.qkv_features = layer.num_heads * layer.head_dim
    layer.out_features = layer.out.kernel[...].shape[-1]


def _lstm(layer: nnx.LSTMCell) -> None:
    layer.in_features, layer.hidden_features = layer.ii.kernel[...].shape[-2:]


def _dense_cell(layer: nnx.OptimizedLSTMCell | nnx.GRUCell | nnx.SimpleCell) -> None:
    layer.in_features = layer.dense_i.kernel[...].shape[-2]
    layer.hidden_features = layer.dense_h.kernel[...].shape[-2]


FITS: dict[type[nnx.Module], Callable[[Any], None]] = {
    nnx.Conv: _conv,
    nnx.ConvTranspose: _conv_transpose,
    nnx.Linear: _linear,
    nnx.LinearGeneral: _linear_general,
    nnx.Einsum: _einsum,
    nnx.Embed: _embed,
    nnx.LayerNorm: _norm,
    nnx.RMSNorm: _norm,
    nnx.InstanceNorm: _norm,
    nnx.GroupNorm: _group_norm,
    nnx.MultiHeadAttention: _attention,
    nnx.LSTMCell: _lstm,
    nnx.OptimizedLSTMCell: _dense_cell,
    nnx.GRUCell: _dense_cell,
    nnx.SimpleCell: _dense_cell,
}
