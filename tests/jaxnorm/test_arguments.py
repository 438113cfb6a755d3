"""Arguments of a wrong rank, length or type raise an error whose message names the argument."""

import re
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import linen, nnx

import jaxnorm
from jaxnorm import shift
from jaxnorm.internal import as_path, check_eps, check_positive, check_range
from jaxnorm.models._norm import check_norm

X = jnp.ones((4, 3))
ROW, SHORT = X[0], X[0, :2]
LIST: Any = [[1.0, 2.0]]
DATES: Any = np.array(["2026-11-26"], "datetime64[D]")
TUPLE: Any = (ROW, ROW)
NUMBER: Any = 1.0
SEVERAL_AXES: list[Any] = [[0], [0, 1], (0,), (0, 1), (), range(1), "0"]
HALF: Any = "0.5"
NUMPY_HALF: Any = np.str_(HALF)
HALF_WAY: Any = 2.5
HALF_OF_ONE: Any = 0.5
ANY_LOSS: Any = len
ANY_FUNCTION: Any = lambda x: x  # noqa: E731
ZERO: Any = 0
NAME: Any = "batch"
VECTOR: Any = jnp.ones(2)
LAYER_NORM: Any = nnx.LayerNorm(3, rngs=nnx.Rngs(0))
LAYER: Any = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
SCALAR: Any = np.float32(1)
IMAGES = jnp.ones((2, 8, 8, 3))
NCHW = jnp.ones((2, 3, 8, 8), "float32")


def conv_and_norm():
    conv = nnx.Conv(3, 4, (3, 3), param_dtype="float64", rngs=nnx.Rngs(0))
    return nnx.Sequential(conv, jaxnorm.nnx.BatchNorm(4, rngs=nnx.Rngs(0)))


def updated(**options):
    layer = jaxnorm.linen.BatchNorm(False, **options)
    return layer.apply(layer.init(jax.random.key(0), X), X, mutable=["batch_stats"])


WRONG_TYPES = {
    "x must be an array; got list": [
        lambda: jaxnorm.recenter(LIST),
        lambda: jaxnorm.moments(LIST),
        lambda: jaxnorm.unit_vector(LIST),
        lambda: jaxnorm.batch_norm(LIST),
        lambda: jaxnorm.unitized_batch_norm(LIST, 0.5),
        lambda: jaxnorm.batch_statistics(LIST),
        lambda: shift.emd(LIST, LIST),
        lambda: shift.emd_1d(LIST, LIST),
        lambda: shift.clipped_power(LIST, radius=1),
        lambda: jaxnorm.nnx.BatchNorm(2, rngs=nnx.Rngs(0))(LIST),
    ],
    "x must be of a floating dtype; got complex128": [
        lambda: jaxnorm.standardize(X.astype(complex)),
        lambda: jaxnorm.batch_norm(X.astype(complex)),
    ],
    "where must be an array; got list": [lambda: jaxnorm.batch_norm(X, where=LIST)],
    "where must be boolean; got float64: pass where != 0": [
        lambda: jaxnorm.batch_norm(X, where=jnp.ones(4)),
        lambda: jaxnorm.batch_statistics(X, where=jnp.ones(4)),
    ],
    "mask must be boolean; got float64: pass mask != 0": [
        lambda: jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))(X, mask=jnp.ones(4))
    ],
    "alpha must hold numbers; got <U3": [
        lambda: jaxnorm.unitized_batch_norm(X, NUMPY_HALF),
        lambda: jaxnorm.unitize(X, NUMPY_HALF),
        lambda: jaxnorm.unitize_bounded(X, NUMPY_HALF),
    ],
    "alpha must be an array; got str": [
        lambda: jaxnorm.unitized_batch_norm(X, HALF),
        lambda: jaxnorm.unitize(X, HALF),
        lambda: jaxnorm.unitize_bounded(X, HALF),
        lambda: jaxnorm.interpolated(HALF, 1.0),
    ],
    "x_weights must be real; got complex128": [
        lambda: shift.emd_1d(X, X, x_weights=jnp.ones(len(X), complex)),
        lambda: shift.emd(X, X, x_weights=jnp.ones(len(X), complex)),
    ],
    **{
        f"axis must be one int; got {re.escape(repr(axis))}$": [
            lambda axis=axis: jaxnorm.unit_vector(X, axis=axis),
            lambda axis=axis: jaxnorm.unitize(X, 0.5, axis=axis),
            lambda axis=axis: jaxnorm.unitize_bounded(X, 0.5, axis=axis),
        ]
        for axis in SEVERAL_AXES
    },
    "running must be BatchStatistics; got tuple": [lambda: jaxnorm.batch_renorm(X, running=TUPLE)],
    "the result of correction must be real; got complex128": [
        lambda: jaxnorm.batch_norm(X, correction=lambda count: count.astype(complex))
    ],
    "scale must be real; got complex128": [
        lambda: jaxnorm.batch_norm(X, scale=jnp.ones(3, complex))
    ],
    "alpha must be of a floating dtype; got int64": [
        lambda: jaxnorm.bounded(jnp.ones(3, int), 1.0),
        lambda: jaxnorm.interpolated(jnp.ones(3, int), 1.0),
    ],
    "x must be of a floating dtype; got int64": [
        lambda: shift.clipped_power(jnp.ones(3, int), radius=1.0)
    ],
    "mean_x must be of a floating dtype; got int64": [
        lambda: shift.normalized_lower_bound(*4 * [jnp.ones(3, int)], radius=1.0),
        lambda: shift.moment_upper_bound(*4 * [jnp.ones(3, int)]),
    ],
    "count must be an array; got list": [lambda: jaxnorm.bessel(LIST)],
    "key must be one random key, such as jax.random.key.0.; got float64 of shape": [
        lambda: shift.emd_sliced(X, X),
        lambda: shift.emd_lower_bound(X, X, X, X, X),
        lambda: shift.emd_critic(X, X, X, X, X),
    ],
    r"key must be one random key, .*; got key<fry> of shape \(2,\)": [
        lambda: shift.emd_sliced(jax.random.split(jax.random.key(0)), X, X)
    ],
    "key must be one random key, such as jax.random.key.0.; got int": [
        lambda: shift.emd_sliced(ZERO, X, X)
    ],
    "y must be given: emd_sliced takes key, x and y": [
        lambda: shift.emd_sliced(jax.random.key(0), X)
    ],
    "projections must be an int; got 2.5": [
        lambda: shift.emd_sliced(jax.random.key(0), X, X, projections=HALF_WAY)
    ],
    "dims must be an int; got 1.5": [
        lambda: shift.interpolation_counterexample(0.5, length=1.0, dims=1.5)  # pyright: ignore
    ],
    "norm must be a function, such as jaxnorm.nnx.BatchNorm; got 'batch'": [
        lambda: jaxnorm.models.MLP(classes=2, norm=NAME, rngs=nnx.Rngs(0)),
        lambda: jaxnorm.models.PreActResNet(8, classes=2, norm=NAME, rngs=nnx.Rngs(0)),
        lambda: jaxnorm.models.CifarResNet(8, classes=2, norm=NAME, rngs=nnx.Rngs(0)),
        lambda: jaxnorm.models.ResNet(18, classes=2, norm=NAME, rngs=nnx.Rngs(0)),
        lambda: jaxnorm.models.VGG(11, classes=2, norm=NAME, rngs=nnx.Rngs(0)),
    ],
    "statistics must be BatchStatistics; got tuple": [
        lambda: jaxnorm.batch_norm(X, statistics=TUPLE)
    ],
    "alpha must be an array; got list": [lambda: shift.unitized_upper_bound(LIST)],
    "alpha must be of a floating dtype; got int": [
        lambda: shift.unitized_upper_bound(jnp.array([1, 0]))
    ],
    "mean_x must be an array; got float": [
        lambda: shift.moment_upper_bound(NUMBER, NUMBER, NUMBER, NUMBER),
        lambda: shift.mean_lower_bound(NUMBER, NUMBER),
    ],
    "before must be an array; got list": [lambda: shift.layer_shift(LIST, LIST)],
    "batches must be a list or an iterator of batches; got dict": [
        lambda: jaxnorm.nnx.recalibrate(jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0)), {"x": X}),
        lambda: shift.stream_moments(lambda x: {"x": x}, {"x": X}),
    ],
    "batches must be a list or an iterator of batches; got one array": [
        lambda: jaxnorm.nnx.recalibrate(conv_and_norm(), IMAGES),
        lambda: jaxnorm.nnx.recalibrate(conv_and_norm(), np.asarray(IMAGES)),
        lambda: shift.stream_moments(lambda x: {"x": x}, X),
    ],
    "x must hold numbers; got datetime64": [lambda: jaxnorm.recenter(DATES)],
    "x must hold numbers; got timedelta64": [lambda: jaxnorm.recenter(DATES - DATES)],
    "a batch must be one array of inputs; got 2 arrays: select the inputs, .* call=": [
        lambda: jaxnorm.nnx.recalibrate(conv_and_norm(), [(IMAGES, X)])
    ],
    "a batch must be one array of inputs; got 0 arrays: select the inputs, .* call=": [
        lambda: jaxnorm.nnx.recalibrate(conv_and_norm(), [()])
    ],
    "layers must be a list of names; got the string 'layers.1'": [
        lambda: jaxnorm.nnx.layer_outputs(conv_and_norm(), "layers.1", IMAGES)
    ],
    "model must be a flax.nnx.Module; got function": [
        lambda: jaxnorm.nnx.layer_outputs(ANY_FUNCTION, ["layers.1"], IMAGES),
        lambda: jaxnorm.nnx.replace_batch_norm(ANY_FUNCTION),
        lambda: jaxnorm.nnx.fix_pixels(ANY_FUNCTION, IMAGES),
    ],
    "layers must be a list of names; got ArrayImpl": [
        lambda: jaxnorm.nnx.layer_outputs(conv_and_norm(), VECTOR, IMAGES)
    ],
    r"outputs must be a function of a state and inputs; got LayerNorm\(x": [
        lambda: shift.Tracker(LAYER_NORM, IMAGES)
    ],
    r"norm must be a function of a width and rngs; got BatchNorm\(x": [
        lambda: jaxnorm.models.MLP(classes=2, norm=LAYER, rngs=nnx.Rngs(0))
    ],
}
# For each option of a layer: a wrong value, and the end of the error message.
OPTIONS = {
    "param_dtype": (int, "a floating dtype, such as jnp.bfloat16; got <class 'int'>"),
    "dtype": ("int32", "a floating dtype, such as jnp.bfloat16; got 'int32'"),
    "use_bias": ("no", "True or False; got 'no'"),
    "use_scale": (1, "True or False; got 1"),
}
OF_STATISTICS = {
    "groups": (1.0, "an int; got 1.0"),
    "axis": (-1.0, "an int; got -1.0"),
    "momentum": ("0.9", "a number; got '0.9'"),
    "update_running_average": ("no", "True or False; got 'no'"),
    "correction": (1.5, "a function, such as jaxnorm.bessel; got 1.5"),
    "running_correction": (1.5, "a function, such as jaxnorm.bessel; got 1.5"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(("BatchNorm", option) for option in OPTIONS | OF_STATISTICS),
        *(("DyT", option) for option in OPTIONS),
    ],
)
def test_wrong_options_of_layers_are_named_in_both_frameworks(name, option):
    wrong, message = (OPTIONS | OF_STATISTICS)[option]
    mode = {"use_running_average": False} if name == "BatchNorm" else {}
    calls = [
        lambda: getattr(jaxnorm.nnx, name)(3, **{option: wrong}, rngs=nnx.Rngs(0))(X),
        lambda: getattr(jaxnorm.linen, name)(**mode, **{option: wrong}).init_with_output(
            jax.random.key(0), X
        ),
    ]
    # `init` of a Linen layer does not update statistics, so the Linen call does not check
    # `running_correction`.
    for call in calls[:1] if option == "running_correction" else calls:
        with pytest.raises(TypeError, match=f"^{option} must be {message}"):
            call()


LENGTHS = "mean_x, var_x, mean_y, var_y must have the same length; got 3, 3, 2, 2"
EXCESS_LENGTHS = "mean_x, excess_x, mean_y, excess_y must have the same length; got 3, 3, 2, 2"
WRONG_SHAPES = {
    r"mask must have shape \(4,\), one boolean per sample, where any size may be 1 instead, or "
    r"have one more axis of size 1; got \(3,\)": [
        lambda: jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))(X, mask=jnp.ones(3, bool))
    ],
    r"axis must name axes of an array of shape \(4, 3\); got 5": [
        lambda: jaxnorm.unit_vector(X, axis=5),
        lambda: jaxnorm.unitize(X, 0.5, axis=5),
        lambda: jaxnorm.unitize_bounded(X, 0.5, axis=5),
    ],
    r"axis must name axes of an array of shape \(\); got -1": [
        lambda: jaxnorm.unit_vector(jnp.ones(()))
    ],
    "counts must be the two numbers of samples; got 1.0": [
        lambda: jaxnorm.merge_moments(jaxnorm.moments(X), jaxnorm.moments(X), counts=NUMBER)
    ],
    r"a and b must have the same features; got shapes \(3,\) and \(2,\)": [
        lambda: jaxnorm.merge_statistics(
            jaxnorm.batch_statistics(X), jaxnorm.batch_statistics(X[:, :2])
        ),
        lambda: jaxnorm.merge_moments(jaxnorm.moments(X), jaxnorm.moments(X[:, :2]), counts=(4, 4)),
    ],
    r"a and b must have the same features; got shapes \(3, 1\) and \(1, 3\)": [
        lambda: jaxnorm.merge_moments(
            jaxnorm.moments(X[:, :, None]), jaxnorm.moments(X[:, None]), counts=(4, 4)
        )
    ],
    r"x_weights must have shape \(4,\), one number per sample; got \(3,\)": [
        lambda: shift.emd(X, X, x_weights=ROW),
        lambda: shift.emd_1d(X, X, x_weights=ROW),
    ],
    r"y_weights must have shape \(4,\), one number per sample; got \(3,\)": [
        lambda: shift.emd(X, X, y_weights=ROW),
        lambda: shift.emd_1d(X, X, y_weights=ROW),
    ],
    r"mean_x must be a vector; got shape \(4, 3\)": [lambda: shift.moment_upper_bound(X, X, X, X)],
    LENGTHS: [
        lambda: shift.moment_upper_bound(ROW, ROW, SHORT, SHORT),
        lambda: shift.sharp_moment_upper_bound(ROW, ROW, SHORT, SHORT),
    ],
    EXCESS_LENGTHS: [
        lambda: shift.normalized_upper_bound(ROW, ROW, SHORT, SHORT),
        lambda: shift.normalized_lower_bound(ROW, ROW, SHORT, SHORT, radius=1),
    ],
    "mean_x, mean_y must have the same length; got 3, 2": [
        lambda: shift.mean_lower_bound(ROW, SHORT)
    ],
    r"x and y must have shape \(samples, features\); got \(1, 4, 3\)": [
        lambda: shift.sharp_unitized_upper_bound(0.5, X[None], X[None])
    ],
    r"before must have an axis of samples and an axis of features; got shape \(\)": [
        lambda: shift.layer_shift(SCALAR, SCALAR)
    ],
    r"mean_x must be a vector; got shape \(0,\)": [lambda: shift.mean_lower_bound(X[0, :0], ROW)],
    r"mean_y must be a vector; got shape \(1, 3\)": [lambda: shift.mean_lower_bound(ROW, X[:1])],
    r"x must have shape \(\.\.\., features\); got \(\)": [
        lambda: jaxnorm.dyt(SCALAR, 0.5),
        lambda: jaxnorm.derf(SCALAR, 0.5),
    ],
    r"x must have shape \(samples, \.\.\., features\); got \(3,\)": [
        lambda: jaxnorm.batch_norm(ROW),
        lambda: jaxnorm.batch_renorm(ROW),
    ],
    r"weights must not all be zero; their sum is 0$": [
        lambda: shift.emd(X, X[:2], y_weights=jnp.zeros(2))
    ],
    r"x must be images .*; got \(2, 8, 8, 2\)$": [
        lambda: jaxnorm.models.CifarResNet(8, classes=2, rngs=nnx.Rngs(0))(IMAGES[..., :2])
    ],
    r"alpha must be a scalar or have shape \(3,\); got \(2,\)": [
        lambda: shift.unitized_upper_bound(SHORT, X, X),
        lambda: shift.sharp_unitized_upper_bound(SHORT, X, X),
        lambda: shift.interpolated_upper_bound(SHORT, X, X),
        lambda: shift.dyt_bounds(SHORT, ROW),
        lambda: shift.derf_bounds(SHORT, ROW),
        lambda: shift.unitized_bounds(SHORT, ROW),
    ],
    r"alpha must be a scalar or have shape \(3,\); got \(3, 1\)": [
        lambda: shift.dyt_bounds(ROW[:, None], ROW),
        lambda: shift.unitized_bounds(ROW[:, None], ROW),
    ],
    r"alpha must be a scalar or a vector; got shape \(4, 3\)": [
        lambda: shift.unitized_upper_bound(X),
        lambda: shift.interpolated_upper_bound(X, X, X),
    ],
    r"alpha must have at least one number; got shape \(0,\)": [
        lambda: shift.unitized_upper_bound(X[0, :0])
    ],
    "x and y must be given together; got one of them": [
        lambda: shift.unitized_upper_bound(0.5, X),
        lambda: shift.unitized_upper_bound(0.5, y=X),
    ],
    r"scale must be a vector with one number per feature; got shape \(4, 3\)": [
        lambda: shift.layer_norm_bounds(X),
        lambda: shift.unitized_bounds(0.5, X),
    ],
    r"running\.mean must be a number or have shape \(3,\), .*; got shape \(2,\)": [
        lambda: jaxnorm.batch_renorm(X, running=jaxnorm.batch_statistics(X[:, :2]))
    ],
    **{
        rf"{name} must be a number or have shape \(3,\), one .*; got shape \(2,\)": calls
        for name, calls in {
            "alpha": [lambda: jaxnorm.dyt(X, SHORT), lambda: jaxnorm.derf(X, SHORT)],
            "offset": [lambda: jaxnorm.derf(X, 0.5, SHORT)],
            "scale": [
                lambda: jaxnorm.dyt(X, 0.5, SHORT),
                lambda: jaxnorm.derf(X, 0.5, 0.0, SHORT),
                lambda: jaxnorm.batch_renorm(X, SHORT),
            ],
            "bias": [
                lambda: jaxnorm.dyt(X, 0.5, 1.0, SHORT),
                lambda: jaxnorm.derf(X, 0.5, 0.0, 1.0, SHORT),
                lambda: jaxnorm.batch_renorm(X, 1.0, SHORT),
            ],
        }.items()
    },
    "a part of the batch must have samples on its first axis; got a scalar": [
        lambda: jaxnorm.nnx.microbatched(ANY_LOSS, 2)(conv_and_norm(), SCALAR)
    ],
    r"norm must act on the layer's 4 features along axis -1; got 4 along axis 1": [
        lambda: jaxnorm.nnx.fold(
            nnx.Linear(3, 4, rngs=nnx.Rngs(0)), jaxnorm.nnx.BatchNorm(4, axis=1, rngs=nnx.Rngs(0))
        )
    ],
}

WRONG_NUMBERS = {
    r"eps must lie in \[0, inf\]; got -1.0": [
        lambda: jaxnorm.rescale(X, eps=-1.0),
        lambda: jaxnorm.rescale_rms(X, eps=-1.0),
        lambda: jaxnorm.standardize(X, eps=-1.0),
        lambda: jaxnorm.batch_norm(X, eps=-1.0),
        lambda: jaxnorm.unitize(X, 0.5, eps=-1.0),
        lambda: jaxnorm.unitized_batch_norm(X, 0.5, eps=-1.0),
    ],
    r"epsilon must lie in \[0, inf\]; got -1.0": [
        lambda: jaxnorm.nnx.BatchNorm(3, epsilon=-1.0, rngs=nnx.Rngs(0)),
        lambda: updated(epsilon=-1.0),
    ],
    "eps must be finite; got inf": [
        lambda: jaxnorm.standardize(X, eps=np.inf),
        lambda: jaxnorm.batch_norm(X, eps=np.inf),
    ],
    "pixels must be finite; got inf": [
        lambda: jaxnorm.unitized_batch_norm(X, 0.5, pixels=np.inf),
        lambda: jaxnorm.nnx.UnitizedBatchNorm(3, pixels=np.inf, rngs=nnx.Rngs(0)),
    ],
    "radius must be finite; got inf": [lambda: shift.clipped_power(X, radius=np.inf)],
    "dims must be finite; got a larger int": [lambda: shift.mean_projection(10**400)],
    "dims must be at least 1; got 0.5": [lambda: shift.mean_projection(HALF_OF_ONE)],
    "var_x must not be negative; the lowest is -2": [
        lambda: shift.moment_upper_bound(ROW, -2 * ROW, ROW, ROW),
        lambda: shift.sharp_moment_upper_bound(ROW, -2 * ROW, ROW, ROW),
    ],
    r"1 \+ excess_x must not be negative; the lowest is -1": [
        lambda: shift.normalized_upper_bound(ROW, -2 * ROW, ROW, ROW)
    ],
    r"1 \+ excess_y must not be negative; the lowest is -1": [
        lambda: shift.normalized_upper_bound(ROW, ROW, ROW, -2 * ROW)
    ],
    "var_y must not be negative; the lowest is -2": [
        lambda: shift.moment_upper_bound(ROW, ROW, ROW, -2 * ROW),
        lambda: shift.sharp_moment_upper_bound(ROW, ROW, ROW, -2 * ROW),
    ],
    r"alpha must lie in \(0, 1\); got 0.0": [
        lambda: shift.interpolation_counterexample(0.0, length=1.0)
    ],
    r"alpha must lie in \(0, 1\); got nan": [
        lambda: shift.interpolation_counterexample(np.nan, length=1.0)
    ],
    "length must be positive and dims must be at least 1; got length 0.0 and dims 2": [
        lambda: shift.interpolation_counterexample(0.5, length=0.0, dims=2)
    ],
    "length must be positive and dims must be at least 1; got length nan and dims 1": [
        lambda: shift.interpolation_counterexample(0.5, length=np.nan)
    ],
    "length must be finite; got inf": [
        lambda: shift.interpolation_counterexample(0.5, length=np.inf)
    ],
    r"distance must lie in \[0, inf\]; got -0.5": [
        lambda: shift.certified_upper_bound(shift.dyt_bounds(0.5, ROW), jnp.asarray(-0.5))
    ],
    "distance must fit a float": [
        lambda: shift.certified_upper_bound(shift.dyt_bounds(0.5, ROW), 10**400)
    ],
    "r_max must be at least 1; got 0.5": [lambda: jaxnorm.batch_renorm(X, r_max=0.5)],
    "r_max must be at least 1; got nan": [lambda: jaxnorm.batch_renorm(X, r_max=np.nan)],
    r"d_max must lie in \[0, inf\]; got -1.0": [lambda: jaxnorm.batch_renorm(X, d_max=-1.0)],
    "clip must be positive; got nan": [
        lambda: shift.emd_critic(jax.random.key(0), X, X, X, X, clip=np.nan)
    ],
    "microbatches must be at least 1; got -2": [lambda: jaxnorm.nnx.microbatched(ANY_LOSS, -2)],
    r"x must be images \(samples, height, width, 3 channels\); got \(2, 3, 8, 8\); for channels": [
        lambda: jaxnorm.models.CifarResNet(8, classes=2, rngs=nnx.Rngs(0))(NCHW),
        lambda: jaxnorm.models.PreActResNet(8, classes=2, rngs=nnx.Rngs(0))(NCHW),
    ],
    r"x must be images \(samples, height, width, 3 channels\); got \(3,\)$": [
        lambda: jaxnorm.models.CifarResNet(8, classes=2, rngs=nnx.Rngs(0))(ROW),
        lambda: jaxnorm.models.PreActResNet(8, classes=2, rngs=nnx.Rngs(0))(ROW),
    ],
    r"x must be images \(samples, height, width, 3 channels\); got \(2, 3, 8\)$": [
        lambda: jaxnorm.models.CifarResNet(8, classes=2, rngs=nnx.Rngs(0))(NCHW[..., 0]),
        lambda: jaxnorm.models.PreActResNet(8, classes=2, rngs=nnx.Rngs(0))(NCHW[..., 0]),
    ],
    r"eps must lie in \[0, inf\]; got nan": [
        lambda: jaxnorm.standardize(X, eps=np.nan),
        lambda: jaxnorm.nnx.BatchNorm(3, eps=np.nan, rngs=nnx.Rngs(0)),
    ],
    r"epsilon must lie in \[0, inf\]; got nan": [
        lambda: jaxnorm.nnx.BatchNorm(3, epsilon=np.nan, rngs=nnx.Rngs(0))
    ],
    r"momentum must lie in \[0, 1.0\]; got 2.0": [
        lambda: jaxnorm.nnx.BatchNorm(3, momentum=2.0, rngs=nnx.Rngs(0)),
        lambda: updated(momentum=2.0),
    ],
}


def cases(table):
    return [(message, call) for message, calls in table.items() for call in calls]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("message", "call"), cases(WRONG_TYPES))
def test_an_argument_of_the_wrong_type_is_named(message, call):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("message", "call"), cases(WRONG_SHAPES | WRONG_NUMBERS))
def test_an_argument_of_the_wrong_value_is_named(message, call):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "call",
    [
        lambda n: jaxnorm.batch_norm(X, groups=n),
        lambda n: jaxnorm.batch_norm(X, recentering=n),
        lambda n: jaxnorm.unitized_batch_norm(X, 0.5, per_pixel=n),
        lambda n: shift.clipped_power(X, radius=2.0, p=n),
        lambda n: shift.emd_sliced(jax.random.key(0), X, X, projections=n),
    ],
)
def test_an_option_that_is_traced_names_the_cure(call):
    message = r"^\w+ must be .*; got a traced value: make it a static argument of jit\b"
    with pytest.raises(TypeError, match=message):
        jax.jit(call)(1)


@pytest.mark.usefixtures("unchecked")
def test_integers_are_refused_before_anything_is_promoted_to_float64():
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(TypeError, match=r"^x must be of a floating dtype; got int32"),
    ):
        jaxnorm.unitized_batch_norm(jnp.ones((4, 3), "int32"), jnp.full(3, 0.5, "float32"))


def test_python_numbers_are_taken_where_a_scalar_is():
    for number in (1, 1.0):
        array = jnp.asarray(number, float)
        for function in (jaxnorm.interpolated, jaxnorm.bounded):
            assert function(number, 4 * number) == function(array, 4 * array)
        np.testing.assert_array_equal(jaxnorm.unitize(X, number), jaxnorm.unitize(X, array))
    merged = jaxnorm.merge_moments(
        jaxnorm.Moments(*jnp.zeros(4)), jaxnorm.Moments(*jnp.ones(4)), counts=(1, 1)
    )
    assert isinstance(merged.mean, jax.Array)
    assert merged.mean == 0.5


LARGE = 2**40


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "call",
    [
        lambda n: jaxnorm.standardize(X, eps=n),
        lambda n: jaxnorm.rescale_rms(X, eps=n),
        lambda n: jaxnorm.batch_norm(X, eps=n)[0],
        lambda n: jaxnorm.unitize(X, 0.5, eps=n),
        lambda n: jaxnorm.unitized_batch_norm(X, 0.5, pixels=n)[0],
        lambda n: shift.clipped_power(X, radius=n),
        lambda n: shift.interpolation_counterexample(0.5, length=n)[2],
    ],
)
def test_a_python_integer_of_any_size_is_its_float(call):
    np.testing.assert_array_equal(call(LARGE), call(float(LARGE)))


@pytest.mark.parametrize(
    ("build", "sample"),
    [
        (partial(jaxnorm.models.MLP, inputs=12, widths=(3,)), (3, 4)),
        (partial(jaxnorm.models.MLP, inputs=1, widths=(1,)), ()),
        (partial(jaxnorm.models.PreActResNet, 8, channels=1), (8, 8, 1)),
        (partial(jaxnorm.models.CifarResNet, 8, channels=1), (8, 8, 1)),
        (partial(jaxnorm.models.ResNet, 18), (32, 32, 3)),
        (partial(jaxnorm.models.VGG, 11, hidden=(1,)), (224, 224, 3)),
        (partial(jaxnorm.models.VGG, 11, hidden=()), (32, 32, 3)),
    ],
)
def test_every_network_may_have_one_class_one_unit_and_no_sample(build, sample):
    def logits(x):
        return build(classes=1, rngs=nnx.Rngs(0))(x)

    assert nnx.eval_shape(logits, jnp.zeros((0, *sample), "float32")).shape == (0, 1)


FOREIGN = np.ones((4, 3)).astype(">f4")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "call",
    [
        lambda x: jaxnorm.standardize(x),
        lambda x: jaxnorm.moments(x),
        lambda x: jaxnorm.unit_vector(x),
        lambda x: jaxnorm.batch_norm(x),
        lambda x: jaxnorm.batch_statistics(x),
        lambda x: jaxnorm.bessel(x[0]),
        lambda x: jaxnorm.bounded(x[0], x[0]),
        lambda x: jaxnorm.interpolated(x[0], x[0]),
        lambda x: shift.emd_1d(x, x),
        lambda x: shift.emd_sliced(jax.random.key(0), x, x),
        lambda x: shift.emd(x, x),
        lambda x: shift.layer_shift(x, x),
        lambda x: shift.sharp_moment_upper_bound(x[0], x[0], x[0], x[0]),
        lambda x: shift.moment_upper_bound(x[0], x[0], x[0], x[0]),
        lambda x: shift.normalized_lower_bound(x[0], x[0], x[0], x[0], radius=1.0),
    ],
)
def test_an_array_of_another_byte_order_or_of_no_numbers_is_refused(call):
    call(FOREIGN.astype("float32"))
    with pytest.raises(TypeError, match=r"byte order; got >f4: give \w+.astype\('float32'\)|>f4"):
        call(FOREIGN)
    for kind in ("U4", "S4", "O", "M8[s]", [("real", "f4")]):
        with pytest.raises(TypeError, match=r"^\w+ must hold numbers; got"):
            call(FOREIGN.astype("float32").astype(kind))


def network(kind, **options):
    return lambda x: nnx.eval_shape(lambda x: kind(classes=2, rngs=nnx.Rngs(0), **options)(x), x)


def norm(**options: Any):
    given: dict[str, Any] = {"rngs": nnx.Rngs(0)} | options
    return jaxnorm.nnx.BatchNorm(3, **given)


def recalibrated(call):
    options = {} if call is None else {"call": call}
    jaxnorm.nnx.recalibrate(norm(), [(X.astype("float32"), ROW)], **options)


# For each function of one argument: a wrong argument. The error message names a correct argument.
CURES: dict[str, tuple[Any, Any]] = {
    "CifarResNet": (network(jaxnorm.models.CifarResNet, depth=8), NCHW),
    "PreActResNet": (network(jaxnorm.models.PreActResNet, depth=8), NCHW),
    "ResNet": (network(jaxnorm.models.ResNet, depth=18), NCHW),
    "VGG": (network(jaxnorm.models.VGG, depth=11, hidden=()), jnp.ones((2, 3, 32, 32), "float32")),
    "norm": (lambda norm: jaxnorm.models.MLP(classes=2, norm=norm, rngs=nnx.Rngs(0)), "batch"),
    "byte order": (jaxnorm.standardize, np.ones((4, 3), ">f4")),
    "where": (lambda where: jaxnorm.batch_norm(X, where=where), jnp.ones(4)),
    "mask": (lambda mask: norm()(X, mask=mask), jnp.ones(4)),
    "call": (recalibrated, None),
    "microbatches": (
        lambda model: jaxnorm.nnx.microbatched(lambda model, x: model(x).mean(), 2)(model, X),
        nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
    ),
    "rngs": (lambda rngs: norm(rngs=rngs), 0),
    "dtype": (lambda dtype: norm(dtype=dtype)(X), int),
    "initializer": (lambda init: norm(scale_init=init), 0.5),
    "initializer of Linen": (
        lambda init: jaxnorm.linen.DyT(scale_init=init).init(jax.random.key(0), X),
        0.5,
    ),
    "correction": (lambda correction: norm(correction=correction)(X), 1.1),
    "running_correction": (lambda correction: norm(running_correction=correction)(X), 1.1),
    "factor": (lambda factor: jaxnorm.unitized_batch_norm(X, 0.5, factor=factor), "bounded"),
    "transform": (
        lambda f: jaxnorm.nnx.Unitization(3, transform=f, rngs=nnx.Rngs(0))(X),
        "unitize",
    ),
    "key": (lambda key: shift.emd_sliced(key, X, X, projections=2), 0),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CURES)
def test_the_cure_that_a_message_names_is_one(name):
    call, wrong = CURES[name]
    with pytest.raises((TypeError, ValueError)) as raised:
        call(wrong)
    before = r"\b(such as( by call=)?|give|convert by|pass|first call) ?"
    cure = re.search(rf"{before}(?P<code>.+?)(; got .*)?$", str(raised.value))
    assert cure
    names = {"jax": jax, "jnp": jnp, "nnx": nnx, "linen": linen, "jaxnorm": jaxnorm}
    names |= {"x": wrong, "where": wrong, "mask": wrong, "model": wrong}
    call(eval(cure["code"], names))


def test_the_functions_name_of_epsilon_does_for_layers_too():
    x = jax.random.normal(jax.random.key(0), (6, 3))
    unitized = partial(jaxnorm.unitized_batch_norm, alpha=0.0)
    for name, function in (("BatchNorm", jaxnorm.batch_norm), ("UnitizedBatchNorm", unitized)):
        layer = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0), eps=0.5)
        assert layer.epsilon == 0.5
        expected, _ = function(x, eps=0.5)
        np.testing.assert_array_equal(layer(x), expected)
        for option in ({"eps": 0.5}, {"epsilon": 0.5}):
            linen = getattr(jaxnorm.linen, name)(use_running_average=False, **option)
            np.testing.assert_array_equal(linen.init_with_output(jax.random.key(0), x)[0], expected)


FITTING: dict[str, list[Any]] = {
    "norm": [
        lambda width, rngs: width,
        lambda width, depth=2, *rest, rngs, eps=1e-5, **options: width,
        lambda *args, **options: args,
        partial(lambda width, depth, *, rngs, eps: width, depth=2, eps=1e-5),
    ],
    "outputs": [
        lambda state, x: x,
        lambda state, x, key=None, *rest, eps=1e-5, **options: x,
        lambda *args: args,
        partial(lambda state, x, key, *, eps: x, key=None, eps=1e-5),
    ],
}
UNFIT: dict[str, dict[str, Any]] = {
    "norm must be a function of a width and rngs; got <lambda>": {
        "()": lambda: 0,
        "(width)": lambda width: width,
        "(rngs)": lambda *, rngs: rngs,
        "(width, depth, rngs)": lambda width, depth, *, rngs: width,
        "(width, rngs, depth)": lambda width, rngs, depth: width,
        "(width, rngs, eps): set eps by functools.partial": lambda width, *, rngs, eps: width,
        "(width, rngs, eps, axis, depth): set eps, axis by functools.partial": (
            lambda width, *, rngs, eps, axis, depth=2: width
        ),
    },
    "outputs must be a function of a state and inputs; got <lambda>": {
        "()": lambda: 0,
        "(state)": lambda state: state,
        "(state, x, key)": lambda state, x, key: x,
        "(state, x, key): set key by functools.partial": lambda state, x, *, key: x,
    },
}


@pytest.mark.usefixtures("unchecked")
def test_a_function_is_taken_if_it_needs_no_fewer_and_no_more_arguments_than_it_gets():
    check = {"norm": check_norm, "outputs": lambda f: shift.Tracker(f, X)}
    for name, functions in FITTING.items():
        for function in functions:
            check[name](function)
    for message, functions in UNFIT.items():
        for parameters, function in functions.items():
            with pytest.raises(TypeError, match=f"^{re.escape(message + parameters)}$"):
                check[message.split()[0]](function)


def running_mean_of_nnx(x, keep):
    layer = jaxnorm.nnx.BatchNorm(3, momentum=0.0, param_dtype="float64", rngs=nnx.Rngs(0))
    layer(x, mask=keep)
    return layer.mean[...]


def running_mean_of_linen(x, keep):
    layer = jaxnorm.linen.BatchNorm(False, momentum=0.0, param_dtype="float64")
    variables = layer.init(jax.random.key(0), x)
    return layer.apply(variables, x, mask=keep, mutable="batch_stats")[1]["batch_stats"]["mean"]


KEPT = [1, 0, 1, 1, 0, 1]
MASKED = {
    "batch_statistics": lambda x, keep: jaxnorm.batch_statistics(x, where=keep).mean,
    "batch_norm": lambda x, keep: jaxnorm.batch_norm(x, where=keep)[1].mean,
    "batch_renorm": lambda x, keep: jaxnorm.batch_renorm(x, where=keep)[1].mean,
    "unitized_batch_norm": lambda x, keep: jaxnorm.unitized_batch_norm(x, 0.5, where=keep)[1].mean,
    "nnx": running_mean_of_nnx,
    "linen": running_mean_of_linen,
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_may_be_a_boolean_numpy_array(name):
    x, keep = np.random.default_rng(0).normal(size=(6, 3)), np.array(KEPT, bool)
    found = jax.jit(lambda x: MASKED[name](x, keep))(jnp.asarray(x))
    np.testing.assert_allclose(found, x[keep].mean(0), rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float32"])
def test_weights_and_parameters_may_be_numpy_arrays_of_any_real_dtype(dtype):
    x, y = np.random.default_rng(0).normal(size=(2, 6, 3))
    weights: Any = np.array(KEPT, dtype)
    few: Any = np.array([1, 0, 1], dtype)

    @jax.jit
    def results(x, y):
        distance = shift.emd_1d(x, y, x_weights=weights)
        return distance, jaxnorm.unitize(x, few), jaxnorm.batch_norm(x, few)[0]

    distance = [scipy.stats.wasserstein_distance(a, b, KEPT) for a, b in zip(x.T, y.T, strict=True)]
    unitized = np.where(few, x / np.sqrt(np.square(x).sum(1, keepdims=True) + 1e-5), x)
    normalized = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * [1, 0, 1]
    expected = distance, unitized, normalized
    for found, known in zip(results(jnp.asarray(x), jnp.asarray(y)), expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-10)


@pytest.mark.parametrize("check", [check_eps, check_positive, check_range])
def test_one_number_may_be_an_array_with_axes_of_size_one(check):
    for shape in ((), (1,), (1, 1)):
        for array in (np.full(shape, 0.5), jnp.full(shape, 0.5)):
            assert check(array, "x") is (None if check is check_range else array)
            with pytest.raises(ValueError, match=r"^x must .*; got"):
                check(-array, "x")
    for shape in ((0,), (2,), (1, 2)):
        message = f"^x must be one number; got shape {re.escape(str(shape))}$"
        for array in (np.full(shape, 0.5), jnp.full(shape, 0.5)):
            with pytest.raises(ValueError, match=message):
                check(array, "x")


class Folder:
    """A path of another library, such as a temporary folder of pytest or a path in a cloud."""

    def __fspath__(self) -> str:
        return "out/net"


def test_a_path_is_a_string_or_anything_with_a_path():
    for path in ("out/net", Path("out/net"), PurePosixPath("out/net"), Folder()):
        assert as_path(path, "path") == Path("out/net")
    for other in (None, 3, b"out/net", ["out/net"]):
        with pytest.raises(TypeError, match=r"^path must be a path, such as 'out/net'; got "):
            as_path(other, "path")
