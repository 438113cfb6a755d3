"""Compute the numbers of Figures 3 to 8 of Nachum et al., as floats and lists.

The inputs of the networks are Gaussian. The widths and the numbers of samples are our choice,
because the text of the paper does not give them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

import geometry
import jaxnorm
from experiments.data import datasets
from experiments.training.scan import scan_steps

ODD_POINTS, ODD_WIDTH, ODD_LAYERS = 50, 500, (10, 30, 100, 299, 300)
BEFORE_LAST = 299  # the layer of which Figure 3 shows only angles
NETWORKS = 6
SIZES = ((20, 1000), (100, 100), (100, 500), (100, 1000), (500, 500), (128, 2000))
SCATTERED = (100, 500)
NEURONS = (50, 500)
LAYER = 30
TREE_POINTS = (0.0, 1.0, 2.0, 3.0, 6.0)


def no_part(x: Array) -> Array:
    """Return `x` unchanged, in place of recentering or rescaling."""
    return x


# For each part of batch norm: the function, and whether a layer f with this part is positively
# homogeneous, that is, f(c X) = c f(X) for c > 0.
PARTS: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "standardize": (jaxnorm.standardize, False),
    "rescale_rms": (jaxnorm.rescale_rms, False),
    "rescale": (jaxnorm.rescale, False),
    "recenter": (jaxnorm.recenter, True),
    "none": (no_part, True),
}
INFINITE_WIDTH = {
    "standardize": geometry.mean_field.standardize_step,
    "rescale_rms": geometry.mean_field.rescale_rms_step,
    "rescale": geometry.mean_field.rescale_step,
    "recenter": geometry.mean_field_step,
    "none": geometry.arccosine_kernel,
}


def figure_3(seed: int) -> dict[str, Any]:
    """The numbers of Figure 3, on the odd point of a network with recentering and ReLU.

    The result has a projection of the samples, and angles before and after a layer.
    """
    pairs = np.triu_indices(ODD_POINTS, 1)
    keys = jax.random.split(jax.random.key(seed), NETWORKS)
    (angles, odd), projections = jax.lax.map(jax.jit(_odd_network), keys)
    index = int(odd.index[0, -1])
    shown = [i for i, layer in enumerate(ODD_LAYERS) if layer != BEFORE_LAST]
    quantities = {
        "norm_ratio": odd.norm_ratio,
        "second_ratio": odd.second_ratio,
        "angle": np.degrees(odd.angle),
        "spread": np.degrees(odd.spread),
    }
    return {
        "points": ODD_POINTS,
        "width": ODD_WIDTH,
        "networks": NETWORKS,
        "index": index,
        "projection": projections[0].tolist(),
        "before": jnp.degrees(angles[0, -2]).tolist(),
        "after": jnp.degrees(angles[0, -1]).tolist(),
        "odd_pair": [bool(index in pair) for pair in zip(*pairs, strict=True)],
        "layers": [ODD_LAYERS[i] for i in shown],
        "medians": {
            name: np.median(values, 0)[shown].tolist() for name, values in quantities.items()
        },
    }


def _odd_network(key: Array) -> tuple[tuple[Array, geometry.OddPoint], Array]:
    """All angles and the odd point after each of `ODD_LAYERS`, and a projection of the samples."""
    pairs = np.triu_indices(ODD_POINTS, 1)
    inputs, weights, plane = jax.random.split(key, 3)
    network = geometry.random_network(
        weights,
        jax.random.normal(inputs, (ODD_POINTS, ODD_POINTS)),
        depth=ODD_LAYERS[-1],
        width=ODD_WIDTH,
        statistic=lambda x: (geometry.angles(x)[pairs], geometry.odd_point(geometry.gram(x))),
        layers=ODD_LAYERS,
    )
    return network.statistics, network.x @ jax.random.normal(plane, (ODD_WIDTH, 2))


def figure_4() -> dict[str, Any]:
    """The numbers of Figure 4: neurons' values for five points, in layers 0 to 3 of the tree."""
    x = jnp.array(TREE_POINTS)
    layers = [geometry.tree.neurons(x, depth=depth) for depth in range(4)]
    return {"layers": [layer.T.tolist() for layer in layers]}


def figure_5(seed: int) -> dict[str, Any]:
    """The numbers of Figure 5: angles before and after layer 30, and medians for several sizes."""
    parts = {}
    for name in PARTS:
        angles = {size: _angles(seed, name, *size) for size in {*SIZES, SCATTERED}}
        before, after = angles[SCATTERED]
        parts[name] = {
            "before": before[::5].tolist(),
            "after": after[::5].tolist(),
            "range": np.quantile(after, (0.05, 0.95)).tolist(),
            "medians": [float(np.median(angles[size][-1])) for size in SIZES],
            "infinite_width": _infinite_width(name, SCATTERED[0]),
        }
    return {"sizes": [list(size) for size in SIZES], "layer": LAYER, "parts": parts}


def figure_6(seed: int) -> dict[str, Any]:
    """The numbers of Figure 6: the share of inputs that activate a neuron.

    The shares are measured with and without recentering. An input activates a neuron if the
    neuron's output is above a tenth of the neuron's largest output. The result also has the outputs
    of one neuron for all inputs. Without recentering, this neuron is the one with the largest ratio
    of mean to standard deviation.
    """
    n, width = NEURONS
    parts = {}
    for name in ("rescale_rms", "standardize"):
        x = np.asarray(_network(seed, name, n, width, jnp.sum, (LAYER,)).x, np.float64)
        alive = x[:, x.max(0) > 0]
        answered = (alive > 0.1 * alive.max(0)).mean(0)
        ratio = alive.mean(0) / alive.std(0)
        chosen = alive[:, ratio.argmax() if name == "rescale_rms" else 0]
        parts[name] = {
            "median": float(np.median(answered)),
            "p95": float(np.quantile(answered, 0.95)),
            "above_90_percent": float((answered > 0.9).mean()),
            "zeros": float((x == 0).mean()),
            "neuron": chosen.tolist(),
        }
    return {"points": n, "width": width, "layer": LAYER, "parts": parts}


def figure_7_and_8() -> dict[str, Any]:
    """The numbers of Figures 7 and 8: the children of a neuron with two, and three, values."""
    rows = {"7": jnp.array([0.0, 0, 0, 1, 1]), "8": jnp.array([0.0, 0, 2, 3, 3])}
    return {
        figure: {
            "neuron": x.tolist(),
            "positive": jax.nn.relu(jaxnorm.recenter(x)).tolist(),
            "negative": jax.nn.relu(-jaxnorm.recenter(x)).tolist(),
        }
        for figure, x in rows.items()
    }


def neuron_per_point(seed: int, *, points: int = 256, epochs: int = 30, runs: int = 5) -> dict:
    """Train `runs` MLPs of two kinds; return the test accuracy of each MLP after each epoch.

    Both kinds have `points` hidden neurons, the same initial second layer, the same batches, and
    Adam with the learning rate 1e-3. In one kind, the first layer starts with one neuron for each
    of the first `points` training images. In the other kind, the first layer starts with He's
    initialization.
    """
    images = datasets.load("digits")
    vectors = jnp.asarray(images.x_train[:points].reshape(points, -1))
    starts: dict[str, Any] = {
        "he": (nnx.initializers.he_normal(), nnx.initializers.zeros),
        "point": geometry.networks.point_initializers(jax.random.key(seed), vectors),
    }
    results: dict[str, Any] = {"points": points, "epochs": epochs, "runs": runs}
    for name, (kernel, bias) in starts.items():
        train = partial(_train_mlp, images, kernel, bias, points, epochs)
        results[name] = [train(seed) for seed in range(runs)]
    return results


def _network(
    seed: int, part: str, n: int, width: int, statistic: Callable, layers: tuple[int, ...]
) -> geometry.RandomNetwork:
    """A random network with `LAYER` layers on Gaussian samples; `part` names its normalization."""
    normalization, homogeneous = PARTS[part]

    @jax.jit
    def run(key: Array) -> geometry.RandomNetwork:
        inputs, weights = jax.random.split(key)
        return geometry.random_network(
            weights,
            jax.random.normal(inputs, (n, width)),
            depth=LAYER,
            width=width,
            normalization=normalization,
            homogeneous=homogeneous,
            statistic=statistic,
            layers=layers,
        )

    return run(jax.random.key(seed))


def _angles(seed: int, part: str, n: int, width: int) -> Float[np.ndarray, "2 pairs"]:
    """The angles between all pairs of samples in degrees, before and after the last layer."""
    pairs = np.triu_indices(n, 1)
    layers = (LAYER - 1, LAYER)
    network = _network(seed, part, n, width, lambda x: geometry.angles(x)[pairs], layers)
    return np.degrees(network.statistics)


def _infinite_width(name: str, n: int) -> float:
    """The angle in degrees between two of n samples after `LAYER` layers of infinite width.

    The n samples are orthogonal at first and have equal norms, so all pairs of samples always have
    the same angle.
    """

    def step(_: int, g: Array) -> Array:
        g = INFINITE_WIDTH[name](g)
        return g / jnp.trace(g)

    g = jax.jit(lambda g: jax.lax.fori_loop(0, LAYER, step, g))(jnp.eye(n))
    return float(jnp.degrees(jnp.arccos(g[0, 1] / g[0, 0])))


def _train_mlp(
    images: datasets.Images, kernel: Callable, bias: Callable, width: int, epochs: int, seed: int
) -> list[float]:
    """Train a perceptron with one hidden layer; return the test accuracy after each epoch."""
    x, test = (jnp.asarray(a.reshape(len(a), -1)) for a in (images.x_train, images.x_test))
    y, labels = jnp.asarray(images.y_train), jnp.asarray(images.y_test)
    rngs = nnx.Rngs(seed)
    layers = nnx.List(
        [
            nnx.Linear(x.shape[1], width, kernel_init=kernel, bias_init=bias, rngs=rngs),
            nnx.Linear(width, 10, rngs=nnx.Rngs(seed)),
        ]
    )
    graph, params = nnx.split(layers)
    optimize = optax.adam(1e-3)
    batch, steps = 64, len(x) // 64

    def logits(params: Any, x: Array) -> Array:
        first, second = nnx.merge(graph, params)
        return second(jax.nn.relu(first(x)))

    def loss(params: Any, index: Array) -> Array:
        entropy = optax.softmax_cross_entropy_with_integer_labels
        return entropy(logits(params, x[index]), y[index]).mean()

    def epoch(carry: Any, key: Array) -> tuple[Any, Array]:
        order = jax.random.permutation(key, len(x))[: batch * steps].reshape(steps, batch)
        params, state = carry
        carry = scan_steps(loss, optimize, params, state, order)
        return carry, jnp.mean(logits(carry[0], test).argmax(1) == labels)

    keys = jax.random.split(jax.random.key(seed), epochs)
    _, accuracy = jax.jit(lambda c, k: jax.lax.scan(epoch, c, k))(
        (params, optimize.init(params)), keys
    )
    return accuracy.tolist()
