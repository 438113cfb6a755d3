"""Equations 8, 95 to 98 and 111: the arc-cosine kernel, and what follows of it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import generator, normal
from geometry.claims._types import (
    Cases,
    Computed,
    Draws,
    Remark,
    Sampled,
    Statistics,
    Values,
    claims_of,
)

claim = claims_of("Batch Normalization Decomposed")

CASES = 200
BATCH = ((1.0, 2.0, 0.5), (-0.5, 1.0, 1.5), (0.3, -1.0, 0.2), (2.0, 0.1, -0.7))


def kernel_products(key: Key[Array, ""]) -> Statistics:
    """ReLU(w xᵢ) ReLU(w xⱼ) of a batch, recentred and not, and 2 ReLU(w x)²/‖x‖² of one sample."""
    x = jnp.asarray(BATCH, jnp.float32)
    z = jax.nn.relu(normal(key, 500, 3) @ (x - x.mean(0, keepdims=True)).T)
    raw = jax.nn.relu(normal(jax.random.fold_in(key, 1), 500, 3) @ x.T)
    return {
        "recentred_product": z[:, 0] * z[:, 1],
        "squared_norm": 2 * (jnp.square(raw[:, 0]) / jnp.square(x[0]).sum()),
        "product": raw[:, 0] * raw[:, 1],
    }


KERNEL = Draws(kernel_products, 200_000, batch_size=10_000, draws_per_key=500)


def kernel_of_the_batch(recentred: bool) -> float:
    """E ReLU(w xᵢ) ReLU(w xⱼ) by the arc-cosine kernel, which is of weights of variance 2."""
    g = geometry.gram(jnp.asarray(BATCH))
    step = geometry.mean_field_step if recentred else geometry.arccosine_kernel
    return float(step(g)[0, 1]) / 2


EQUATION_8 = claim(
    "Equation 8",
    "E ReLU(w x̃ᵢ) ReLU(w x̃ⱼ), called intractable",
    Sampled(
        "= the arc-cosine kernel", lambda: kernel_of_the_batch(True), KERNEL, "recentred_product"
    ),
    corrected="‖x̃ᵢ‖‖x̃ⱼ‖(sin θ + (π − θ) cos θ)/(2π)",
    remark=Remark("over-reading", "holds, tractable"),
)

EQUATIONS_95_TO_98 = claim(
    "Equations 95 to 98",
    "E‖ReLU(Wx)‖² = (dσ²/2)‖x‖²",
    Sampled("over ‖x‖² at σ² = 2/d", 1.0, KERNEL, "squared_norm"),
)

EQUATION_111 = claim(
    "Equation 111",
    "K(x, y) = E ReLU(wx) ReLU(wy) = ‖x‖‖y‖(√(1 − ρ²) + (π − arccos ρ)ρ)/(2π)",
    Sampled("of two samples", lambda: kernel_of_the_batch(False), KERNEL, "product"),
)


def kernel_of_parallel(key: Key[Array, ""]) -> Values:
    """How far K(x, c x) lies below (1 + 10⁻⁶) x·(c x), over ‖x‖ ‖c x‖."""
    x = generator(key).normal(size=(CASES, 5))
    return _kernel_excess(x, 3.7 * x) + 1e-6


def kernel_above_product(key: Key[Array, ""]) -> Values:
    """How far K(x, y) lies below x·y, of random, of near and of opposite pairs."""
    x, y = generator(key).normal(size=(2, 5 * CASES, 5))
    near = x + 1e-3 * y
    return _kernel_excess(np.concatenate([x, x, x]), np.concatenate([y, near, -x]))


def _kernel_excess(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x·y − K(x, y) over ‖x‖ ‖y‖, at σ² = 2/d."""
    pairs = np.stack([x, y], 1)
    g = pairs @ pairs.swapaxes(1, 2)
    kernel = np.asarray(jax.jit(jax.vmap(geometry.arccosine_kernel))(jnp.asarray(g)))
    return (g - kernel)[:, 0, 1] / np.sqrt(g[:, 0, 0] * g[:, 1, 1])


INEQUALITY = claim(
    "Inequality after Equation 111",
    "K(x, y) > x·y at σ² = 2/d for x ≠ y",
    Computed.rejected("K(x, 3.7x) > x·3.7x, by 10⁻⁶ of it", kernel_of_parallel, "inequality"),
    Computed.corrected("K ≥ x·y", kernel_above_product, "inequality"),
    printed="K > x·y",
    corrected="K ≥ x·y, with equality for positively parallel vectors",
)


def symmetric_batch(key: Key[Array, ""]) -> Cases:
    """Angle after one and after two layers of an orthonormal batch, minus the predicted one."""
    step = jax.jit(geometry.mean_field_step)
    for n in (3, 9):
        g = step(jnp.asarray(np.eye(n)))
        for h in (g, step(g)):
            yield math.acos(float(h[0, 1] / h[0, 0])) - geometry.odd_points.recentred_angle(n)


SYMMETRIC_BATCHES = claim(
    "Symmetric batches (ours)",
    "Samples of one norm and one angle reach the angle arccos κ(−1/(n − 1))",
    Computed("after one layer and after two", symmetric_batch),
)


def odd_is_longest(key: Key[Array, ""]) -> Values:
    """Whether the odd point at infinite width is not the sample of largest centred norm."""
    x = jnp.asarray(generator(key).normal(size=(20, 10, 10)))

    def misses(x: Array) -> Array:
        def layer(g: Array, _: None) -> tuple[Array, None]:
            g = geometry.mean_field_step(g)
            return g / jnp.trace(g), None

        g, _ = jax.lax.scan(layer, geometry.gram(x), length=2000)
        longest = jnp.argmax(jnp.linalg.norm(x - x.mean(0, keepdims=True), axis=1))
        return geometry.is_odd(g) & (geometry.odd_point(g).index != longest)

    return jax.jit(jax.vmap(misses))(x)


REMARK_ON_THE_ODD_POINT = claim(
    "Remark on the odd point",
    "The odd point is the sample of the largest norm",
    Computed("of 20 Gaussian batches of 10, those that turn odd", odd_is_longest),
    corrected="of the largest centred norm; at finite width the weights often choose",
    remark=Remark("over-reading", "holds at infinite width"),
)
