"""Bounds on the earth mover distance that follow from the parameters of a normalizer.

The bounds W′ ≤ min(2M, L W) extend Theorems 3.1 to 3.3 of the unitization paper to other
normalizers. W is the distance between two distributions of inputs, and W′ is the distance between
their outputs. All outputs lie within the radius M of the bias, and L is a Lipschitz constant of the
layer.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import jaxnorm
from claims.draws import generator
from claims.unitization._pairs import FEATURES, distances, distances_of_outputs, excess, pairs
from geometry.claims import Cases, Claim, Values
from jaxnorm import shift
from jaxnorm.shift import LayerBounds

claim = partial(Claim, "jaxnorm")

EPS = 1e-2  # The eps that layer norm and RMS norm use here.
# M is the largest distance between an output and the bias, and L is the Lipschitz constant of the
# layer. FAR scales two opposite points. At this scale, the distance of the outputs is nearly the
# bound 2M. Two steps of ±NEAR times a direction lead from a point to two near points. The distance
# between the outputs of these points is nearly L times the distance of the points.
FAR, NEAR = 1e6, 1e-6


class Layer(NamedTuple):
    """A normalization layer, its parameters, and the constants M and L of its bounds."""

    apply: Callable[[Array], Array]
    bounds: LayerBounds


def affine(x: Array, scale: Array, bias: Array) -> Array:
    scale, bias = (jnp.broadcast_to(part, x.shape) for part in (scale, bias))
    return scale * x + bias


def layer_norm(scale: Array, bias: Array) -> Layer:
    def apply(x: Array) -> Array:
        return affine(jaxnorm.standardize(x, axis=-1, eps=EPS), scale, bias)

    return Layer(apply, shift.layer_norm_bounds(scale, eps=EPS))


def rms_norm(scale: Array, bias: Array) -> Layer:
    def apply(x: Array) -> Array:
        root_mean_square = jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + EPS)
        return affine(x / root_mean_square, scale, bias)

    return Layer(apply, shift.rms_norm_bounds(scale, eps=EPS))


def dyt(scale: Array, bias: Array, alpha: Array) -> Layer:
    def apply(x: Array) -> Array:
        return jaxnorm.dyt(x, alpha, scale, bias)

    return Layer(apply, shift.dyt_bounds(alpha, scale))


def derf(scale: Array, bias: Array, alpha: Array, offset: Array) -> Layer:
    def apply(x: Array) -> Array:
        return jaxnorm.derf(x, alpha, offset, scale, bias)

    return Layer(apply, shift.derf_bounds(alpha, scale))


def unitized(scale: Array, bias: Array, alpha: Array) -> Layer:
    def apply(x: Array) -> Array:
        return affine(jaxnorm.unitize_bounded(x, alpha), scale, bias)

    return Layer(apply, shift.unitized_bounds(alpha, scale))


def parameters(key: Key[Array, ""]) -> tuple[Array, Array, Array, Array]:
    """Scale, bias, alpha and offset of a layer, each with one number per feature."""
    rng = generator(key)
    scale, bias, offset = map(jnp.asarray, rng.normal(size=(3, FEATURES)))
    return scale, bias, jnp.asarray(rng.uniform(0.1, 0.9, FEATURES)), offset


def excesses(key: Key[Array, ""], layer: Layer) -> np.ndarray:
    """For many pairs of inputs, by how much the outputs' distance exceeds min(2M, L W), relatively.

    A pair has two samples of a heavy-tailed distribution, or a point and the opposite point.
    """
    x, y = pairs(key)
    outputs = distances_of_outputs(x, y, jax.jit(layer.apply))
    bound = jax.vmap(partial(shift.certified_upper_bound, layer.bounds))
    return excess(outputs, np.asarray(bound(jnp.asarray(distances(x, y)))))


def apart(layer: Layer, x: Array, y: Array) -> float:
    """The distance between the outputs of two points."""
    return float(jnp.linalg.norm(layer.apply(x[None]) - layer.apply(y[None])))


def attained(layer: Layer, far: Array, near: Array, origin: Array | float = 0.0) -> list[float]:
    """How closely a layer reaches its two bounds, as distance / bound − 1 for each bound.

    The first distance is between the outputs of a far point and of its negative, and is at most 2M.
    The second distance is between the outputs of two points near `origin`, and is at most L W.
    """
    origin = origin + jnp.zeros_like(near)
    lengths = 2 * NEAR * float(jnp.linalg.norm(near)) * float(layer.bounds.lipschitz)
    return [
        apart(layer, FAR * far, -FAR * far) / float(2 * layer.bounds.radius) - 1,
        apart(layer, origin + NEAR * near, origin - NEAR * near) / lengths - 1,
    ]


def steepest_without_mean(scale: np.ndarray) -> np.ndarray:
    """The unit vector u with mean 0 and the largest ‖γ u‖, where γ is `scale`."""
    d = len(scale)
    project = np.eye(d) - 1 / d
    return np.linalg.eigh(project @ np.diag(scale**2) @ project)[1][:, -1]


def several(key: Key[Array, ""]) -> Iterator[tuple[Array, Array, Array, Array]]:
    for part in jax.random.split(key, 10):
        yield parameters(part)


LAYER_NORM = claim(
    "Layer norm",
    r"The distance $W'$ of outputs is at most $\min(2 \sqrt{d} s, s W / \sqrt{\epsilon})$ for "
    "inputs at the distance $W$, where $s$ is the norm of the scales on vectors of mean zero; "
    "both bounds are attained",
    why=r"Before the scales, outputs have mean zero and a norm below $\sqrt d$. The layer is "
    r"steepest where the variance vanishes: there, its slope is $1/\sqrt\epsilon$ in every "
    "direction of mean zero. The direction that the scales make longest, with both signs, "
    "attains both bounds.",
)


@LAYER_NORM.at_most("heavy-tailed and opposite points")
def _(key: Key[Array, ""]) -> Values:
    return excesses(key, layer_norm(*parameters(key)[:2]))


@LAYER_NORM.equal("2M by points far apart, L W by points next to zero", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Cases:
    for scale, bias, *_ in several(key):
        direction = jnp.asarray(steepest_without_mean(np.asarray(scale)))
        yield attained(layer_norm(scale, bias), direction, direction)


@LAYER_NORM.equal("√(2d) for outputs whose means vanish, of equal scales")
def _() -> Cases:
    for d in (4, 16, 64):
        signs = (-1.0) ** np.arange(d)
        pair = (np.stack([z, -z])[None] for z in (signs, signs * np.repeat([1, -1], d // 2)))
        x, y = (FAR * z for z in pair)
        layer = layer_norm(jnp.ones(d), jnp.zeros(d))
        yield distances_of_outputs(x, y, layer.apply) / (2 * d) ** 0.5 - 1


RMS_NORM = claim(
    "RMS norm",
    r"$W' \le \min(2 \sqrt{d} \max|\gamma|, \max|\gamma| W / \sqrt{\epsilon})$; both are attained",
    why="The proof is that of layer norm without the mean: a point along the feature with the "
    "largest scale attains the bounds.",
)


@RMS_NORM.at_most("heavy-tailed and opposite points")
def _(key: Key[Array, ""]) -> Values:
    return excesses(key, rms_norm(*parameters(key)[:2]))


@RMS_NORM.equal("2M by points far apart, L W by points next to zero", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Cases:
    for scale, bias, *_ in several(key):
        direction = jnp.eye(FEATURES)[jnp.abs(scale).argmax()]
        yield attained(rms_norm(scale, bias), direction, direction)


@RMS_NORM.equal("√(2d) for outputs whose means vanish, of equal scales")
def _() -> Cases:
    for d in (2, 16, 64):
        pair = (np.stack([z, -z])[None] for z in (np.ones(d), (-1.0) ** np.arange(d)))
        x, y = (FAR * z for z in pair)
        layer = rms_norm(jnp.ones(d), jnp.zeros(d))
        yield distances_of_outputs(x, y, layer.apply) / (2 * d) ** 0.5 - 1


DYT = claim(
    "DyT",
    r"$W' \le \min(2 \|\gamma\|, \max|\alpha \gamma| W)$; both are attained",
    why=r"Every element of the output is within $|\gamma|$ of the bias. The slope is largest at "
    r"zero, where it is $\alpha\gamma$.",
)


@DYT.at_most("heavy-tailed and opposite points")
def _(key: Key[Array, ""]) -> Values:
    scale, bias, alpha, _ = parameters(key)
    return excesses(key, dyt(scale, bias, alpha))


@DYT.equal("2M by points far apart, L W by points next to zero", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Cases:
    for scale, bias, alpha, _ in several(key):
        steepest = jnp.eye(FEATURES)[jnp.abs(alpha * scale).argmax()]
        yield attained(dyt(scale, bias, alpha), jnp.ones(FEATURES), steepest)


DERF = claim(
    "Derf",
    r"$W' \le \min(2 \|\gamma\|, (2/\sqrt{\pi}) \max|\alpha \gamma| W)$; both are attained",
    why=r"The slope of erf is largest at zero, where it is $2/\sqrt\pi$. The offset only moves "
    "the point at which the slope is largest.",
)


@DERF.at_most("heavy-tailed and opposite points")
def _(key: Key[Array, ""]) -> Values:
    scale, bias, alpha, offset = parameters(key)
    return excesses(key, derf(scale, bias, alpha, offset))


@DERF.equal("2M by points far apart, L W by points where α x = −s", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Cases:
    for scale, bias, alpha, offset in several(key):
        steepest = jnp.eye(FEATURES)[jnp.abs(alpha * scale).argmax()]
        layer = derf(scale, bias, alpha, offset)
        yield attained(layer, jnp.ones(FEATURES), steepest, -offset / alpha)


@DERF.at_most("DyT's constant ‖αγ‖∞ is enough", form="overread")
def _(key: Key[Array, ""]) -> Cases:
    for scale, bias, alpha, offset in several(key):
        steepest = jnp.eye(FEATURES)[jnp.abs(alpha * scale).argmax()]
        layer = derf(scale, bias, alpha, offset)
        smaller = layer._replace(bounds=shift.dyt_bounds(alpha, scale))
        yield attained(smaller, jnp.ones(FEATURES), steepest, -offset / alpha)[1:]


UNITIZED = claim(
    "Unitized with scale and bias",
    r"For Eq. 8, $W' \le \min(2 \max|\gamma/\alpha|, \max|\gamma/(1 - \alpha)| W)$. For Eq. 9, "
    r"the second bound is multiplied by $5/4$. With one $\alpha$, both bounds are attained; with "
    r"several $\alpha$, the first is attained",
    why=r"The factor of $x$ falls as the norm of $x$ grows, from $1/(1 - \alpha)$ at zero to "
    r"$1/(\alpha\|x\|)$. With several $\alpha$, the Jacobian is not symmetric, and its norm is "
    "at most $5/4$ of the norm at zero.",
)


@UNITIZED.at_most("heavy-tailed and opposite points, one α and one per feature")
def _(key: Key[Array, ""]) -> Values:
    scale, bias, alpha, _ = parameters(key)
    return [excesses(key, unitized(scale, bias, a)) for a in (alpha, alpha[0])]


@UNITIZED.equal("2M by points far apart, L W by points next to zero", tolerance=2e-5)
def _(key: Key[Array, ""]) -> Cases:
    for scale, bias, alpha, _ in several(key):
        longest = jnp.eye(FEATURES)[jnp.abs(scale / alpha).argmax()]
        largest = jnp.eye(FEATURES)[jnp.abs(scale).argmax()]
        yield attained(unitized(scale, bias, alpha), longest, longest)[:1]
        yield attained(unitized(scale, bias, alpha[0]), largest, largest)


@UNITIZED.at_most("with several α, L = max|γ/(1 − α)| is enough", form="overread")
def _() -> Values:
    alpha = jnp.array([0.0, 0.9])
    layer = unitized(1 - alpha, jnp.zeros(2), alpha)
    x = jnp.stack([jnp.full(20, 0.1), jnp.linspace(0.05, 0.2, 20)], 1)
    slopes = jax.vmap(jax.jacobian(lambda x: layer.apply(x[None])[0]))(x)
    return np.linalg.norm(np.asarray(slopes), 2, axis=(1, 2)).max() - 1
