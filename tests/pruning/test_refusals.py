"""Wrong uses of `prune` raise an error of one sentence that says how to correct the use."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxnorm
import pruning
from pruning import coupled_channels, prune
from pruning.channels import (
    cost_at,
    least_squares,
    select_globally,
    select_layerwise,
    select_within,
)

RNG = np.random.default_rng(0)
PARAMS = {"a": RNG.normal(size=(4, 8)), "c": RNG.normal(size=(8, 8)), "b": RNG.normal(size=(8, 3))}
X = RNG.normal(size=(6, 4))


def mlp(p, x):
    return jax.nn.relu(jax.nn.relu(x @ p["a"]) @ p["c"]) @ p["b"]


class Net(nnx.Module):
    def __init__(self, norm, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = norm(8, rngs=rngs)
        self.dense = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(not train)(linen.Dense(8)(x))
        return linen.Dense(2)(linen.relu(x))


@pytest.mark.usefixtures("promotion")
@pytest.mark.parametrize("norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm, "linen"])
@pytest.mark.parametrize("resize", [False, True])
def test_a_network_in_training_mode_is_refused(norm, resize):
    """In training mode, the network is refused; in evaluation mode, it is pruned."""
    x = np.ones((2, 6, 6, 3), "float32")
    if norm == "linen":
        model = LinenNet()
        state = model.init(jax.random.key(0), x, train=False)
        train = lambda s, x: model.apply(s, x, train=True, mutable=["batch_stats"])[0]  # noqa: E731
        run = lambda s, x: model.apply(s, x, train=False)  # noqa: E731
        resize = True
    else:
        model = Net(norm, nnx.Rngs(0))
        graph, state = nnx.split(model)
        train = lambda s, x: jaxnorm.nnx.fit_widths(nnx.merge(graph, s))(x)  # noqa: E731
        evaluation, _ = nnx.split(nnx.view(model, use_running_average=True))
        run = lambda s, x: jaxnorm.nnx.fit_widths(nnx.merge(evaluation, s))(x)  # noqa: E731
    with pytest.raises(
        ValueError, match=r"^apply must run the network in evaluation .*updates .*mean.* by"
    ):
        prune(train, state, x, ratios=[0.5], resize=resize)
    assert prune(run, state, x, ratios=[0.5], resize=resize).keep[0].sum() == 4


class RenormalizedNet(nnx.Module):
    """A network with an auxiliary head whose outputs are not used."""

    def __init__(self, norm, rngs):
        self.first, self.norm = nnx.Linear(4, 8, rngs=rngs), norm(8, rngs=rngs)
        self.last, self.head = nnx.Linear(8, 2, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        h = nnx.relu(self.norm(self.first(x)))
        self.head(h.mean(0, keepdims=True))
        return self.last(h)


WRAPS = {"plain": lambda f: f, "jit": jax.jit, "remat": jax.checkpoint}


@pytest.mark.usefixtures("promotion")
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm, jaxnorm.nnx.BatchRenorm])
@pytest.mark.parametrize("samples", [1, 6])
def test_training_is_seen_inside_of_calls_and_heads_that_nobody_reads_are_no_training(
    wrap, norm, samples
):
    x = X.astype("float32")[:samples]
    graph, state = nnx.split(RenormalizedNet(norm, nnx.Rngs(0)))
    train = WRAPS[wrap](lambda s, x: jaxnorm.nnx.fit_widths(nnx.merge(graph, s))(x))
    with pytest.raises(ValueError, match=r"updates norm/mean, norm/var by .* and does not return"):
        prune(train, state, x, ratios=[0.5])
    evaluation, _ = nnx.split(nnx.view(nnx.merge(graph, state), use_running_average=True))
    run = WRAPS[wrap](lambda s, x: jaxnorm.nnx.fit_widths(nnx.merge(evaluation, s))(x))
    assert prune(run, state, x, ratios=[0.5]).params["last"]["kernel"].shape == (4, 2)


def test_training_is_seen_if_the_momentum_is_an_input():
    def apply(p, x, momentum):
        h = x @ p["a"]
        _ = momentum * p["mean"] + (1 - momentum) * h.mean(0)
        return jax.nn.relu(h) @ p["b"]

    with pytest.raises(ValueError, match="updates mean by statistics of the batch, and does not"):
        prune(apply, PARAMS | {"mean": np.ones(8)}, X, np.float64(0.75), ratios=[0.5])


UNREAD = {
    "a layer": lambda p, h: h @ p["c"] + p["bias"][None],
    "a layer of the mean": lambda p, h: h.mean(0) @ p["c"] + p["bias"],
    "one rounded sample": lambda p, h: jax.lax.reduce_precision(h[0], 8, 7) + p["bias"],
    "a product with the mean": lambda p, h: p["bias"] * h.mean(0),
    "one sample beside the mean": lambda p, h: h.mean(0) * h[0] + p["bias"],
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_head_that_nobody_reads_is_no_statistic(name):
    def apply(p, x):
        h = jax.nn.relu(x @ p["a"])
        UNREAD[name](p, h)
        return h @ p["b"]

    params = PARAMS | {"bias": np.ones(8)}
    assert prune(apply, params, X, ratios=[0.5]).params["a"].shape == (4, 4)


def test_a_network_whose_statistics_are_always_those_of_the_batch_is_pruned():
    apply = lambda p, x: jax.nn.relu(x @ p["a"] - (x @ p["a"]).mean(0)[None]) @ p["c"]  # noqa: E731
    assert prune(apply, PARAMS, X, ratios=[0.5], exclude=[]).params["a"].shape == (4, 4)


@pytest.mark.parametrize("budget", [1e9, [1e9, 1e8]])
def test_a_budget_that_the_whole_network_meets_is_refused(budget):
    with pytest.raises(ValueError, match=r"^budget must be below the cost of the whole network; 1"):
        prune(mlp, PARAMS, X, budget=budget)
    with pytest.raises(ValueError, match=r"^budget must be at least .* below 1 .* resize=True"):
        prune(mlp, PARAMS, X, budget=1)


@pytest.mark.parametrize("repair", [least_squares, pruning.channels.rescale])
def test_batches_for_a_repair_are_a_list(repair):
    once: Any = ((X,) for _ in range(2))
    with pytest.raises(TypeError, match=r"^batches must be a list of tuples, .*; got generator$"):
        prune(mlp, PARAMS, X, ratios=[0.5], repair=partial(repair, batches=once))


@pytest.mark.parametrize(
    ("batch", "got"), [({"x": X}, "dict"), ("x", "str"), (X, "an array"), (3, "int")]
)
def test_a_batch_is_a_tuple_of_arguments(batch, got):
    groups = coupled_channels(mlp, PARAMS, X)
    keep = [np.arange(8) < 4] * 2
    uses = {
        "a batch": lambda: least_squares(mlp, PARAMS, groups, keep, [batch, batch]),
        "inputs": lambda: pruning.channels.merge_channels(mlp, PARAMS, groups, keep, inputs=batch),
    }
    for name, use in uses.items():
        with pytest.raises(TypeError, match=rf"^{name} must be a tuple of arguments.*; got {got}$"):
            use()


SELECT = {
    "layerwise": partial(select_layerwise, ratio=0.5),
    "globally": partial(select_globally, ratio=0.5),
    "within": partial(select_within, budget=3, cost=sum),
}
NO_SCORES = {
    "of one group": (jnp.arange(4.0), r"for each group, even for one group; .* of shape \(\)$"),
    "nested": ([[np.ones(3), np.ones(3)]], r"even for one group; .* of shape \(2, 3\)$"),
    "none": ([], "for each group; got none$"),
    "NaN": ([np.ones(3), np.array([1, np.nan, 2])], "no NaN; 1 of 3 are NaN in a group$"),
}


@pytest.mark.parametrize("scores", NO_SCORES)
@pytest.mark.parametrize("select", SELECT)
def test_scores_are_a_vector_without_nan_for_each_group(select, scores):
    given, message = NO_SCORES[scores]
    with pytest.raises(ValueError, match=rf"^scores must hold .*{message}"):
        SELECT[select](given)


FUNCTIONS = {
    "score": (pruning.l1_norm, r"a tree and groups, .*; got l1_norm\(filters\)"),
    "repair": (least_squares, r"apply, a tree, groups and keep, .*; got least_squares\(apply,"),
    "recalibrate": (lambda: 0, r"the smaller tree; got <lambda>\(\)"),
    "fine_tune": (lambda params: params, r"the smaller tree, the step; got <lambda>\(params\)"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_other_arguments_are_refused_at_once(name):
    function, message = FUNCTIONS[name]
    with pytest.raises(TypeError, match=rf"^{name} must be a function of {message}"):
        prune(mlp, PARAMS, X, ratios=[0.5], **{name: function})


def test_functions_that_do_not_take_the_pruned_of_a_resized_network_are_refused():
    steps: dict[str, Any] = {"recalibrate": lambda params: 0, "fine_tune": lambda params, n: 0}
    for (name, function), of_step in zip(steps.items(), ("", ", the step"), strict=True):
        message = rf"^{name} must be a function of the smaller tree{of_step} and a Pruned; got <lam"
        with pytest.raises(TypeError, match=message):
            prune(mlp, PARAMS, X, ratios=[0.5], resize=True, **{name: function})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integer_kernels_are_refused_with_the_cure(dtype):
    params = {"a": PARAMS["a"].astype(dtype), "scale": np.ones(8), "b": PARAMS["b"]}
    apply = lambda p, x: (x @ p["a"].astype(float) * p["scale"][None]) @ p["b"]  # noqa: E731
    with pytest.raises(
        TypeError,
        match=rf"^params must hold floating-point .*; a has dtype {dtype}; for a quantized",
    ):
        prune(apply, params, X, ratios=[0.5])

    def score(params, groups):
        whole = params | {"a": params["a"] * params["scale"][None]}
        return pruning.channels.channel_scores(whole, groups)

    assert prune(apply, params, X, ratios=[0.5], score=score).params["a"].dtype == dtype


def test_arrays_with_the_same_path_are_refused():
    """Two arrays have the same path, by which channels would be removed."""
    params = {"a/b": np.ones((4, 8)), "a": {"b": np.ones((8, 8))}, "c": np.ones((8, 2))}
    apply = lambda p, x: jax.nn.relu(x @ p["a/b"]) @ p["a"]["b"] @ p["c"]  # noqa: E731
    with pytest.raises(ValueError, match=r"^arrays of params must have different paths; .* a/b$"):
        coupled_channels(apply, params, X)
    with pytest.raises(ValueError, match=r"^arrays of params must have different paths; .* a/b$"):
        prune(apply, params, X, ratios=[0.5])
    assert coupled_channels(lambda params: 0, {}) == ()


def loud(p, x):
    if p["a"].shape[1] < 8:
        raise TypeError(f"a long message. {PARAMS} With an array.")
    return mlp(p, x)


def test_a_refusal_begins_with_the_cure_and_quotes_little():
    with pytest.raises(
        ValueError, match=r"^apply must take .*fit_widths; .*resize=True\)\); with"
    ) as e:
        prune(loud, PARAMS, X, ratios=[0.5])
    said = str(e.value)
    assert "\n" not in said
    assert said.index("resize=True") < said.index("a long message")
    assert len(said) < 600
    assert said.index("…") - said.index("a long message") == 199
    with pytest.raises(
        ValueError, match=r"by functools.partial\); got TypeError: a long message"
    ) as e:
        coupled_channels(loud, {"a": np.ones((4, 3))}, X)
    assert len(str(e.value)) < 400


WRONG_TREES = {
    "inputs alone": (lambda pruned: (X,), "shape .* at a; got shape .*"),
    "the larger tree": (lambda pruned: (PARAMS, X), "shape .* at a; got shape .* at a"),
    "an array too few": (
        lambda pruned: ({"a": pruned.params["a"]}, X),
        "shape .* at b; got no further array",
    ),
    "an array too many": (
        lambda pruned: (pruned.params | {"d": X}, X),
        "no further array; got shape .* at d",
    ),
}


@pytest.mark.parametrize("name", WRONG_TREES)
def test_a_pruned_function_and_the_check_of_its_program_take_the_smaller_tree(name):
    pruned = prune(mlp, PARAMS, X, ratios=[0.5], resize=True)
    wrong, found = WRONG_TREES[name]
    arguments = wrong(pruned)
    sentence = (
        f"^params must be the smaller tree, such as the field params of a Pruned, with {found}"
    )
    with pytest.raises(ValueError, match=sentence):
        pruned.apply(*arguments)
    with pytest.raises(ValueError, match=sentence):
        pruning.channels.check_program(mlp, arguments[0], pruned.groups, pruned.keep, X)
    assert pruned.apply(pruned.params, X).shape == (6, 3)


@pytest.mark.parametrize("exclude", [["a"], ["c"]])
@pytest.mark.parametrize("select", [None, select_within, partial(select_within, min_channels=2)])
def test_a_budget_beside_layers_that_are_excluded(exclude, select):
    """The budget limits the cost of the whole network, but only one of two layers may be pruned."""
    pruned = prune(mlp, PARAMS, X, budget=0.75, select=select, exclude=exclude)
    assert pruned.params[exclude[0]].shape[1] == 8
    at = cost_at(mlp, PARAMS, pruned.groups, X)
    width, whole = int(pruned.keep[0].sum()), pruning.cost(mlp, PARAMS, X).macs
    assert pruning.cost(mlp, pruned.params, X).macs == at([width]).macs
    assert at([width]).macs <= 0.75 * whole < at([width + 1]).macs


def test_a_cost_of_groups_that_are_excluded_is_refused_with_the_cure():
    at = cost_at(mlp, PARAMS, coupled_channels(mlp, PARAMS, X), X)
    select = partial(select_within, cost=lambda widths: at(widths).macs)
    with pytest.raises(
        ValueError, match=r"^widths must hold 2 numbers, .* excluding\(groups, names"
    ):
        prune(mlp, PARAMS, X, budget=100, select=select, exclude=["a"])


def test_pruning_again_compiles_nothing(caplog):
    def apply(p, x):
        layer = lambda h, w: (jax.nn.relu(h @ w), None)  # noqa: E731
        return jax.lax.scan(layer, jax.nn.relu(x @ p["a"] + 1), p["c"][None])[0] @ p["b"]

    def compiled(function, *args, **options):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            function(*args, **options)
        return [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]

    several: list[dict[str, Any]] = [{}, {"resize": True}, {"fold": False}]
    for options in several:
        prune(apply, PARAMS, X, ratios=[0.5], **options)
        assert compiled(prune, apply, PARAMS, X, ratios=[0.5], **options) == []
    # The log must show that JAX compiles a function for a new shape.
    assert compiled(jnp.tanh, np.ones(int(RNG.integers(1000, 9999))))


AVERAGES = {
    "weighted": lambda old, new: 0.9 * old + 0.1 * new,
    "the new one first": lambda old, new: 0.1 * new + old * 0.9,
    "moved by a difference": lambda old, new: old - 0.1 * (old - new),
    "moved towards": lambda old, new: old + (new - old) / 10,
    "weighted by a number of the batch": lambda old, new: 0.9 * old + new[0] * new,
}


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("form", AVERAGES)
def test_every_form_of_a_running_average_is_seen_unless_it_is_returned(form, returned):
    """If the first layer's running average is returned, the error names only the second layer's."""

    def apply(p, x):
        h = x @ p["a"]
        first = AVERAGES[form](p["mean a"], h.mean(0))
        h = jax.nn.relu(h - h.mean(0)[None]) @ p["c"]
        second = AVERAGES[form](p["mean c"], h.mean(0))
        y = jax.nn.relu(h - h.mean(0)[None]) @ p["b"]
        return (y, first, second) if returned else (y, first)

    params = PARAMS | {"mean a": np.ones(8), "mean c": np.ones(8)}
    if returned:
        with pytest.raises(ValueError, match="apply must have channels that can be removed"):
            prune(apply, params, X, ratios=[0.5])
    else:
        with pytest.raises(ValueError, match=r"this apply updates mean c by statistics of the bat"):
            prune(apply, params, X, ratios=[0.5])


def test_an_average_may_be_returned_as_the_second_of_two_parts():
    def apply(p, x):
        h = jax.nn.relu(x @ p["a"]) @ p["c"]
        average = 0.9 * p["mean"] + 0.1 * h.mean(0)
        _, second = jnp.split(jnp.concatenate([h[0], average]), 2)
        return jax.nn.relu(h) @ p["b"], second

    params = PARAMS | {"mean": np.ones(8)}
    assert prune(apply, params, X, ratios=[0.5], resize=True).params["a"].shape == (4, 4)
