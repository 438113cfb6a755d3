"""Sizes that layers keep beside their arrays, taken from the arrays again."""

from flax import nnx

from jaxnorm.nnx._surgery import batch_norms


def fit_widths(model: nnx.Module) -> nnx.Module:
    """`model`, in place, with layers whose numbers of features are those of their arrays.

    For a model whose arrays were replaced by smaller ones, as `pruning.remove_channels` makes
    them: a depthwise convolution would else still look for all its channels. Of a depthwise
    convolution, with several groups of one input, the groups follow its outputs; other groups keep
    their number.

    Example:
      >>> conv = nnx.Conv(4, 8, 3, feature_group_count=4, rngs=nnx.Rngs(0))
      >>> conv.kernel = nnx.Param(conv.kernel[..., :6])
      >>> print(fit_widths(conv).feature_group_count, conv.in_features, conv.out_features)
      3 3 6
    """
    for _, layer in nnx.iter_modules(model):
        if isinstance(layer, nnx.Conv):
            shape = layer.kernel[...].shape
            if 1 < layer.feature_group_count == layer.in_features:
                layer.feature_group_count = shape[-1] * layer.in_features // layer.out_features
            layer.in_features = shape[-2] * layer.feature_group_count
            layer.out_features, layer.kernel_shape = shape[-1], shape
        elif isinstance(layer, nnx.Linear):
            layer.in_features, layer.out_features = layer.kernel[...].shape
    for norm in batch_norms(model):
        norm.num_features = norm.mean[...].size
    return model
