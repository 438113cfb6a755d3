"""Section 3.5 with Equation 10, on the interpolation in training; unbounded outputs if α < 1."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from claims.draws import generator, normal
from claims.unitization._pairs import (
    bounds_at,
    distances,
    distances_of_outputs,
    excess,
    opposite,
    pairs,
)
from geometry.claims import Cases, Claim, Draws, Remark, Result, Statistics, Values
from jaxnorm import shift, unitize, unitize_bounded, unitized_batch_norm
from jaxnorm.internal import chi_mean

claim = partial(Claim, "Unitization")

ALPHA = 0.25  # alpha is not 1/2, at which alpha and 1 − alpha are equal
DIMS = 64
SMALL, LARGE = 1.0, 3.0  # the standard deviations of two Gaussians
ALPHAS = (0.0, 0.2, 0.5, 1.0, (0.3, 0.9, 1.0, 0.4))


def radial_transport(key: Key[Array, ""]) -> Statistics:
    """Costs whose mean is the earth mover distance between `unitize(s₁z)` and `unitize(s₂z)`.

    The factors s₁ and s₂ are `SMALL` and `LARGE`, and the vector z is Gaussian. The transport plan
    moves each sample along its own direction. No plan has a smaller mean cost, because the norm is
    1-Lipschitz and the mean norms differ by the mean cost of the plan.
    """
    z = normal(key, 200, DIMS)
    x, y = (unitize(s * z, ALPHA, eps=1e-12) for s in (SMALL, LARGE))
    return {"cost": jnp.linalg.norm(x - y, axis=1)}


RADIAL = Draws(radial_transport, 20_000, batch_size=2000, draws_per_key=200)


def _worst_normalized(alpha: float, d: int) -> float:
    """The distance between Algorithm 1's outputs for ±(1, …, 1) and for ±(1, −1, 1, …)."""
    one, sign = np.ones(d), (-1.0) ** np.arange(d)
    inputs = (jnp.asarray(np.stack([z, -z])) for z in (one, sign))
    return shift.emd(*(unitized_batch_norm(x, alpha * jnp.ones(d), eps=0.0)[0] for x in inputs))


def _over_bound(x: np.ndarray, y: np.ndarray, alpha: Array) -> np.ndarray:
    distance = distances_of_outputs(x, y, partial(unitize, alpha=alpha, eps=0.0))
    return excess(distance, bounds_at(shift.interpolated_upper_bound, alpha, x, y))


EQUATION_10 = claim(
    "Equation 10",
    r"The practical transformation is $g(x) = [\alpha/\sqrt{\|x\|^2 + \varepsilon} + 1 - "
    r"\alpha]\,x$",
    printed="Section 3.5, Equation 10",
    corrected=r"For $\alpha$ in $[0, 1]$, the bound $W \le 2 + (1 - \min\alpha)(E(\|X\| - 1)_+ + "
    r"E(\|Y\| - 1)_+)$ holds and is attained. After exact batch norm, $W \le 2(\alpha + (1 - "
    r"\alpha)\sqrt{d})$",
    why=r"The factor $\alpha/r + 1 - \alpha$ of Equation 10 is the weighted arithmetic mean of "
    "$1/r$ and $1$, whereas Equation 9 has the weighted harmonic mean of $1/r$ and $1$. Outputs "
    r"of Equation 10 have the norm $\alpha + (1 - \alpha)r$, which can be larger than $1/\alpha$.",
)


@EQUATION_10.equal("as printed", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    x = np.vstack([np.zeros(4), generator(key).standard_t(2, (50, 4))])
    square = np.square(x).sum(1, keepdims=True)
    for alpha in (*map(np.asarray, ALPHAS), np.asarray(-0.7), np.asarray(3.0)):
        g = np.asarray(unitize(jnp.asarray(x), jnp.asarray(alpha), eps=1e-3))
        printed = (alpha / np.sqrt(square + 1e-3) + 1 - alpha) * x
        yield (g - printed) / np.maximum(np.sqrt(square), 1)


EQUATION_10.mean(
    "W ≤ 2/alpha of N(0, I) and N(0, 9I)", 2 / ALPHA, RADIAL, "cost", side="≤", form="overread"
)
EQUATION_10.mean(
    "W = (1 − alpha)(s₂ − s₁) E‖z‖",
    (1 - ALPHA) * (LARGE - SMALL) * chi_mean(DIMS),
    RADIAL,
    "cost",
    form="corrected",
)


@EQUATION_10.at_most("W ≤ 2/alpha for ±R e₁", form="overread")
def _() -> Cases:
    for alpha, length in ((0.5, 100.0), (0.9, 1e4)):
        _, _, distance = shift.interpolation_counterexample(alpha, length=length)
        yield distance / float(shift.unitized_upper_bound(alpha)) - 1


@EQUATION_10.equal("W = 2(alpha + (1 − alpha)R) for ±R e₁", form="corrected")
def _() -> Cases:
    for alpha in (0.2, 0.5, 0.9):
        x, y, distance = shift.interpolation_counterexample(alpha, length=30.0)
        outputs = (np.asarray(unitize(part, alpha, eps=0.0))[None] for part in (x, y))
        yield [distances(*outputs) / distance - 1, distance / (2 * alpha + 60 * (1 - alpha)) - 1]


@EQUATION_10.at_most("W ≤ 2/alpha after batch norm", form="overread")
def _() -> Values:
    return [_worst_normalized(alpha, 64) / (2 / alpha) - 1 for alpha in (0.5, 0.9)]


@EQUATION_10.equal("W = √2(alpha + (1 − alpha)√d) after batch norm", form="corrected")
def _() -> Values:
    return [
        _worst_normalized(alpha, d) / (2**0.5 * (alpha + (1 - alpha) * d**0.5)) - 1
        for alpha, d in ((0.2, 8), (0.5, 64), (0.9, 64))
    ]


@EQUATION_10.at_most("W ≤ E max(alphaⱼ + (1 − alphaⱼ)‖X‖) + the same of Y", form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    for alpha in map(jnp.asarray, ALPHAS):
        yield _over_bound(*pairs(key), alpha)


@EQUATION_10.equal("attained by opposite points", form="corrected")
def _() -> Cases:
    far, near = np.geomspace(1, 1e3, 7), np.geomspace(1e-3, 0.9, 7)
    for alpha in map(np.asarray, ALPHAS):
        for lengths, feature in ((far, np.argmin(alpha)), (near, np.argmax(alpha))):
            yield _over_bound(*opposite(lengths, int(feature)), jnp.asarray(alpha))


@EQUATION_10.at_most(
    "|Eq. 10| ≥ |Eq. 9| for alpha in [0, 1], equal at ‖x‖ = 1", tolerance=1e-12, form="corrected"
)
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, alpha = map(jnp.asarray, (rng.standard_t(2, (500, 4)), rng.uniform(0, 1, 4)))
    units = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    nine, ten, unit = (
        jnp.abs(g)
        for g in (unitize_bounded(x, alpha), unitize(x, alpha, eps=0.0), unitize(units, alpha))
    )
    equal = jnp.abs(unit / jnp.abs(units) - 1) - 1e-5  # 1e-5 is the tolerance
    return [(nine - ten) / nine, equal]


NOISE_FREE = claim(
    "Section 5, the bound of the trained algorithm",
    "For the trained algorithm (Equation 10), an upper bound of the distance $W$ depends on "
    r"$\alpha$ alone",
    printed="Section 5: “this paper proposes the unitization algorithm with the noise-free and "
    "moment-independent upper bound”",
    corrected=r"For $\alpha$ in $[0, 1]$, $W$ is at most $2(\alpha + (1 - \alpha)\sqrt{d})$ after "
    r"exact batch norm. Without batch norm and for $\alpha < 1$, $W$ has no bound",
    fault="false",
    why=r"If $r$ is the norm of an input, the output of Equation 10 has the norm $\alpha + (1 - "
    r"\alpha)r$. For example, at $\alpha = 1/2$, $d = 64$ and after exact batch norm, $W$ can be "
    r"6.36, which exceeds the bound $2/\alpha = 4$ of the paper.",
)


@NOISE_FREE.at_most("W minus 2/α after exact batch norm, α = 1/2, d = 64", form="rejected")
def _() -> Values:
    return _worst_normalized(0.5, 64) - 4


@NOISE_FREE.equal(
    "W = √2(α + (1 − α)√d) = 6.364 at α = 1/2, d = 64", 6.364, tolerance=1e-3, form="corrected"
)
def _() -> Values:
    return _worst_normalized(0.5, 64)


@NOISE_FREE.at_most("W over 2(α + (1 − α)√d) of heavy-tailed batches, minus 1", form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    x, y = generator(key).standard_t(3, (2, 60, 12, 6))
    normalized = [(z - z.mean(1, keepdims=True)) / z.std(1, keepdims=True) for z in (x, y)]
    for alpha in (0.1, 0.5, 0.9):
        layer = partial(unitize, alpha=alpha, eps=0.0)
        distance = distances_of_outputs(normalized[0], normalized[1], layer)
        yield distance / (2 * (alpha + (1 - alpha) * 6**0.5)) - 1


RATE, STEPS, NORM = 0.5, 400, 4.0


def _trained(key: Key[Array, ""], c: float) -> Array:
    x = generator(key).normal(size=(50, 8))
    x = jnp.asarray(NORM * x / np.linalg.norm(x, axis=1, keepdims=True))

    def loss(alpha: Array) -> Array:
        return jnp.mean(jnp.square(unitize(x, alpha, eps=0.0) - c * x))

    step = jax.jit(lambda alpha: alpha - RATE * jax.grad(loss)(alpha))
    return jax.lax.fori_loop(0, STEPS, lambda _, alpha: step(alpha), jnp.asarray(0.0))


def range_of_alpha(found: Any) -> str:
    """A sentence with the share of elements of alpha that are outside [0, 1] after training."""
    unitized = found["training"]["unitized"]
    alpha = unitized["alpha"]
    return (
        f"{100 * alpha['outside']:.1f} % of the elements of alpha ended outside [0, 1]; the "
        f"smallest element is {alpha['min']:.3f} and the largest element is {alpha['max']:.3f}; "
        f"{len(unitized['test_accuracy'])} unitized "
        f"ResNet-{found['settings']['model'].removeprefix('preact')} networks on digits"
    ).replace("-0", "−0")


RANGE_OF_ALPHA = claim(
    "Section 3.5, range of alpha",
    r"Equation 10 avoids a constrained optimization of $\alpha$",
    printed=r"Section 3.5: $\alpha$ is trained with the weights; Equation 10 avoids the constraint "
    r"$\alpha$ in $[0, 1]^d$ of Equation 9",
    remark=Remark(
        "over-reading",
        r"Training does not keep $\alpha$ in $[0, 1]$. In some of our trained networks, $\alpha$ "
        r"became negative. With a negative $\alpha$, Equation 10 multiplies $x$ by a factor that "
        r"grows with $\|x\|$.",
    ),
    results=(Result(range_of_alpha, "no number", "docs/results/report/results.json"),),
    why=r"The factor $1 + \alpha(1/\|x\| - 1)$ equals any given $c$ at $\alpha = (c - 1)/(1/\|x\| "
    r"- 1)$. For $\|x\| = 4$, the value of $\alpha$ is $-2/3$ if $c = 1.5$, and 1.2 if $c = 0.1$.",
)


@RANGE_OF_ALPHA.equal("finite, with its gradients, for every alpha")
def _(key: Key[Array, ""]) -> Cases:
    x = jnp.asarray(np.vstack([np.zeros(4), generator(key).standard_t(2, (50, 4))]))
    for alpha in (-30.0, -0.5, 0.0, 1.0, 2.0, 30.0):
        by_alpha, by_x = jax.grad(lambda a, x: jnp.sum(unitize(x, a) ** 2), (0, 1))(alpha, x)
        yield [0 * unitize(x, alpha), 0 * by_alpha, 0 * by_x]


@RANGE_OF_ALPHA.equal("descent finds alpha wherever it lies", tolerance=1e-6, form="corrected")
def _(key: Key[Array, ""]) -> Values:
    return [float(_trained(key, c)) - (c - 1) / (1 / NORM - 1) for c in (1.5, 0.5, 0.1)]


@RANGE_OF_ALPHA.equal("alpha remains in [0, 1]", form="overread")
def _(key: Key[Array, ""]) -> Values:
    return [float(abs(a - jnp.clip(a, 0, 1))) for a in map(partial(_trained, key), (1.5, 0.1))]


LOST_INFORMATION = claim(
    "Section 3.4, lost information",
    "A smaller bound loses more information, which no affine map recovers",
    printed="Section 3.4, after Theorem 3.3",
    corrected=r"The maps of Equations 8 and 10 are injective for $0 \le \alpha < 1$, and collapse "
    r"each ray to a point only at $\alpha = 1$",
    remark=Remark(
        "over-reading",
        r"For $0 < \alpha < 1$, no affine map computes the input of unitization from the output. "
        r"However, no information is lost for $0 < \alpha < 1$, because different inputs have "
        r"different outputs. At $\alpha = 1$, all inputs on a ray from 0 have the same output.",
    ),
)


@LOST_INFORMATION.at_most(
    "the error of the best affine map grows by 1 % of ‖x‖ or more from each alpha to the next"
)
def _(key: Key[Array, ""]) -> Values:
    x = generator(key).standard_t(5, (2000, 4))

    def left(alpha: float) -> float:
        g = np.asarray(unitize_bounded(jnp.asarray(x), jnp.asarray(alpha)))
        design = np.hstack([g, np.ones((len(g), 1))])
        return float(np.linalg.norm(x - design @ np.linalg.lstsq(design, x)[0]))

    return -np.diff([left(alpha) for alpha in (0.0, 0.1, 0.3, 0.6, 1.0)]) / np.linalg.norm(x) + 0.01


@LOST_INFORMATION.equal("for alpha < 1 nothing is lost: r is recovered", form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    r = 10 ** generator(key).uniform(-2, 2, 300)
    x = jnp.asarray(r)[:, None]
    for alpha in (0.2, 0.9):
        t = np.asarray(unitize_bounded(x, jnp.asarray(alpha)))[:, 0]
        u = np.asarray(unitize(x, alpha, eps=0.0))[:, 0]
        yield (1 - alpha) * t / (1 - alpha * t) / r - 1
        yield (u - alpha) / (1 - alpha) / r - 1
