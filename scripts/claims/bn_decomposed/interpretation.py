"""Claims in the text around the theorems, such as an intuition and a comparison."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import generator
from geometry.claims import Cases, Claim, Remark, Values

claim = partial(Claim, "Batch Normalization Decomposed")


def _zeros_by_side(key: Key[Array, ""]) -> tuple[np.ndarray, np.ndarray]:
    """For two kinds of neurons, the mean number of samples that ReLU maps to zero.

    A batch has a cluster of 19 samples with mean ν, and one sample far from the cluster. Let μ be
    the mean of a neuron W over the batch. The first result is for the neurons with Wν < μ, and the
    second result is for the neurons with Wν > μ. There are 40 batches with 2,000 neurons each.
    """
    rng = generator(key)
    x = np.concatenate([5 * rng.normal(size=(40, 1, 8)), rng.normal(size=(40, 19, 8))], 1)
    projected = x @ rng.normal(size=(40, 8, 2000))
    projected -= projected.mean(1, keepdims=True)
    zeros, below = (projected < 0).sum(1), projected[:, 1:].mean(1) < 0
    return (zeros * below).sum(1) / below.sum(1), (zeros * ~below).sum(1) / (~below).sum(1)


INTUITION = claim(
    "Section III, intuition",
    r"Neurons change the geometry more if the output $W\nu$ for the mean of the cluster is above "
    r"the mean output $\mu$, because more points map to zero",
    printed=r"Section III: “the effect on the representation of a projection with $W\nu - \mu > 0$ "
    r"is much greater than the case with $W\nu - \mu < 0$ since in the former case much more "
    r"points map to zero”",
    corrected=r"More points map to zero if $W\nu < \mu$",
    fault="misprint",
    why=r"If $W\nu < \mu$, most outputs for the cluster are below the mean output $\mu$ and map "
    "to zero. Steps 2 and 3 of Section III agree with the corrected form.",
)


@INTUITION.at_most("more points map to zero where Wν > μ", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    below, above = _zeros_by_side(key)
    return below - above


@INTUITION.at_most("more points map to zero where Wν < μ", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    below, above = _zeros_by_side(key)
    return above - below


IMAGE = claim(
    "Section I, dimension of the image",
    "After a random layer with two inputs, the image of ReLU has as many dimensions "
    "as the layer has rows",
    printed="Section I: “the image dimension scales linearly with the number of rows”",
    remark=Remark(
        "over-reading",
        "The statement is about the dimension of the span of the image of ReLU. The image of ReLU "
        "is a surface of dimension 2, and a rank that is computed from singular values can be 2.",
    ),
    why=r"If no two of the weights $w_i$ are parallel, the functions $\max(0, w_i \cdot x)$ have "
    "kinks on different lines, so the functions are linearly independent.",
)


@IMAGE.equal("2 inputs, d rows: the span has dimension d, d = 2 to 20")
def _(key: Key[Array, ""]) -> Cases:
    x = jax.random.normal(key, (400, 2))
    for rows in (2, 5, 10, 20):
        angle = math.pi * (np.arange(rows) + 0.5) / rows
        w = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        yield int(geometry.numerical_rank(jax.nn.relu(x @ w))) - rows


@IMAGE.equal("the image of the disc has the dimension 2 at each point")
def _(key: Key[Array, ""]) -> Values:
    w = jax.random.normal(key, (2, 20))
    slope = jax.jacfwd(lambda x: jax.nn.relu(x @ w))
    ranks = jax.jit(jax.vmap(lambda x: geometry.numerical_rank(slope(x))))
    return ranks(jax.random.normal(jax.random.fold_in(key, 1), (20, 2))) - 2


INTERPRETATION = claim(
    "Interpretation of Theorem 11",
    r"In the tree and in a random network, the escaped point is $\Theta(n)$ times as long as all "
    "other points",
    printed="Interpretation of the theorem: “the ratio between the norm of the escaped point and "
    r"that of any point in the cluster is $\Theta(n)$”; “our model, even if simpler (and easier "
    "to analyze), approximates well the geometrical evolution of a batch in the general random "
    "case”",
    remark=Remark(
        "over-reading",
        "For many samples, the tree and a random network have nearly the same norm ratio and "
        "nearly the same angle of the odd point. In the tree, however, the cluster collapses into "
        r"one direction. In a random network, the angles in the cluster are about $3\pi/n$.",
    ),
    why="In the limit of the tree, if the smallest or largest sample escapes, the ratio of norms "
    "is $n - 1$ and the angle is 90°. The fixed point of a wide random layer has the ratio 7.4 "
    "and the angle 88.7° for $n = 10$, and the ratio 48.6 and the angle 89.99° for $n = 50$.",
)


@INTERPRETATION.equal("tree: n − 1 and 90°", tolerance=1e-6)
def _() -> Cases:
    for n in (10, 50, 1000):
        ends = geometry.tree.limits(n, jnp.asarray(0.0))
        yield float(ends.norm_ratios[0]) * (n - 1) - 1
        yield float(ends.angles[0]) - math.pi / 2


@INTERPRETATION.at_most("random network: the ratio over n − 1 differs from 1 by 2/n at most")
def _() -> Cases:
    for n in (10, 50, 200, 1000):
        state = geometry.odd_points.odd_state(n)
        yield abs(state.norm_ratio / (n - 1) - 1) - 2 / n


@INTERPRETATION.at_most("random network: the angle differs from 90° by 2.5/n² at most")
def _() -> Cases:
    for n in (10, 50, 200, 1000):
        yield abs(geometry.odd_points.odd_state(n).angle - math.pi / 2) - 2.5 / n**2


@INTERPRETATION.at_most("random network: others are within 0.001 of one direction", form="overread")
def _() -> Cases:
    for n in (10, 50, 200):
        yield geometry.odd_points.odd_state(n).spread - 1e-3


SMALL_DATA = claim(
    "Discussion, small data sets",
    "An initialization with one neuron for each data point is good for small data sets",
    printed="Discussion: “Initial experimentation suggests that this might be a good "
    "initialization strategy for small data sets”",
    reason="The paper does not describe the experiments on small data sets. The entry "
    "“Discussion, one neuron per data point” checks that such neurons exist.",
)
