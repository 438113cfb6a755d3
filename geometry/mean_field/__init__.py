"""Layers of infinite width, as exact maps of the Gram matrix of a batch."""

from geometry.mean_field._activation_step import activation_step as activation_step
from geometry.mean_field._activation_step import rescale_gram as rescale_gram
from geometry.mean_field._activation_step import rms_norm_gram as rms_norm_gram
from geometry.mean_field._kernel import arccosine_kernel as arccosine_kernel
from geometry.mean_field._kernel import cosine_step as cosine_step
from geometry.mean_field._kernel import expected_norm_factor as expected_norm_factor
from geometry.mean_field._kernel import mean_field_step as mean_field_step
from geometry.mean_field._kernel import recenter_gram as recenter_gram
from geometry.mean_field._kernel_map import FixedPoint as FixedPoint
from geometry.mean_field._kernel_map import KernelMap as KernelMap
from geometry.mean_field._kernel_map import cubic_term as cubic_term
from geometry.mean_field._kernel_map import fixed_point as fixed_point
from geometry.mean_field._kernel_map import kernel_map as kernel_map
from geometry.mean_field._kernel_map import layer_norm_map as layer_norm_map
from geometry.mean_field._kernel_map import mixed_map as mixed_map
from geometry.mean_field._rescaled_kernel import rescale_rms_step as rescale_rms_step
from geometry.mean_field._rescaled_kernel import rescale_step as rescale_step
from geometry.mean_field._rescaled_kernel import rms_angle as rms_angle
from geometry.mean_field._rescaled_kernel import rms_cosine_step as rms_cosine_step
from geometry.mean_field._rescaled_kernel import standardize_step as standardize_step
