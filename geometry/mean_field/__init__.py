"""Layers of infinite width: what they do to the Gram matrix of a batch, exactly."""

from geometry.mean_field._kernel import arccosine_kernel as arccosine_kernel
from geometry.mean_field._kernel import cosine_step as cosine_step
from geometry.mean_field._kernel import expected_norm_factor as expected_norm_factor
from geometry.mean_field._kernel import mean_field_step as mean_field_step
from geometry.mean_field._rescaled_kernel import mean_field_rescale as mean_field_rescale
from geometry.mean_field._rescaled_kernel import mean_field_rescale_rms as mean_field_rescale_rms
from geometry.mean_field._rescaled_kernel import mean_field_standardize as mean_field_standardize
from geometry.mean_field._rescaled_kernel import rms_angle as rms_angle
from geometry.mean_field._rescaled_kernel import rms_cosine_step as rms_cosine_step
