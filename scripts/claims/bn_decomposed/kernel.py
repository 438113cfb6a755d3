"""Equations 8, 95 to 98 and 111, on the arc-cosine kernel and what follows from it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import generator, normal
from geometry.claims import Claim, Draws, Remark, Statistics, Values

claim = partial(Claim, "Batch Normalization Decomposed")

CASES = 200
BATCH = ((1.0, 2.0, 0.5), (-0.5, 1.0, 1.5), (0.3, -1.0, 0.2), (2.0, 0.1, -0.7))


def kernel_products(key: Key[Array, ""]) -> Statistics:
    """The products ReLU(w x₁) ReLU(w x₂) of two samples, with and without recentering.

    The result `squared_norm` is 2 ReLU(w x₁)²/‖x₁‖².
    """
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
    """The mean of ReLU(w x₁) ReLU(w x₂) for weights of variance 1.

    The mean is half of the arc-cosine kernel, because the kernel is defined with weights of
    variance 2.
    """
    g = geometry.gram(jnp.asarray(BATCH))
    step = geometry.mean_field_step if recentred else geometry.arccosine_kernel
    return float(step(g)[0, 1]) / 2


EQUATION_8 = claim(
    "Equation 8",
    r"$\operatorname{E} \operatorname{ReLU}(w \tilde x_i) \operatorname{ReLU}(w \tilde "
    "x_j)$ appears to be intractable",
    remark=Remark(
        "over-reading",
        "The paper says that the expected product of two samples after a layer “appears to be "
        r"intractable”. For an angle $\theta$ between the recentred samples, the expected "
        r"product is $\|\tilde x_i\| \|\tilde x_j\| (\sin\theta + (\pi - \theta) "
        r"\cos\theta)/(2\pi)$.",
    ),
    why="Recentering is linear in the batch, so Equation 111 applies to the recentred samples.",
)
EQUATION_8.mean(
    "E ReLU(w x̃₁) ReLU(w x̃₂) = half of the arc-cosine kernel",
    lambda: kernel_of_the_batch(True),
    KERNEL,
    "recentred_product",
)


EQUATIONS_95_TO_98 = claim(
    "Equations 95 to 98",
    r"$\operatorname{E}\|\operatorname{ReLU}(Wx)\|^2 = (d\sigma^2/2)\|x\|^2$",
    why="ReLU keeps half of the second moment of a symmetric variable.",
)
EQUATIONS_95_TO_98.mean("E‖ReLU(Wx)‖²/‖x‖² = 1 at σ² = 2/d", 1.0, KERNEL, "squared_norm")


EQUATION_111 = claim(
    "Equation 111",
    r"$K(x, y) = \operatorname{E} \operatorname{ReLU}(wx) \operatorname{ReLU}(wy) = "
    r"\|x\|\|y\|(\sqrt{1 - \rho^2} + (\pi - \arccos\rho)\rho)/(2\pi)$",
)
EQUATION_111.mean("K of two samples", lambda: kernel_of_the_batch(False), KERNEL, "product")


def _kernel_excess(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference x·y − K(x, y), divided by ‖x‖ ‖y‖, where K is the `arccosine_kernel`."""
    pairs = np.stack([x, y], 1)
    g = pairs @ pairs.swapaxes(1, 2)
    kernel = np.asarray(jax.jit(jax.vmap(geometry.arccosine_kernel))(jnp.asarray(g)))
    return (g - kernel)[:, 0, 1] / np.sqrt(g[:, 0, 0] * g[:, 1, 1])


INEQUALITY = claim(
    "Inequality after Equation 111",
    r"The kernel exceeds the inner product, $K(x, y) > x \cdot y$, at $\sigma^2 = 2/d$ for $x \ne "
    "y$",
    printed="Appendix F, after Equation 111: “The function appearing in equation 111 has an "
    r"important property”: $K(x, y) > x \cdot y$ for $\sigma^2 = 2/d$ and $x \ne y$",
    corrected=r"$K(x, y) \ge x \cdot y$, with equality if the vectors are positively parallel or "
    "one of the vectors is 0",
    fault="false in a case",
    why=r"For an angle $\theta$ between the vectors, $K(x, y) - x \cdot y$ is "
    r"$\|x\|\|y\|(\sin\theta - \theta \cos\theta)/\pi$, which is 0 at $\theta = 0$, and positive "
    r"for $\theta$ in $(0, \pi]$.",
)


@INEQUALITY.at_most("K(x, 3.7x) > x·3.7x, by 10⁻⁶ of it", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(size=(CASES, 5))
    return _kernel_excess(x, 3.7 * x) + 1e-6


@INEQUALITY.at_most("K ≥ x·y", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    x, y = generator(key).normal(size=(2, 5 * CASES, 5))
    near = x + 1e-3 * y
    return _kernel_excess(np.concatenate([x, x, x]), np.concatenate([y, near, -x]))
