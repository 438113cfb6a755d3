"""Random networks with many kinds of block, for tests of pruning.

A network is pruned at random. The smaller network must equal the masked network, or pruning must
fail with a reason.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pruning import coupled_channels, mask_channels, remove_channels
from pruning.channels import check_program, resized
from tests.support.numpy_programs import evaluated
from tests.support.random_blocks import Kind, Kinds, drawn_arrays, drawn_sizes
from tests.support.random_blocks.arithmetic import ARITHMETIC
from tests.support.random_blocks.channels import DENSE, GATES, MOVES
from tests.support.random_blocks.constants import EMBEDDED, TABLES
from tests.support.random_blocks.ends import EMBEDDINGS, HEADS, INTO
from tests.support.random_blocks.images import IMAGES
from tests.support.random_blocks.steps import CACHES, RANDOM, RULES, STEPS
from tests.support.random_blocks.streams import NORMS, STREAMS
from tests.support.random_blocks.tokens import TOKENS
from tests.support.random_blocks.weights import WEIGHTS

ANY = DENSE | GATES | MOVES | WEIGHTS | ARITHMETIC | TABLES | STEPS
STAGES = {"images": [ANY, IMAGES], "tokens": [ANY, TOKENS | CACHES], "vectors": [ANY]}
ALL = {*ANY, *IMAGES, *TOKENS, *CACHES}
COUNTING = """
    attention by depth, attention with biases, equalized kernel, folded heads, fused, fused heads,
    group norm, grouped, shuffle, shuffle after groups, shuffle net, signed scale, two groups
"""
CHANGING = {
    *ARITHMETIC,
    *TABLES,
    *EMBEDDED,
    *RANDOM,
    *COUNTING.strip().replace("\n    ", " ").split(", "),
}
"""Blocks whose program may change with the widths, because it computes with a width or a count."""
NOT_DIFFERENTIABLE = {"while", "clamp"}
"""Blocks that JAX cannot differentiate with respect to all parameters."""
WRONG = ("crash", "unclear", "refused without reason", "wrong")
REMOVED, TOLERANCE = 0.4, 1e-12


class RandomNetwork(NamedTuple):
    """A network `apply(params, x)`, and the kinds of its blocks."""

    apply: Callable[..., Any]
    params: dict[str, Any]
    x: np.ndarray
    kinds: tuple[str, ...]


class Outcome(NamedTuple):
    """The kind of outcome, the difference from the masked network, and the error message."""

    kind: str
    error: float = 0.0
    said: str = ""


def random_network(seed: int) -> RandomNetwork:
    """A random network of up to three stages and a head.

    The stages are images, tokens and vectors, or only the last one or two of them. Each stage has
    one to three blocks.
    """
    rng = np.random.default_rng(seed)
    stages = list(STAGES)[rng.integers(len(STAGES)) :]
    inputs = {
        "images": rng.normal(size=(2, 4, 4, 2)),
        "tokens": rng.integers(8, size=(2, 5)),
        "vectors": rng.normal(size=(2, 4)),
    }
    return _network(rng, inputs[stages[0]], _random_kinds(rng, stages))


def random_transformer(seed: int) -> RandomNetwork:
    """A random transformer of one to four blocks with norms over channels."""
    rng = np.random.default_rng(seed)
    drawn = lambda kinds: list(kinds.items())[rng.integers(len(kinds))]  # noqa: E731
    kinds = [drawn(_embeddings(rng)), *(drawn(STREAMS) for _ in range(rng.integers(1, 5)))]
    return _network(rng, rng.integers(8, size=(2, 5)), [*kinds, drawn(NORMS), drawn(HEADS)])


def _embeddings(rng: np.random.Generator) -> Kinds:
    return EMBEDDINGS[rng.integers(len(EMBEDDINGS))]


def _network(
    rng: np.random.Generator, x: np.ndarray, blocks: Iterable[tuple[str, Kind]]
) -> RandomNetwork:
    y, params, functions, kinds = jax.eval_shape(jnp.asarray, x), {}, {}, []
    for number, (kind, (arrays, function)) in enumerate(blocks):
        if y.shape[-1] % 2 and kind in ALL:  # many blocks need an even number of channels
            kind, (arrays, function) = "dense", DENSE["dense"]
        name = f"{number} {kind}"
        params[name] = drawn_arrays(rng, arrays, drawn_sizes(rng, y.shape))
        y, functions[name] = jax.eval_shape(function, params[name], y), function
        kinds += kind.split(" | ")

    def apply(params: dict[str, Any], x: Any) -> Any:
        for name, function in functions.items():
            x = function(params[name], x)
        return x

    return RandomNetwork(apply, params, x, tuple(kinds))


def _random_kinds(rng: np.random.Generator, stages: list[str]) -> Iterator[tuple[str, Kind]]:
    def drawn(kinds: Kinds) -> tuple[str, Kind]:
        return list(kinds.items())[rng.integers(len(kinds))]

    if stages[0] == "tokens":
        yield drawn(_embeddings(rng))
    for stage in stages:
        if stage != stages[0]:
            yield drawn(INTO[stage])
        for _ in range(rng.integers(1, 4)):
            yield drawn(STAGES[stage][rng.integers(len(STAGES[stage]))])
    yield drawn(HEADS)


def outcome(network: RandomNetwork, seed: int, *, resize: bool = False) -> Outcome:
    """The outcome of removing about 40 % of the network's channels, drawn at random.

    With `resize`, channels that a norm reads are also removed. If a change of the masked network's
    parameters by rounding would cause an error at least as large, the outcome is "rounding".
    """
    try:
        found = _outcome(network, seed, resize)
        if found.error > TOLERANCE:
            groups = coupled_channels(network.apply, network.params, network.x, resize=resize)
            masked = mask_channels(network.params, groups, drawn_keep(groups, seed))
            explained = found.error <= rounding_error(network._replace(params=masked))
            return found._replace(kind="rounding" if explained else "wrong")
    except Exception as failure:
        return Outcome("crash", np.inf, f"{type(failure).__name__}: {failure}")
    return found._replace(kind="unclear") if "\n" in found.said else found


def _outcome(network: RandomNetwork, seed: int, resize: bool) -> Outcome:
    apply, params, x, kinds = network
    groups = coupled_channels(apply, params, x, resize=resize)
    if not groups:
        return Outcome("nothing to cut")
    keep = drawn_keep(groups, seed)
    masked = evaluated(apply, mask_channels(params, groups, keep), x)
    small = remove_channels(params, groups, keep)
    run = resized(apply, groups, keep)
    error = difference(evaluated(run, small, x), masked)
    if not RULES.keys().isdisjoint(kinds) and NOT_DIFFERENTIABLE.isdisjoint(kinds):
        gradients = (
            _gradient(run, small, x),
            _gradient(apply, mask_channels(params, groups, keep), x),
        )
        error = max(error, difference(gradients[0], remove_channels(gradients[1], groups, keep)))
    try:
        check_program(apply, small, groups, keep, x)
    except ValueError as refusal:
        counts = any(group.normed for group in groups) or not CHANGING.isdisjoint(kinds)
        return Outcome("resized" if counts else "refused without reason", error, str(refusal))
    error = max(error, difference(evaluated(apply, small, x), masked))
    effect = difference(evaluated(apply, params, x), masked)
    return Outcome("equal" if effect > 1e-6 else "without effect", error)


def rounding_error(network: RandomNetwork) -> float:
    """The change of outputs and gradients if parameters change by one unit of rounding.

    Each parameter is increased, decreased or unchanged at random. The result is the largest change
    of three random draws.
    """
    apply, params, x, kinds = network
    rng = np.random.default_rng(0)

    def moved(a: Any) -> Any:
        a = np.asarray(a)
        if not np.issubdtype(a.dtype, np.floating):
            return a
        return np.nextafter(a, a + rng.choice([-1, 0, 1], a.shape).astype(a.dtype))

    def measured(params: Any) -> Any:
        differentiable = NOT_DIFFERENTIABLE.isdisjoint(kinds)
        return evaluated(apply, params, x), differentiable and _gradient(apply, params, x)

    whole = measured(params)
    return max(difference(measured(jax.tree.map(moved, params)), whole) for _ in range(3))


def _gradient(apply: Callable[..., Any], params: Any, x: Any) -> Any:
    """The gradient of a weighted sum of all outputs of `apply`."""

    def total(params: Any, x: Any) -> Any:
        outputs = jax.tree.leaves(apply(params, x))
        return sum((y * jnp.cos(jnp.arange(1.0 * y.size)).reshape(y.shape)).sum() for y in outputs)

    return evaluated(jax.grad(total), params, x)


def drawn_keep(groups: Any, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    keep = [rng.random(group.size) >= REMOVED for group in groups]
    for vector in keep:
        vector[rng.integers(vector.size)] = True
    return keep


def difference(found: Any, expected: Any) -> float:
    """The largest error of an element, relative to its array's largest element (at least 0.001)."""

    def of_array(a: Any, b: Any) -> float:
        error = np.abs(np.asarray(a) - np.asarray(b)).max() / max(1e-3, np.abs(b).max())
        return float(error) if np.isfinite(error) else np.inf

    return max(jax.tree.leaves(jax.tree.map(of_array, found, expected)))
