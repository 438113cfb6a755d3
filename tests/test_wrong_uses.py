"""A wrong use of a public function raises an error of one sentence.

The sentence states what must hold and what was given.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

import jaxnorm
import jaxnorm.linen
from geometry import mean_field, monte_carlo
from geometry.claims import Claim, Draws, about, check, check_all, numbered, objects
from jaxnorm.models import MLP, VGG, CifarResNet, PreActResNet, ResNet
from jaxnorm.shift import Tracker, certified_upper_bound, emd_1d, stream_moments
from pruning import CRITERIA, l1_norm, load_pruned, prune, schedules, weights
from pruning.channels import cost_at, excluding, least_squares, resized, taylor_scores
from pruning.nnx import prune as prune_model

pytestmark = pytest.mark.usefixtures("unchecked")

X = jnp.ones((32, 16))
KEY = jax.random.key(0)
PARAMS = {"a": jnp.ones((16, 32)), "b": jnp.ones((32, 4))}
RANDOM = Draws(lambda key: {"v": jax.random.uniform(key)}, 100)
half = partial(prune, lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"], PARAMS, X, ratios=[0.5])
rngs = partial(nnx.Rngs, 0)
unitized = partial(jaxnorm.nnx.UnitizedBatchNorm, 16)


def unit(p, x):
    return x @ p["a"] @ p["b"]


def callback(step):
    print(step)


def train(params, step, optimizer):
    return params


def mlp():
    return MLP(inputs=16, widths=(8,), classes=4, rngs=rngs())


def claim(draws=RANDOM, statistic="v", **options):
    made = Claim("notes", "Eq. 1", "a statement")
    made.mean("1", 1.0, draws, statistic, **options)
    return made


TEXT_FOR_A_NUMBER = {
    "eps": lambda: jaxnorm.batch_norm(X, eps="1e-5"),
    "pixels": lambda: jaxnorm.unitized_batch_norm(X, 0.5, pixels="4"),
    "momentum": lambda: jaxnorm.nnx.BatchNorm(16, momentum="0.9", rngs=rngs()),
    "groups": lambda: jaxnorm.batch_norm(X, groups=2.0),
    "axis": lambda: jaxnorm.recenter(X, axis=0.0),
    "microbatches": lambda: jaxnorm.nnx.microbatched(lambda model, x: model(x).sum(), 2.0),
    "budget": lambda: half(ratios=(), budget="50%"),
    "classes": lambda: MLP(classes="10", rngs=rngs()),
}
NO_FUNCTION = {
    "factor": lambda: unitized(factor="bounded", rngs=rngs()),
    "an initializer": lambda: unitized(alpha_init=0.5, rngs=rngs()),
    "loss": lambda: jaxnorm.nnx.microbatched("loss", 4),
    "curve": lambda: schedules.iterative(0.5, steps=3, curve="cubic"),
    "repair": lambda: half(repair=[X]),
    "recalibrate": lambda: half(recalibrate=[X]),
    "fine_tune": lambda: half(fine_tune=3),
    "callback": lambda: half(callback=3),
    "apply": lambda: prune(PARAMS, PARAMS, X, ratios=[0.5]),
}
NO_MODULE = {
    "replace_batch_norm": lambda: jaxnorm.nnx.replace_batch_norm(linen.BatchNorm()),
    "fit_widths": lambda: jaxnorm.nnx.fit_widths(X),
    "norm_parameters": lambda: jaxnorm.nnx.norm_parameters(PARAMS),
    "recalibrate": lambda: jaxnorm.nnx.recalibrate(linen.Dense(3), [X]),
    "prune": lambda: prune_model(linen.Dense(3), X, ratios=[0.5]),
}
SENTENCES = {
    "rngs must be nnx.Rngs, such as nnx.Rngs(0); got 0": lambda: CifarResNet(8, classes=10, rngs=0),
    "classes must be at least 1; got 0": lambda: ResNet(18, classes=0, rngs=rngs()),
    "channels must be at least 1": lambda: PreActResNet(8, classes=9, channels=0, rngs=rngs()),
    "classes must be an int": lambda: VGG(11, classes=1.0, rngs=rngs()),
    "widths must be a list": lambda: MLP(classes=3, widths=64, rngs=rngs()),
    "a sample of x must have 16 elements; got 48": lambda: mlp()(jnp.ones((2, 4, 4, 3))),
    "axis must name an axis of x, shape ()": lambda: jaxnorm.linen.BatchNorm(
        use_running_average=False
    ).init(KEY, jnp.ones(())),
    "got a UnitizedBatchNorm object": lambda: jaxnorm.nnx.replace_batch_norm(
        mlp(), unitized(rngs=rngs())
    ),
    "bounds must be LayerBounds, such as dyt_bounds": lambda: certified_upper_bound(3.0),
    "kernel must be a KernelMap": lambda: mean_field.fixed_point(jnp.tanh),
    "ratios, such as [0.5], or a budget must be given; got neither": lambda: half(ratios=()),
    "exclude must be a tuple of names, such as ('a',); got 'a'": lambda: half(exclude="a"),
    "names must be a tuple of names": lambda: excluding((), "a"),
    "form must be one of printed, rejected": lambda: claim(form="wrong"),
    "fault must be one of misprint, false": lambda: Claim("p", "n", "s", fault="typo"),
    "statistic must be one of v, which draws return; got 'w'": lambda: check(
        claim(statistic="w"), KEY
    ),
    "draw must return a dictionary": lambda: check(claim(Draws(jax.random.uniform, 100)), KEY),
    "got the single claim Eq. 1: use check": lambda: check_all(claim(), KEY),
    "claim must be a Claim; got 'Theorem 1'": lambda: objects("Theorem 1"),
    "claims must hold at least one claim": lambda: about((), "Theorem 1"),
    "Eq. 1 has neither": lambda: check(Claim("notes", "Eq. 1", "a statement"), KEY),
    "the criterion must be one of l1, l2, fermat, gm; got 'l3'": lambda: CRITERIA["l3"],
    "the output of layer a must be an array; got list": lambda: stream_moments(
        lambda x: {"a": [1.0]}, [X]
    ),
    "the output of layer b must have samples": lambda: stream_moments(
        lambda x: {"b": x.sum()}, [X]
    ),
    "outputs must return a dictionary from layers": lambda: Tracker(lambda _, x: x, X).update(None),
    "select must be a function of scores with the options ratio": lambda: half(select=l1_norm),
    # These functions read the global `PARAMS` instead of their argument.
    "it multiplies no inputs by arrays of params: use the params that apply gets": lambda: prune(
        lambda params, x: unit(PARAMS, x), PARAMS, X, ratios=[0.5]
    ),
    "returns no hidden activations or running statistics": lambda: prune(
        lambda p, x: (x @ p["a"], x @ p["a"] @ p["b"]), PARAMS, X, ratios=[0.5]
    ),
    "batches must be a list or an iterator of batches; got one array": lambda: half(
        score=partial(taylor_scores, loss=lambda params, x: unit(params, x).sum(), batches=X)
    ),
    "loss must depend on the params that it gets; all gradients are zero": lambda: half(
        score=partial(taylor_scores, loss=lambda params, x: unit(PARAMS, x).sum(), batches=[X])
    ),
    "options cost, budget, as select_within is": lambda: half(
        ratios=(), budget=0.5, select=lambda scores, budget: scores
    ),
    "cost must be a function, such as": lambda: half(ratios=(), budget=0.5, cost="parameters"),
    "a batch must be a tuple of arguments": lambda: half(repair=partial(least_squares, batches=X)),
    "draw must be a function of a random key; got <lambda>()": lambda: Draws(lambda: 1, 10),
    "draw must be a function of a random key, and of the parameters; got": lambda: monte_carlo(
        lambda key: 1.0, KEY, 10, parameters=(X,)
    ),
    "refine must be a function of apply, a tree, groups and keep, as partial(": lambda: half(
        refine=lambda keep: keep
    ),
    "draws must be Draws, such as": lambda: claim(draws=3),
    "values must be a function, such as": lambda: Claim("p", "n", "s").equal("zero")(3),
    "text must be a str, such as 'Theorem 1'": lambda: numbered(3),
    "checkpoint_dir must be a path, such as 'out/net'; got int": lambda: half(checkpoint_dir=3),
    "checkpoint_dir must be a path, such as 'out/net'; got function": lambda: load_pruned(unit),
    "path must be a path, such as 'out/net'; got dict": lambda: weights.save(PARAMS, "net"),
    "source must be a path, such as 'out/net'; got list": lambda: weights.load([PARAMS]),
    "score must return one vector per group, 1 in all; got 0": lambda: half(score=lambda p, g: []),
    "callback must be a function of the step and a Pruned; got callback(step)": lambda: half(
        callback=callback
    ),
    "fine_tune must be a function of the smaller tree, the step; got train(params": lambda: half(
        fine_tune=train
    ),
    "repair must return a tree with the shapes of the tree it gets": lambda: half(
        repair=lambda *_: None
    ),
    "groups must be a result of coupled_channels; got ArrayImpl": lambda: cost_at(unit, PARAMS, X),
    "groups must be a result of coupled_channels; got a list of ArrayImpl": lambda: resized(
        unit, [X], [X]
    ),
    "exclude must match layers with channels that can be removed, such as a; 'stem'": lambda: half(
        exclude=("stem",)
    ),
    "round_to must match layers with channels that can be removed, such as a": lambda: half(
        round_to={"stem": 8}
    ),
    "select must be a function, such as partial(": lambda: half(select="globally"),
    "budget must be a number, such as 0.5, or a list; got 'half'": lambda: half(budget="half"),
    "recalibrate must be a function, such as lambda model: ...; got ArrayImpl": lambda: prune_model(
        mlp(), X, ratios=[0.5], recalibrate=X
    ),
    "fine_tune must be a function of the smaller model and the step; got": lambda: prune_model(
        mlp(), X, ratios=[0.5], fine_tune=lambda model: None
    ),
    "recalibrate must change the model that it gets; it returned another": lambda: prune_model(
        mlp(), jnp.float32(X), ratios=[0.5], recalibrate=nnx.clone
    ),
    "fine_tune must change the model that it gets; it returned another": lambda: prune_model(
        mlp(), jnp.float32(X), ratios=[0.5], fine_tune=lambda model, step: nnx.clone(model)
    ),
    "callback must be a function of the step and the smaller model; got": lambda: prune_model(
        mlp(), X, ratios=[0.5], callback=callback
    ),
    "the folder of path must exist; /no/folder does not: create it": lambda: weights.save(
        "/no/folder/net.safetensors", PARAMS
    ),
    "x must have at least one sample and one feature; got shape (0, 16)": lambda: emd_1d(X[:0], X),
    "predicted must be a number; got '1'": lambda: Claim("p", "n", "s").mean("1", "1", RANDOM, "v"),
    "predicted must be finite; got nan": lambda: Claim("p", "n", "s").mean(
        "1", float("nan"), RANDOM, "v"
    ),
}


def said(use):
    with pytest.raises((TypeError, ValueError, KeyError)) as raised:
        use()
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 260
    return text


@pytest.mark.parametrize("name", TEXT_FOR_A_NUMBER)
def test_a_text_or_a_fraction_for_a_number_is_refused_by_the_name_of_the_argument(name):
    assert said(TEXT_FOR_A_NUMBER[name]).startswith(f"{name} must be ")


@pytest.mark.parametrize("name", NO_FUNCTION)
def test_what_must_be_called_and_cannot_is_refused_with_an_example(name):
    assert said(NO_FUNCTION[name]).startswith(f"{name} must be a function, such as ")


@pytest.mark.parametrize("name", NO_MODULE)
def test_what_is_no_module_of_nnx_is_refused(name):
    assert said(NO_MODULE[name]).startswith("model must be a flax.nnx.Module; got ")


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_sentence_says_what_must_hold(sentence):
    assert sentence in said(SENTENCES[sentence])


def test_a_network_in_training_mode_is_named_by_two_of_its_statistics():
    graph, state = nnx.split(CifarResNet(8, classes=4, rngs=rngs()))
    apply = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731
    text = said(lambda: prune(apply, state, jnp.ones((2, 32, 32, 3), "float32"), ratios=[0.5]))
    assert "must run the network in evaluation mode" in text
    end = r" and \d+ more by statistics of the batch, and does not return the result$"
    assert re.search(end, text)
