"""Definition 12 and Theorem 13, on how one layer changes the invariant representation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import generator, normal
from geometry.claims import Cases, Claim, Draws, Statistics, Values
from jaxnorm import recenter

claim = partial(Claim, "Batch Normalization Decomposed")

POINTS = 5  # In the checks of Theorems 13 and 14, a batch has five samples.
WIDTH = 5  # In a narrow layer, the mean of a norm is clearly below its root mean square.
CASES = 200
SPREAD = ((2.0, 0.0, 0.0), (0.3, 0.5, 0.0), (-0.4, 0.2, 0.3), (0.0, -0.3, 0.5), (0.1, 0.1, -0.6))


EQUATIONS_99_TO_104 = claim(
    "Equations 99 to 104",
    "After recentering, $x_1$ is $n - 1$ times as long as the mean of the other samples, and has "
    "the opposite direction",
)


@EQUATIONS_99_TO_104.equal("x̃₁, ν̃ and their norms, n = 2, 3 and 12", tolerance=1e-12)
def _() -> Cases:
    centred = jax.jit(recenter)
    for n in (2, 3, 12):
        x = np.asarray(centred(invariant_batch(n)))
        expected = np.array([[(n - 1) / n, -1 / n, 0], [-1 / n, 1 / (n * (n - 1)), 0]])
        square = (n**2 - 2 * n + 2) / n**2
        yield x[:2] - expected
        yield np.square(x[:2]).sum(1) - [square, square / (n - 1) ** 2]


@EQUATIONS_99_TO_104.equal("x̃₁ + (n − 1)ν̃ = 0 of any batch", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(size=(CASES, 7, 4)))
    centred = np.asarray(recenter(x, axis=1))
    return centred[:, 0] + 6 * centred[:, 1:].mean(1)


DEFINITION_12 = claim(
    "Definition 12",
    r"In an invariant representation, $\|x_1\| = 1$. All other samples are equal, orthogonal to "
    "$x_1$, and have the norm $1/(n - 1)$",
)


@DEFINITION_12.equal("`is_invariant` recognizes the invariant representation, and no changed batch")
def _() -> Cases:
    recognized = jax.jit(lambda x: geometry.is_invariant(geometry.gram(x)))
    for n in (3, 7):
        x = np.array(invariant_batch(n))
        longer, oblique, spread = x.copy(), x.copy(), x.copy()
        longer[0] *= 1.01
        oblique[1:, 0] = 0.01
        spread[1, 2] = 0.1
        others = [bool(recognized(jnp.asarray(y))) for y in (longer, oblique, spread)]
        yield [not recognized(jnp.asarray(x)), *others]


def next_layers(key: Key[Array, ""]) -> Statistics:
    """Statistics after one random layer, for an invariant representation and the batch `SPREAD`.

    In `SPREAD`, the samples of the cluster differ. The entry "distance" is the squared distance
    between two samples of this cluster; all other entries are from the invariant representation.
    """
    n, layer_key = POINTS, jax.random.fold_in(key, 1)
    x = geometry.invariant_representation(n, 2).astype(jnp.float32)
    w = normal(key, 2, WIDTH) * (2 * geometry.odd_points.cluster_growth(n) / WIDTH) ** 0.5
    y = jax.nn.relu(recenter(x @ w))
    odd, other = jnp.square(y[0]).sum(), jnp.square(y[1]).sum() * (n - 1) ** 2
    cluster = jnp.asarray(SPREAD, jnp.float32)
    # This layer is the layer of Theorem 14, item 4. Its gain is (n/((n − 1) `radius`))².
    radius = jnp.linalg.norm(cluster[0] - cluster[1:].mean(0))
    gain = (n / ((n - 1) * radius)) ** 2
    z = jax.nn.relu(recenter(cluster @ normal(layer_key, 3, WIDTH) * jnp.sqrt(2 * gain / WIDTH)))
    return {
        "squared_norm": odd,
        "norm": jnp.sqrt(odd),
        "squared_cluster_norm": other,
        "cluster_norm": jnp.sqrt(other),
        "entry": y[0].mean() * WIDTH**0.5,
        "distance": jnp.square(z[1] - z[2]).sum(),
    }


LAYER = Draws(next_layers, 60_000, batch_size=5000)


def expected_entry() -> float:
    """The exact value of √d E x₁ⱼ′, where x₁′ is the first sample after a layer of width d."""
    x = geometry.invariant_representation(POINTS, 2).astype(jnp.float64)
    gain = geometry.odd_points.cluster_growth(POINTS)
    return WIDTH**0.5 * float(geometry.odd_points.expected_entries(x, width=WIDTH, gain=gain)[0])


THEOREM_13 = claim(
    "Theorem 13, Equations 105 to 110",
    r"After a layer, the mean $\operatorname{E}[X']$ of an invariant representation is again an "
    "invariant representation",
    printed=r"Theorem 13, for weights of variance $2\alpha/d$ with $\alpha = n^2/(n^2 - 2n + 2)$: "
    r"$\operatorname{E}[X^{(t+1)}]$ “is also an invariant representation under RC+ReLU”",
    corrected=r"With samples in columns, the mean $\operatorname{E}[{X'}^\top X']$ of the Gram "
    "matrix is the Gram matrix of an invariant representation. The mean batch "
    r"$\operatorname{E}[X']$ has rank one",
    fault="false",
    why=r"For every neuron, the mean output is $\operatorname{E} \operatorname{ReLU}(w \tilde x) "
    r"= \sigma\|\tilde x\|/\sqrt{2\pi}$ with $\sigma^2 = 2\alpha/d$, so all columns of "
    r"$\operatorname{E}[X']$ are parallel. Equations 105 to 110 are about squared norms, for "
    "which the statement of Theorem 13 is true.",
)
THEOREM_13.mean("√d E x₁ⱼ′ = 1, as ‖E x₁′‖ = 1 asks", 1.0, LAYER, "entry", form="rejected")
THEOREM_13.mean("√d E x₁ⱼ′ = 1/√π", expected_entry, LAYER, "entry", form="corrected")
THEOREM_13.mean("E‖x₁′‖² = 1", 1.0, LAYER, "squared_norm", form="corrected")
THEOREM_13.mean("(n − 1)² E‖ν′‖² = 1", 1.0, LAYER, "squared_cluster_norm", form="corrected")


@THEOREM_13.equal("E X′X′ᵀ = XXᵀ by the kernel", form="corrected")
def _() -> Values:
    gap = jax.jit(lambda x: geometry.odd_points.next_layer(x).gram[:-1, :-1] - geometry.gram(x))
    return [gap(invariant_batch(n)) for n in (3, 12)]


def invariant_batch(n: int) -> Array:
    x = np.zeros((n, 3))
    x[0, 0], x[1:, 1] = 1, 1 / (n - 1)
    return jnp.asarray(x)
