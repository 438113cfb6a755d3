"""Layers of infinite width, as exact maps of the Gram matrix of a batch."""

from geometry.mean_field._activation_step import (
    activation_step as activation_step,
    rescale_gram as rescale_gram,
    rms_norm_gram as rms_norm_gram,
)
from geometry.mean_field._kernel import (
    arccosine_kernel as arccosine_kernel,
    cosine_step as cosine_step,
    expected_norm_factor as expected_norm_factor,
    mean_field_step as mean_field_step,
    recenter_gram as recenter_gram,
)
from geometry.mean_field._kernel_map import (
    FixedPoint as FixedPoint,
    KernelMap as KernelMap,
    cubic_term as cubic_term,
    fixed_point as fixed_point,
    kernel_map as kernel_map,
    layer_norm_map as layer_norm_map,
    mixed_map as mixed_map,
)
from geometry.mean_field._rescaled_kernel import (
    rescale_rms_step as rescale_rms_step,
    rescale_step as rescale_step,
    rms_angle as rms_angle,
    rms_cosine_step as rms_cosine_step,
    standardize_step as standardize_step,
)
