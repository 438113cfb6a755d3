"""The layers in NumPy and float64, one group and one sample at a time.

The functions, the NNX layers and the Linen layers are each compared with this reference, so they
need not be compared with each other. The values are chosen such that they hide no mistake: running
means are between −4 and 3, variances are between 0.3 and 9, and images are not square. Parameters
differ between channels, and masks differ between samples. Parameters are numbers that bfloat16
represents exactly.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jaxnorm
from tests.support.all_pairs import all_pairs

CHANNELS = 5
MEAN, VAR = np.array([3.0, -1.0, 0.5, 2.0, -4.0]), np.array([5.0, 0.3, 2.0, 0.7, 9.0])
SCALE, BIAS, ALPHA = (
    np.asarray(jnp.asarray(values, "bfloat16"), np.float64)
    for values in (
        [1.5, 0.4, -2.0, 0.9, 3.0],
        [0.2, -1.0, 4.0, -0.3, 1.1],
        [0.3, 0.8, 0.55, 0.2, 0.7],
    )
)
DTYPES = ["float32", "bfloat16", "float16", "float64"]  # dtypes of inputs
SHAPES = {"images": (8, 4, 3, CHANNELS), "vectors": (8, CHANNELS)}
OWN: dict[str, dict[str, list[Any]]] = {
    "BatchNorm": {"recentering": [True, False], "rescaling": [True, False]},
    "UnitizedBatchNorm": {
        "pixels": [None, 2.5],
        "per_pixel": [False, True],
        "factor": [jaxnorm.interpolated, jaxnorm.bounded],
    },
    "BatchRenorm": {"r_max": [3.0, 1.2], "d_max": [5.0, 0.1]},
}
COMMON: dict[str, list[Any]] = {
    "epsilon": [1e-3, 0.4],
    "axis": [-1, 1],
    "momentum": [0.9, 0.3],
    "dtype": [None, "float32", "bfloat16", "float16"],
    "param_dtype": ["float32", "bfloat16"],
    "use_scale": [True, False],
    "use_bias": [True, False],
    "correction": [None, partial(jaxnorm.bessel, eps=0.5)],
    "running_correction": [jaxnorm.bessel, jnp.ones_like, partial(jaxnorm.bessel, eps=0.5)],
    "groups": [1, 2, 4],
    "use_running_average": [False, True],
    "update_running_average": [None, True, False],
}
CALLED = {
    "shape": list(SHAPES),
    "mask": [None, "samples", "pixels", "first group", "nothing"],
    "said": ["at construction", "at the call"],  # where a test sets `use_running_average`
    "update at the call": [None, True, False],
    "dtype of x": DTYPES,
}
ELSEWHERE = {  # options that other tests check
    *("bias_init", "scale_init", "alpha_init", "axis_name", "axis_index_groups"),
    *("bias_metadata", "scale_metadata", "alpha_metadata", "eps", "rngs", "num_features"),
    *("_", "self", "parent", "name"),
}


class Case(NamedTuple):
    """The options of a layer, the arguments of a call, and the result of NumPy."""

    name: str
    options: dict[str, Any]
    call: dict[str, Any]
    x: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    var: np.ndarray

    def __str__(self) -> str:
        given = {**self.options, **{k: v for k, v in self.call.items() if k != "mask"}}
        return f"{self.name}-" + "-".join(str(getattr(v, "__name__", v)) for v in given.values())


def cases(name: str, layer: type) -> list[Case]:
    """Cases in which every pair of values of two options or arguments occurs."""
    factors = COMMON | OWN[name]
    assert set(inspect.signature(layer.__init__).parameters) - ELSEWHERE == set(factors)
    return [_case(name, set(factors), row) for row in all_pairs(factors | CALLED)]


def _case(name: str, options: set[str], row: dict[str, Any]) -> Case:
    rng = np.random.default_rng(0)
    x = _samples(rng, row)
    keep = _kept(row["mask"], x.shape[:-1], row["groups"])
    own = {option: row[option] for option in options}
    call: dict[str, Any] = {"update_running_average": row["update at the call"]}
    if row["said"] == "at the call":
        call["use_running_average"] = own.pop("use_running_average")
    update = row["update at the call"]
    update = row["update_running_average"] if update is None else update
    update = not row["use_running_average"] if update is None else update
    whole = {**row, "update_running_average": update}
    y, mean, var = reference(name, x.astype(np.float64), keep, whole)
    axis = row["axis"] if x.ndim > 2 else -1
    if keep is not None:
        call["mask"] = _mask(row["mask"], keep, axis)
    return Case(name, own, call, np.moveaxis(x, -1, axis), np.moveaxis(y, -1, axis), mean, var)


def _samples(rng: np.random.Generator, row: dict[str, Any]) -> np.ndarray:
    x = rng.gamma(2.0, size=SHAPES[row["shape"]]) * np.array([1.0, 3.0, 0.5, 2.0, 1.0]) + MEAN / 2
    return np.asarray(jnp.asarray(x, row["dtype of x"]))


class Call(NamedTuple):
    """The arguments of a function, and the output and the statistics of each group by NumPy."""

    x: np.ndarray
    where: np.ndarray | None
    options: dict[str, Any]
    inference: bool
    y: np.ndarray
    mean: np.ndarray
    var: np.ndarray
    samples: np.ndarray


def calls(name: str, function: Callable[..., Any], groups: list[int]) -> list[Call]:
    """Calls in which every pair of values of two options occurs, in training and in inference."""
    factors = {k: COMMON[k] for k in ("correction", "use_scale", "use_bias")} | {"groups": groups}
    factors |= {"eps": COMMON["epsilon"], "inference": [False, True]} | OWN[name]
    known = set(factors) - {"use_scale", "use_bias", "inference"}
    left_out = {"x", "alpha", "scale", "bias", "statistics", "where", "running"}
    left_out |= {"axis_name", "axis_index_groups"}
    assert set(inspect.signature(function).parameters) - left_out == known
    factors |= {name: CALLED[name] for name in ("shape", "mask", "dtype of x")}
    return [_call(name, known, row) for row in all_pairs(factors)]


def _call(name: str, options: set[str], row: dict[str, Any]) -> Call:
    rng = np.random.default_rng(2)
    given_x = _samples(rng, row)
    x = given_x.astype(np.float64)
    keep = _kept(row["mask"], x.shape[:-1], row["groups"])
    whole = {
        **row,
        "epsilon": row["eps"],
        "use_running_average": row["inference"],
        "update_running_average": False,
    }
    if row["inference"]:
        whole["groups"] = 1
    y, *_ = reference(name, x, keep, whole)
    counted = np.ones(x.shape[:-1], bool) if keep is None else keep
    parts = zip(np.split(x, row["groups"]), np.split(counted, row["groups"]), strict=True)
    mean, var, count = map(np.array, zip(*(_moments(a[k]) for a, k in parts), strict=True))
    if row["groups"] == 1:
        mean, var, count = mean[0], var[0], count[0]
    if row["inference"]:
        mean, var, count = MEAN, VAR, np.array(7.0)
    given = {option: row[option] for option in options}
    given |= {"scale": SCALE} if row["use_scale"] else {}
    given |= {"bias": BIAS} if row["use_bias"] else {}
    where = keep if row["mask"] != "pixels" or keep is None else keep[..., None]
    return Call(given_x, where, given, row["inference"], y, mean, var, count)


def _kept(mask: str | None, shape: tuple[int, ...], groups: int) -> np.ndarray | None:
    """For each sample or pixel, whether it counts; None if there is no mask."""
    random = np.random.default_rng(1).random(shape) < 0.7
    if mask is None:
        return None
    if mask == "nothing":
        return np.zeros(shape, bool)
    if mask == "first group":
        random[: shape[0] // groups] = False
    elif mask == "samples":
        random[:] = (np.arange(shape[0]) % 4 != 1).reshape(-1, *(1 for _ in shape[1:]))
    return random


def _mask(mask: str, keep: np.ndarray, axis: int) -> np.ndarray:
    """The mask in the shape that the layer accepts, in some cases with a feature axis of size 1."""
    return np.expand_dims(keep, axis) if mask in ("pixels", "first group") else keep


def reference(
    name: str, x: np.ndarray, keep: np.ndarray | None, o: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The output and the running mean and variance after the call, with features last."""
    scale = SCALE if o["use_scale"] else np.ones(CHANNELS)
    bias = BIAS if o["use_bias"] else np.zeros(CHANNELS)
    counted = np.ones(x.shape[:-1], bool) if keep is None else keep
    size = len(x) // o["groups"]
    groups = [slice(i, i + size) for i in range(0, len(x), size)]
    moments = [_moments(x[g][counted[g]]) for g in groups]
    y = np.empty_like(x)
    for rows, (mean, var, n) in zip(groups, moments, strict=True):
        if o["use_running_average"]:
            mean, var = MEAN, VAR
        elif o["correction"] is not None:
            var = var * float(o["correction"](float(n)))
        y[rows] = scale * normalized(name, x[rows], counted[rows], mean, var, o) + bias
    if not o["update_running_average"]:
        return y, MEAN, VAR
    total = sum(n for *_, n in moments)
    if not total:
        return y, MEAN, VAR
    corrected = [v * float(o["running_correction"](jnp.asarray(float(n)))) for _, v, n in moments]
    mean = sum(n / total * m for m, _, n in moments)
    var = sum(n / total * v for v, (*_, n) in zip(corrected, moments, strict=True))
    old = o["momentum"]
    return y, old * MEAN + (1 - old) * mean, old * VAR + (1 - old) * var


def _moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    if not len(samples):
        return np.zeros(CHANNELS), np.zeros(CHANNELS), 0
    return samples.mean(0), samples.var(0), len(samples)


def normalized(
    name: str, x: np.ndarray, keep: np.ndarray, mean: np.ndarray, var: np.ndarray, o: dict[str, Any]
) -> np.ndarray:
    """The normalized elements of one group, before scale and bias."""
    eps = o["epsilon"]
    std = np.sqrt(var + eps)
    if name == "BatchNorm":
        return (x - mean * o["recentering"]) / (std if o["rescaling"] else 1)
    if name == "UnitizedBatchNorm":
        return np.stack([_unitized(*pair, o) for pair in zip((x - mean) / std, keep, strict=True)])
    if o["use_running_average"]:
        return (x - mean) / std
    running = np.sqrt(VAR + eps)
    r = np.clip(std / running, 1 / o["r_max"], o["r_max"])
    d = np.clip((mean - MEAN) / running, -o["d_max"], o["d_max"])
    return (x - mean) / std * r + d


def _unitized(sample: np.ndarray, keep: np.ndarray, o: dict[str, Any]) -> np.ndarray:
    """One sample after unitization by the norm of its unmasked pixels or of each pixel."""
    factor: Callable[..., np.ndarray] = eq_10 if o["factor"] is jaxnorm.interpolated else eq_9
    squares = (sample**2).sum(-1, keepdims=True)
    if o["per_pixel"] or sample.ndim == 1:
        square = squares / (o["pixels"] or 1)
    else:
        area = keep if keep.any() else np.ones_like(keep)
        pixels = o["pixels"] or keep.size
        square = squares[area].sum() / (pixels * area.sum())
    return factor(ALPHA, square + o["epsilon"]) * sample


def eq_10(alpha: np.ndarray, square: Any) -> np.ndarray:
    return alpha / np.sqrt(square) + 1 - alpha


def eq_9(alpha: np.ndarray, square: Any) -> np.ndarray:
    return 1 / (alpha * np.sqrt(square) + 1 - alpha)


STATELESS: dict[str, dict[str, list[Any]]] = {
    "DyT": {"alpha_init": [0.5, 1.75]},
    "Derf": {"alpha_init": [0.5, 1.75], "offset_init": [0.0, -0.625]},
    "Unitization": {
        "alpha_init": [1.0, ALPHA],
        "transform": [jaxnorm.unitize, jaxnorm.unitize_bounded],
    },
}


def stateless_cases(name: str, layer: type) -> list[tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    """Options, input and NumPy's output of a layer without statistics.

    Every pair of values of two options occurs.
    """
    common = ("dtype", "param_dtype", "use_scale", "use_bias")
    factors = {k: COMMON[k] for k in common} | STATELESS[name]
    known = (ELSEWHERE - {"alpha_init", "axis_name", "axis_index_groups"}) | {"offset_metadata"}
    assert set(inspect.signature(layer.__init__).parameters) - known == set(factors)
    found = []
    for row in all_pairs(factors | {"shape": list(SHAPES), "dtype of x": DTYPES}):
        x = np.random.default_rng(3).normal(1, 2, SHAPES[row.pop("shape")])
        x = np.asarray(jnp.asarray(x, row.pop("dtype of x")))
        scale = SCALE if row["use_scale"] else 1.0
        bias = BIAS if row["use_bias"] else 0.0
        y = scale * _stateless(name, x.astype(np.float64), row) + bias
        init = {k: starting_at(v) for k, v in row.items() if k.endswith("_init")}
        init |= {"scale_init": starting_at(SCALE), "bias_init": starting_at(BIAS)}
        found.append((row | init, x, y))
    return found


def _stateless(name: str, x: np.ndarray, o: dict[str, Any]) -> np.ndarray:
    if name == "DyT":
        return np.tanh(o["alpha_init"] * x)
    if name == "Derf":
        return np.vectorize(math.erf)(o["alpha_init"] * x + o["offset_init"])
    alpha, square = o["alpha_init"], (x**2).sum(-1, keepdims=True)
    if o["transform"] is jaxnorm.unitize:
        return eq_10(alpha, square + 1e-5) * x
    return eq_9(alpha, square) * x


def starting_at(values: Any) -> Callable[..., Any]:
    return lambda key, shape, dtype: jnp.broadcast_to(jnp.asarray(values, dtype), shape)


def arguments(case: Case) -> dict[str, Any]:
    """The options of the layer's constructor, with parameters that differ between channels."""
    init = {"scale_init": SCALE, "bias_init": BIAS}
    if case.name == "UnitizedBatchNorm":
        init["alpha_init"] = ALPHA
    axis = {"axis": -1} if case.x.ndim == 2 else {}
    return case.options | axis | {name: starting_at(values) for name, values in init.items()}


def called_with(case: Case) -> tuple[Any, dict[str, Any]]:
    """The input and the options of the call."""
    call = {k: jnp.asarray(v) if k == "mask" else v for k, v in case.call.items()}
    return jnp.asarray(case.x), call


def assert_outcome(case: Case, y: Any, mean: Any, var: Any) -> None:
    """Assert that output and running statistics equal the reference and have the right dtypes."""
    assert mean.dtype == var.dtype == "float32"
    assert_rounded_once(y, case.y, case.options["dtype"] or case.x.dtype)
    np.testing.assert_allclose(mean, case.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(var, case.var, rtol=1e-6)


def assert_rounded_once(y: Any, exact: np.ndarray, dtype: Any, *, tolerance: float = 2e-5) -> None:
    """Assert that `y` is `exact`, computed in at least float32 and then rounded to `dtype`."""
    assert y.dtype == dtype
    rounding = float(jnp.finfo(y.dtype).eps) / 2
    found = np.asarray(y, np.float64)
    np.testing.assert_allclose(found, exact, rtol=tolerance + rounding, atol=tolerance)
