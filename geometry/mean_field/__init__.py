"""Layers of infinite width: what they do to the Gram matrix of a batch, exactly."""

from geometry.mean_field._kernel import arccosine_kernel as arccosine_kernel
from geometry.mean_field._kernel import cosine_step as cosine_step
from geometry.mean_field._kernel import expected_norm_factor as expected_norm_factor
from geometry.mean_field._kernel import mean_field_step as mean_field_step
from geometry.mean_field._rescaled_kernel import rescale_rms_step as rescale_rms_step
from geometry.mean_field._rescaled_kernel import rescale_step as rescale_step
from geometry.mean_field._rescaled_kernel import rms_angle as rms_angle
from geometry.mean_field._rescaled_kernel import rms_cosine_step as rms_cosine_step
from geometry.mean_field._rescaled_kernel import standardize_step as standardize_step
