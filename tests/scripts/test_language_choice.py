"""The choice of a language model's units, and the least-squares fit of the remaining kernels."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from scipy.special import expit, softmax

from experiments.cli import InputError
from experiments.language import (
    architecture,
    budget,
    choice,
    comparison,
    compiled_budget,
    cutting,
    pruning_run,
    removal,
    repair,
    scores,
    streams,
    tokens,
    training,
)
from experiments.language.budget import Wanted
from experiments.language.choice import Text
from experiments.language.removal import Counts
from experiments.language.repair import Equations
from tests.support import language_models
from tests.support.recorded import assert_as_recorded
from tests.support.smaller_language_models import random_model

pytestmark = pytest.mark.usefixtures("users_jax")


def random_text(count, *sizes):
    """Random words, divided into sequences."""
    numbers = np.random.default_rng(0).integers(0, language_models.WORDS, count)
    return Text(*tokens.divide(numbers, *sizes))


def missed(w, x, j):
    """The least Σ ‖W x − W' x'‖² over all W', where x' is x without the elements j, by NumPy."""
    return missed_by(w, x, np.setdiff1d(np.arange(x.shape[1]), j))


def missed_by(w, x, remaining):
    """The squared error of the outputs x wᵀ if least squares fits them to the remaining inputs."""
    solution, *_ = np.linalg.lstsq(x[:, remaining], x @ w.T, rcond=None)
    return np.sum(np.square(x[:, remaining] @ solution - x @ w.T))


@pytest.mark.parametrize("width", [1, 2])
def test_the_rise_of_a_unit_is_what_least_squares_misses_without_it(width):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)), rng.normal(size=(3, 6))
    found = scores.rise(w, np.linalg.inv(x.T @ x), width, np.full(6 // width, fill_value=True))
    units = [np.arange(u * width, (u + 1) * width) for u in range(6 // width)]
    np.testing.assert_allclose(found, [missed(w, x, j) for j in units], rtol=1e-8)


def test_a_copy_costs_nothing_and_is_removed_before_all_others():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(200, 12)), rng.normal(size=(5, 12))
    # If magnitudes decided, both copies 3 and 8 would remain.
    x[:, 8], w[:, [3, 8]] = x[:, 3], 10.0
    remaining = scores.reconstruction(w, x.T @ x, 1, 11)
    assert len(set(range(12)) - set(remaining)) == 1
    assert len({3, 8} & set(remaining)) == 1
    assert list(scores.reconstruction(w, x.T @ x, 3, 4)) == [0, 1, 2, 3]


def test_many_units_are_removed_in_rounds_that_see_each_other():
    """The units are ten pairs of copies. At most one unit of each pair may be removed."""
    rng = np.random.default_rng(1)
    x = np.repeat(rng.normal(size=(400, 10)), 2, axis=1)
    remaining = scores.reconstruction(rng.normal(size=(30, 20)), x.T @ x, 1, 18)
    removed = sorted(set(range(20)) - set(remaining))
    assert len({unit // 2 for unit in removed}) == 2


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_units_that_least_squares_misses_most_remain(width):
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(90, 12)) @ rng.normal(size=(12, 12)), rng.normal(size=(4, 12))
    left = list(range(12 // width))
    remaining = max(2, len(left) - scores.ROUNDS)  # each round removes one unit
    while len(left) > remaining:
        inputs = [np.arange(u * width, (u + 1) * width) for u in left]
        alone = [missed_by(w, x, np.delete(inputs, k, 0).ravel()) for k in range(len(left))]
        del left[int(np.argmin(alone))]
    np.testing.assert_array_equal(scores.reconstruction(w, x.T @ x, width, remaining), left)


@pytest.mark.parametrize("remaining", [1, 3, 10, 11, 19, 20])
def test_as_many_units_remain_as_are_asked_for(remaining):
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(60, 20)), rng.normal(size=(5, 20))
    assert len(scores.reconstruction(w, x.T @ x, 1, remaining)) == remaining


def test_scores_of_inputs_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(7, 4)), rng.normal(size=(3, 4))
    sizes = [np.sqrt(sum(row[j] ** 2 for row in x)) for j in range(4)]
    wanda = [sum(abs(w[i, j]) * sizes[j] for i in range(3)) for j in range(4)]
    square = np.square(x).sum(0)
    np.testing.assert_allclose(scores.projection_scores("wanda", w, square, 1), wanda)
    pairs = [wanda[0] + wanda[1], wanda[2] + wanda[3]]
    np.testing.assert_allclose(scores.projection_scores("wanda", w, square, 2), pairs)
    np.testing.assert_allclose(scores.projection_scores("activation", w, square, 1), sizes)
    heads = [np.hypot(sizes[0], sizes[1]), np.hypot(sizes[2], sizes[3])]
    np.testing.assert_allclose(scores.projection_scores("activation", w, square, 2), heads)


def test_magnitudes_are_sums_over_all_weights_of_a_unit():
    p = {
        "mlp.up_proj.weight": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "mlp.down_proj.weight": np.array([[1.0, 0.0], [0.0, 5.0]]),
        "mlp.up_proj.bias": np.array([9.0, 9.0]),
    }
    np.testing.assert_array_equal(scores.magnitudes(p, "intermediate"), [6.0, 50.0])
    np.testing.assert_array_equal(scores.magnitudes(p, "hidden"), [11.0, 45.0])
    assert list(scores.largest(np.array([1.0, 3.0, 3.0, 2.0, 3.0]), 2)) == [1, 2]


def test_a_solution_without_a_ridge_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    x, y, start = (rng.normal(size=shape) for shape in ((50, 4), (50, 3), (4, 3)))
    expected, *_ = np.linalg.lstsq(x, y, rcond=None)
    equations = Equations(x.T @ x, x.T @ y)
    np.testing.assert_allclose(repair.solution(start, equations, 1e-13), expected, atol=1e-9)
    np.testing.assert_allclose(repair.solution(start, equations, 1e13), start, atol=1e-9)
    by_hand = repair.solution(np.array([[1.0]]), Equations(np.eye(1) * 3, np.eye(1) * 9), 1.0)
    np.testing.assert_allclose(by_hand, [[2.0]])  # by hand: (9 + 3 · 1) / (3 + 3)


CHOSEN: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 8}
CHOSEN |= {"num_key_value_heads": 4, "num_local_experts": 6, "num_experts_per_tok": 2}


@pytest.mark.parametrize("family", ["qwen3", "mixtral"])
def test_the_units_that_every_score_chooses_are_as_recorded(family, tmp_path):
    model = random_model(tmp_path / "model", family, **CHOSEN)
    text = random_text(3000, 16, 16, 4, 5)
    whole = removal.counts(model.architecture)
    counts = whole._replace(layers=3, groups=2, hidden=15, experts=max(1, whole.experts - 2))
    counts = counts if family == "mixtral" else counts._replace(intermediate=7)
    found = {}
    for score in get_args(scores.Score):
        for given in (text, None) if score in ("magnitude", "random") else (text,):
            chosen = choice.choose(model, counts, score, given, 4, lambda _: None)
            lists = {
                name: np.array(part).tolist() for name, part in chosen.selection._asdict().items()
            }
            found[f"{score}, {'text' if given else 'no text'}"] = lists
            if score == "wanda":
                found |= {"influences": chosen.influences, "perplexity": chosen.perplexity}
    assert_as_recorded(f"runs/choice_{family}", found, rtol=1e-3)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "mixtral"])
def test_the_numbers_of_units_of_every_budget_are_as_recorded(family, tmp_path):
    sizes = CHOSEN | {"intermediate_size": 50, "n_inner": 50}
    model = random_model(tmp_path / "model", family, **sizes)
    tensors, kinds = model.tensors, model.architecture.traits.units
    whole = removal.counts(model.architecture)
    size = removal.parameters(model.architecture, tensors, whole)
    found = {"whole": [*whole, size]}
    for share, round_to, units in itertools.product((0.9, 0.75), (1, 8), {kinds, kinds[-1:]}):
        wanted = Wanted(budget=int(share * size), units=units, round_to=round_to)
        kind = "experts" if family == "mixtral" else "intermediate"
        for given in ({}, {"layers": 3}, {"heads": 8, kind: getattr(whole, kind) - 2}):
            if family == "gpt2" and "heads" in given:
                continue  # for GPT-2, the options leave no count to choose
            counts = budget.choose(model.architecture, tensors, replace(wanted, **given))
            own = f"{share} {round_to} {given} {' '.join(units)}"
            found[own] = [*counts, removal.parameters(model.architecture, tensors, counts)]
    assert_as_recorded(f"runs/budget_{family}", dict(sorted(found.items())))


def copies(weights):
    """Make the second half of the intermediate units and heads in `weights` copy the first half."""
    for name, array in weights.items():
        if any(part in name for part in ("up_proj", "gate_proj", "q_proj", "k_proj", "v_proj")):
            array[len(array) // 2 :] = array[: len(array) // 2]
    return weights


SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "qwen2", "llama"])
def test_without_copies_the_repaired_model_is_the_whole_one(family, tmp_path):
    sizes = SIZES | {"hidden_size": 24, "num_hidden_layers": 3, "head_dim": 4}
    model = random_model(tmp_path / "model", family, copies, **sizes)
    text = random_text(3000, 16, 32, 8, 0)
    counts = Counts(3, 1, 8, 24)
    chosen = choice.choose(model, counts, "reconstruction", text, 0, lambda _: None)
    for remaining in chosen.selection.intermediate:
        # One unit of each pair of copies remains.
        assert sorted(remaining % 8) == list(range(8))
    plan = cutting.plan(model, chosen.selection, text, repaired=True)
    found = {}
    assert len(dict(cutting.arrays(plan, found, lambda _: None))) == len(model.tensors)
    assert chosen.perplexity is not None
    assert comparison.whole_perplexity(model, counts, text) == chosen.perplexity._asdict()
    whole, cut, repaired = chosen.perplexity.value, found["cut"].value, found["repaired"].value
    # The ridge of the repair pulls kernels towards the kernels before the repair, so the repaired
    # model is not exactly equal to the whole model.
    assert abs(repaired / whole - 1) < 2e-3
    assert abs(cut / whole - 1) > 10 * abs(repaired / whole - 1)


def channel_copies(weights):
    """The stream's last four channels copy the first four; the head does not read the last four."""
    for name, array in weights.items():
        if name.endswith(("embed_tokens.weight", "o_proj.weight", "down_proj.weight")):
            axis = int("embed" in name)
            np.moveaxis(array, axis, 0)[20:] = np.moveaxis(array, axis, 0)[:4]
    weights["lm_head.weight"][:, 20:] = 0
    return weights


def test_a_narrower_stream_is_repaired_towards_the_whole_one(tmp_path):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "tie_word_embeddings": False}
    model = random_model(tmp_path / "model", "qwen2", channel_copies, **sizes)
    text = random_text(9000, 32, 64, 8, 0)
    selection = removal.whole(model.architecture)._replace(hidden=np.arange(20))
    repaired, cut, _ = distances(model, selection, text)
    assert repaired < 0.2 * cut


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mixtral"])
def test_readers_of_a_narrower_stream_are_fitted_to_the_units_of_their_own_layer(
    family, tmp_path, monkeypatch
):
    """The second half of the stream copies the first, so all outputs can still be reproduced."""
    monkeypatch.setattr(repair, "RIDGES", (1e-6,))
    model = random_model(tmp_path / "model", family, **CHOSEN, rms_norm_eps=1e-6)
    whole, rng = removal.whole(model.architecture), np.random.default_rng(0)

    def half(units):
        return [np.sort(rng.permutation(own)[: (len(own) + 1) // 2]) for own in units]

    kept = {name: half(getattr(whole, name)) for name in ("groups", "intermediate", "experts")}
    selection = whole._replace(hidden=np.arange(12), **kept)
    plan = cutting.plan(model, selection, None, repaired=False)
    x = np.tile(rng.normal(3, 1, (16, 8, 12)), 2).astype(np.float32)
    mixture = model.architecture.traits.mixture
    readers = cutting.ATTENTION, cutting.EXPERTS if mixture else cutting.PERCEPTRON
    for i in (1, 2):
        p = model.layer(i)
        small = {name: cutting.small_array(plan, name, array, i) for name, array in p.items()}
        layers = [
            streams.make_layer(*of_one, i, 8)
            for of_one in ((model.architecture, p), (plan.small, small))
        ]
        for names, norm in zip(readers, streams.norm_names(model.architecture), strict=True):
            both = x, x[..., :12]
            fitted = cutting.solve_readers(plan, i, layers[1], names, layers[0], both, norm)
            h, h_small = (
                layer.normalize(norm, part) for layer, part in zip(layers, both, strict=True)
            )
            for name in names:
                wanted = h @ units_of(model.architecture, p[name], name, kept, i).T
                if family == "qwen3" and name in cutting.ATTENTION[:2]:
                    wanted = wanted * 2**0.5  # each head's norm has a doubled epsilon
                missed = [
                    np.abs(h_small @ choice.rows(np.asarray(params[name])).T - wanted).max()
                    for params in (fitted.params, small)
                ]
                assert missed[0] < 0.01 * missed[1]


def units_of(model, array, name, kept, layer):
    """The rows of `array` that belong to the units in `kept`; each row computes one output."""
    if "experts" in name:
        array = array[kept["experts"][layer]][:, kept["intermediate"][layer]]
    elif name == "mlp.gate.weight":
        array = array[kept["experts"][layer]]
    elif name.startswith("mlp"):
        array = array[kept["intermediate"][layer]]
    else:
        array = array.reshape(model.groups, -1, model.hidden)[kept["groups"][layer]]
    return choice.rows(array)


class Linear(NamedTuple):
    """A linear stand-in for a layer with one head; its norms multiply by a number."""

    model: Any
    params: dict[str, np.ndarray]

    def run(self, name, x, inner=0.0):
        match name:
            case "attend" | "activate":
                return len(name) * x
            case "add_attention":
                return x + self.project("self_attn.o_proj", inner)
            case "add_activations":
                return x + self.project("mlp.down_proj", inner)
            case "add_experts":
                kernels = enumerate(self.params[cutting.EXPERTS_OUT])
                return x + sum(self.run_expert(x, e) @ kernel.T for e, kernel in kernels)
        x = self.run("add_attention", x, self.run("attend", x))
        if self.model.traits.mixture:
            return self.run("add_experts", x)
        return self.run("add_activations", x, self.run("activate", x))

    def project(self, name, x):
        return x @ self.params[f"{name}.weight"].T + self.params.get(f"{name}.bias", 0.0)

    def normalize(self, name, x):
        return len(name) * x

    def run_expert(self, x, expert):
        return x * [2, -3][expert]

    def replace(self, params):
        return self._replace(params=self.params | params)


@pytest.mark.parametrize("family", architecture.FAMILIES)
def test_scores_see_the_stream_before_each_norm(family):
    rng, traits = np.random.default_rng(0), architecture.FAMILIES[family]
    names = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    params = {name: rng.normal(size=(4, 4)) for name in names}
    params |= {cutting.EXPERTS_OUT: rng.normal(size=(2, 4, 4))}
    layer: Any = Linear(SimpleNamespace(traits=traits, experts=2), params)
    x = rng.normal(size=(3, 5, 4))
    seen = choice.observe(layer, x, experts=False)
    between = x + 6 * x @ params[names[0]].T  # the attention of `Linear` multiplies by 6
    norms = streams.norm_names(layer.model)
    for name, stream in zip(norms, (x, between), strict=True):
        expected = np.square(len(name) * stream).sum((0, 1))
        np.testing.assert_allclose(seen.squares[name], expected, rtol=1e-12)
    np.testing.assert_allclose(seen.after, layer.run("layer", x), rtol=1e-12)


@pytest.mark.parametrize("family", ["qwen2", "mixtral", "gpt2"])
def test_a_repaired_layer_comes_with_the_streams_after_it(family):
    """The streams are those after the whole layer and after the smaller layer with all its fits."""
    rng = np.random.default_rng(0)
    model: Any = SimpleNamespace(traits=architecture.FAMILIES[family], hidden=4)
    plan: Any = SimpleNamespace(
        model=SimpleNamespace(architecture=model),
        small=model,
        selection=SimpleNamespace(hidden=np.arange(4)),
    )
    names = ["self_attn.o_proj.bias", "mlp.down_proj.bias"] if model.traits.gpt2 else []
    biases = {name: 10 * rng.normal(size=4) for name in names}
    layers: list[Any] = [
        Linear(
            model,
            {
                "self_attn.o_proj.weight": rng.normal(size=(4, 4)),
                "mlp.down_proj.weight": rng.normal(size=(4, 4)),
                cutting.EXPERTS_OUT: rng.normal(size=(2, 4, 4)),
            }
            | biases,
        )
        for _ in range(2)
    ]
    whole, small = layers
    x = rng.normal(size=(8, 5, 4))  # the mean is 0, so a kernel cannot act as a bias
    y = x + 0.1 * rng.normal(size=x.shape)
    fitted, after, after_small = cutting.repair_layer(plan, 1, whole, small, x, y)
    np.testing.assert_allclose(after, whole.run("layer", x), rtol=1e-12)
    np.testing.assert_allclose(after_small, fitted.run("layer", y), rtol=1e-12)
    missed = [np.square(layer.run("layer", y) - after).sum() for layer in (fitted, small)]
    assert missed[0] < 0.05 * missed[1]
    # After the attention, the fitted kernel alone corrects the stream of the small network.
    between = whole.run("add_attention", x, whole.run("attend", x))
    wanted = choice.rows(between - y) - biases.get("self_attn.o_proj.bias", 0)
    kernel, *_ = np.linalg.lstsq(choice.rows(small.run("attend", y)), wanted)
    found, scale = fitted.params["self_attn.o_proj.weight"], np.abs(kernel).max()
    np.testing.assert_allclose(found, kernel.T, atol=0.02 * scale)


def test_a_layer_is_fitted_to_the_stream_that_enters_it_in_the_whole_decoder(tmp_path, monkeypatch):
    """Layers 1 and 3 of 4 are removed. Layer i of the fake whole model adds 10ⁱ to the stream."""
    model = random_model(tmp_path / "model", "qwen2", **CHOSEN | {"hidden_size": 12})
    selection, seen = removal.whole(model.architecture)._replace(layers=np.array([0, 2])), []

    def make_layer(architecture, params, i, tokens):
        added = 10**i if architecture is model.architecture else -(10**i)
        return SimpleNamespace(params=params, run=lambda name, x: x + added)

    def repair_layer(plan, i, whole, small, x, y):
        seen.append((i, x, y))
        run = lambda name, stream: small.run(name, stream) - 0.5  # noqa: E731
        fitted = SimpleNamespace(params=small.params, run=run)
        return fitted, whole.run("layer", x), fitted.run("layer", y)

    monkeypatch.setattr(cutting, "repair_layer", repair_layer)
    monkeypatch.setattr(streams, "make_layer", make_layer)
    monkeypatch.setattr(
        streams, "embed", lambda architecture, ends, part: 3.0 + np.zeros_like(part)
    )
    monkeypatch.setattr(streams, "perplexity", lambda architecture, ends, x, following: x)
    plan = cutting.plan(model, selection, Text(*np.zeros((2, 1, 2))), repaired=True)
    found: dict[str, Any] = {}
    assert dict(cutting.arrays(plan, found, lambda _: None))
    assert seen == [(0, 3, 3), (2, 3 + 1 + 10, 3 - 1 - 0.5)]
    assert found == {"cut": 3 - 1 - 10, "repaired": 3 - 1 - 10 - 2 * 0.5}


def test_streams_begin_with_the_tokens_that_have_a_next_token(tmp_path):
    model = random_model(tmp_path / "model", "qwen2", **SIZES)
    calibration, held_out = np.arange(12).reshape(2, 6), np.arange(12, 24).reshape(2, 6)
    selection = removal.whole(model.architecture)._replace(hidden=np.arange(6))
    text = Text(calibration, held_out)
    plan = cutting.plan(model, selection, text, repaired=True)
    state: Any = cutting.start(plan, model.ends())
    table = np.asarray(model.ends().table, np.float32)
    np.testing.assert_allclose(state.whole, table[calibration[:, :-1]])
    np.testing.assert_allclose(state.repaired, table[calibration[:, :-1]])
    np.testing.assert_allclose(state.cut_held_out, table[held_out[:, :-1]])
    np.testing.assert_allclose(state.repaired_held_out, table[held_out[:, :-1]])


EXPERTS: dict[str, Any] = {"hidden_size": 12, "num_hidden_layers": 2, "sliding_window": None}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_an_expert_is_worth_its_weight_times_the_norm_of_its_output(family, tmp_path):
    """A loop over tokens in float64 computes the expected score of each expert."""
    sizes = EXPERTS | {"num_local_experts": 4} if family == "mixtral" else EXPERTS
    model = random_model(tmp_path / "model", family, num_experts_per_tok=2, **sizes)
    whole = model.architecture
    p = model.layer(0)
    x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
    found = choice.expert_sizes(streams.make_layer(whole, p, 0, 5), x)
    expected = np.zeros(whole.experts)
    for row in x.reshape(-1, 12).astype(np.float64):
        h = row / np.sqrt(np.mean(row**2) + whole.eps) * p["post_attention_layernorm.weight"]
        weights = softmax(p["mlp.gate.weight"] @ h)
        chosen = np.argsort(weights)[-2:]
        total = weights[chosen].sum() if whole.shares_sum_to_one else 1.0
        for e in chosen:
            gate, up, down = (p[f"mlp.experts.{n}_proj.weight"][e] for n in ("gate", "up", "down"))
            units = (gate @ h) * expit(gate @ h) * (up @ h)
            expected[e] += weights[e] / total * np.linalg.norm(down @ units)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_the_least_experts_are_removed_and_the_others_take_over(family, tmp_path):
    """The first expert of each layer is removed, because its output is almost zero."""
    name = "num_local_experts" if family == "mixtral" else "num_experts"
    sizes = EXPERTS | {name: 4, "num_experts_per_tok": 2}
    model = random_model(tmp_path / "model", family, first_expert_is_weak, **sizes)
    text = random_text(9000, 16, 64, 8, 0)
    counts = removal.counts(model.architecture)._replace(experts=2)
    chosen = choice.choose(model, counts, "wanda", text, 0, lambda _: None)
    assert all(0 not in experts for experts in chosen.selection.experts)
    repaired, cut, arrays = distances(model, chosen.selection, text)
    assert arrays["model.layers.1.mlp.experts.up_proj.weight"].shape[0] == 2
    assert repaired < 0.9 * cut


@pytest.mark.parametrize(
    ("score", "has_text", "expected"),
    [
        ("magnitude", True, [1, 2]),
        ("magnitude", False, [1, 2]),
        ("wanda", True, [0, 3]),
        ("wanda", False, [1, 2]),
    ],
)
def test_experts_of_the_largest_weights_remain_by_magnitude_and_the_most_used_on_text(
    score, has_text, expected
):
    """The experts with the largest weights are used by the fewest tokens."""
    name = next(n for n, axes in scores.AXES.items() if "experts" in axes)
    shape = [4 if axis == "experts" else 3 for axis in scores.AXES[name]]
    weight = np.ones(shape)
    np.moveaxis(weight, scores.AXES[name].index("experts"), 0)[[1, 2]] = 5.0
    used: Any = SimpleNamespace(experts=np.array([9.0, 1.0, 2.0, 7.0]))
    model: Any = SimpleNamespace(experts=4)
    seen = used if has_text else None
    found = choice.of_experts(model, {name: weight}, seen, 2, score, None)
    assert found.tolist() == expected


def first_expert_is_weak(weights):
    for name in weights:
        if name.endswith(("experts.0.w2.weight", "experts.0.down_proj.weight")):
            weights[name] *= 1e-3
    return weights


def test_the_repair_of_experts_is_that_of_least_squares_on_what_the_others_leave(tmp_path):
    """With a single expert, of weight 1, the repair is a least-squares fit of one projection."""
    sizes = EXPERTS | {"num_local_experts": 1, "num_experts_per_tok": 1, "intermediate_size": 8}
    model = random_model(tmp_path / "model", "mixtral", **sizes)
    p, rng = model.layer(0), np.random.default_rng(0)
    x = rng.normal(size=(8, 16, 12)).astype(np.float32)
    layer = streams.make_layer(model.architecture, p, 0, 16)
    inputs = choice.rows(layer.run_expert(x, 0)).astype(np.float64)
    kernel = rng.normal(size=(12, 8))
    after = x + (inputs @ kernel.T).reshape(x.shape).astype(np.float32)
    plan = cutting.plan(model, removal.whole(model.architecture), None, repaired=False)
    solved = cutting.solve_experts(plan, layer, after, x).params[cutting.EXPERTS_OUT][0]
    start = p[cutting.EXPERTS_OUT][0]
    assert np.abs(solved - kernel).max() < 0.05 * np.abs(start - kernel).max()


def test_the_layer_that_turns_the_stream_least_is_removed(tmp_path):
    sizes = {"num_hidden_layers": 3, "attention_bias": False}
    model = random_model(tmp_path / "model", change=first_layer_is_weak, **sizes)
    text = random_text(900, 16, 8, 4, 0)
    counts = removal.counts(model.architecture)._replace(layers=2)
    chosen = choice.choose(model, counts, "wanda", text, 0, lambda _: None)
    assert chosen.influences[0] < 1e-4 < min(chosen.influences[1:])
    assert list(chosen.selection.layers) == [1, 2]


def first_layer_is_weak(weights):
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"model.layers.0.{name}.weight"] *= 1e-3
    return weights


def outputs(architecture, params, text):
    """The logits of the network `params` for the held-out sequences of `text`."""
    return np.asarray(training.forward(architecture, params, jnp.asarray(text.held_out)))


def distances(model, selection, text):
    """The mean squared errors of the smaller model's logits, repaired and not, and its arrays."""
    wanted = outputs(model.architecture, {n: model.read(n) for n in model.tensors}, text)
    found, arrays = [], {}
    for repaired in (True, False):
        plan = cutting.plan(model, selection, text, repaired=repaired)
        arrays = dict(cutting.arrays(plan, {}, lambda _: None))
        found.append(np.square(outputs(plan.small, arrays, text) - wanted).mean())
    return *found, arrays


@pytest.mark.parametrize(
    ("family", "wanted", "message"),
    [
        ("qwen3", Wanted(heads=3), "--heads must be a multiple of 2"),
        ("qwen3", Wanted(hidden=1000), r"--hidden must lie in 1\.\.24; got 1000"),
        (
            "qwen3",
            Wanted(budget=10),
            "got 10 parameters, and the model with the fewest .* has [0-9,]+$",
        ),
        (
            "llama",
            Wanted(heads=2, hidden=23),
            "must divide its hidden width.*; got 2 heads and width 23",
        ),
        ("llama", Wanted(experts=2), r"--experts must lie in 1\.\.1; got 2"),
        ("gpt2", Wanted(heads=1), "--heads must be [24] for gpt2, of which only layers .*; got 1"),
        ("gpt2", Wanted(hidden=4), "--hidden must be .* norms subtract a mean .*; got 4"),
        (
            "gpt2",
            Wanted(budget=9, units=("heads",)),
            r"a budget can remove from a gpt2 \(intermediate\); got heads",
        ),
        ("mixtral", Wanted(intermediate=4), "removed whole by --experts; got 4"),
    ],
)
def test_numbers_that_cannot_be_met_are_refused(family, wanted, message, tmp_path):
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 24}
    model = random_model(tmp_path / "model", family, **sizes)
    with pytest.raises(InputError, match=message):
        budget.choose(model.architecture, model.tensors, wanted)


def test_a_budget_that_is_the_size_of_a_model_takes_this_model(tmp_path):
    model = random_model(tmp_path / "model", "gpt2", n_inner=16)
    whole = removal.counts(model.architecture)
    smaller = whole._replace(intermediate=11)
    limit = removal.parameters(model.architecture, model.tensors, smaller)
    found = budget.choose(model.architecture, model.tensors, Wanted(budget=limit, round_to=1))
    assert found == smaller
    smallest = whole._replace(intermediate=1)
    limit = removal.parameters(model.architecture, model.tensors, smallest)
    wanted = Wanted(budget=limit, round_to=1)
    assert budget.choose(model.architecture, model.tensors, wanted) == smallest


def test_the_scores_of_the_stream_are_sums_over_its_readers_times_norms():
    """Scores use root sums of squares; each projection uses the sums of its own input."""
    q, up = np.array([[1.0, -2.0], [3.0, 0.0]]), np.array([[0.5, 4.0]])
    p = {"self_attn.q_proj.weight": q, "mlp.up_proj.weight": up}
    squares = {
        "input_layernorm": np.array([9.0, 16.0]),
        "post_attention_layernorm": np.array([4.0, 25.0]),
    }
    seen: Any = SimpleNamespace(squares=squares)
    model: Any = SimpleNamespace(hidden=2)
    np.testing.assert_allclose(choice.hidden_scores(model, p, seen, "activation"), [5, 9])
    expected = [3 * (1 + 3) + 2 * 0.5, 4 * 2 + 5 * 4]
    np.testing.assert_allclose(choice.hidden_scores(model, p, seen, "wanda"), expected)


def test_a_budget_of_bytes_is_met_by_the_largest_of_the_candidates(tmp_path):
    sizes: dict[str, Any] = SIZES | {"num_key_value_heads": 4, "hidden_size": 24}
    model = random_model(tmp_path / "model", **sizes)
    whole, seen = removal.counts(model.architecture), []

    def cost(counts):
        seen.append(counts)
        return 1e9 * counts.intermediate + counts.groups

    wanted = Wanted(round_to=1)
    found = compiled_budget.largest(model, wanted, 9e9 + 3, cost)
    assert found == whole._replace(intermediate=9, groups=2)
    # Bisection compiles only a few of approximately 16 candidates.
    assert len(seen) == len(set(seen)) < 8
    with pytest.raises(InputError, match=r"got 0\.5, and the model with the fewest .* needs 1$"):
        compiled_budget.largest(model, wanted, 0.5e9, cost)


FEWER: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
FEWER |= {"num_key_value_heads": 2, "intermediate_size": 5}


@pytest.mark.parametrize(
    ("family", "smaller", "counts"),
    [
        ("qwen3", FEWER, Counts(2, 2, 5, 16)),
        ("qwen3", FEWER | {"tie_word_embeddings": True}, Counts(2, 2, 5, 16)),
        ("mixtral", FEWER | {"num_local_experts": 3}, Counts(2, 2, 5, 16, 3)),
        ("gpt2", {"n_layer": 2, "n_inner": 5}, Counts(2, 4, 5, 24)),
    ],
)
def test_a_pass_reads_the_layers_that_remain_and_what_follows_them(
    family, smaller, counts, tmp_path, monkeypatch
):
    """A fake compiler counts bytes of arguments and results; NumPy counts the expected bytes."""
    rng, tokens, head_dim = np.random.default_rng(0), 7, 6
    sizes: dict[str, Any] = {"num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 9}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 5}
    sizes |= {"num_experts_per_tok": 2, "head_dim": head_dim, "tie_word_embeddings": False}
    gpt2 = {"n_layer": 3, "n_embd": 24, "n_head": 4, "n_inner": 9, "tie_word_embeddings": True}
    sizes = gpt2 if family == "gpt2" else sizes
    sizes |= {name: smaller[name] for name in smaller if name == "tie_word_embeddings"}
    model = random_model(tmp_path / "model", family, **sizes)
    config = language_models.random_config(family, rng) | sizes

    def measure(program, *arguments):
        arrays = jax.tree.leaves((arguments, jax.eval_shape(program, *arguments)))
        return SimpleNamespace(bytes=sum(a.size * a.dtype.itemsize for a in arrays))

    monkeypatch.setattr(compiled_budget, "measure", measure)
    device = SingleDeviceSharding(jax.devices()[0])
    found = compiled_budget.traffic(model, tokens, device, counts)

    weights = language_models.random_weights(config | smaller, rng)
    tied = config["tie_word_embeddings"]
    unread = ("wpe.weight",) if tied else ("wpe.weight", "embed_tokens.weight", "wte.weight")
    numbers = sum(w.size for name, w in weights.items() if not name.endswith(unread))
    streams = tokens * counts.hidden * (2 * counts.layers + 1)  # layers read and write the stream
    angles = 0 if family == "gpt2" else 2 * tokens * head_dim // 2
    numbers += streams + counts.layers * angles + tokens * config["vocab_size"]
    # The numbers have two bytes each. The mask has a byte for each element.
    assert found == 2 * numbers + counts.layers * tokens**2


def test_the_heads_of_a_llama_divide_its_width_within_a_budget(tmp_path):
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 40}
    model = random_model(tmp_path / "model", "llama", **sizes)
    size = removal.parameters(model.architecture, model.tensors, removal.counts(model.architecture))
    found = budget.choose(
        model.architecture, model.tensors, Wanted(budget=size * 8 // 10, round_to=1)
    )
    assert found.groups == 5  # 7 and 6 heads do not divide the width 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, 500_000_000) for text in ("0.5B", "500M", "500m", "500_000_000", "5e8")),
        ("1.5k", 1500),
        ("12345", 12345),
    ],
)
def test_numbers_of_parameters_have_suffixes(text, expected):
    assert budget.number(text) == expected


@pytest.mark.parametrize("text", ["", "B", "0", "-1M", "many", "inf", "nan"])
def test_what_is_no_number_of_parameters_is_refused(text):
    with pytest.raises(InputError, match="--parameters must be a number above 0"):
        budget.number(text)


def test_held_out_sequences_lie_behind_the_others_and_are_the_same_for_every_seed():
    numbers = np.arange(1000)
    first, second = (tokens.divide(numbers, 9, 20, 5, seed) for seed in (0, 1))
    np.testing.assert_array_equal(first[1], second[1])
    assert first[1].min() >= 900
    assert first[0].max() < 900
    assert len(np.unique(first[0])) == 200
    assert first[0].tolist() != second[0].tolist()
    with pytest.raises(InputError, match=r"must hold 1012 tokens for 91 sequences"):
        tokens.divide(numbers, 9, 91, 5, 0)


@pytest.mark.parametrize(("sequences", "needed"), [(1, 91), (2, 91), (8, 91), (9, 100), (20, 223)])
def test_the_fewest_tokens_of_a_text_are_named(sequences, needed):
    first, held_out = tokens.divide(np.arange(needed), 9, sequences, 5, 0)
    assert (first.shape, held_out.shape) == ((sequences, 10), (1 + (needed > 200), 10))
    with pytest.raises(InputError, match=rf"must hold {needed} tokens for .* holds {needed - 1}$"):
        tokens.divide(np.arange(needed - 1), 9, sequences, 5, 0)


WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
WIDE_GPT2 = {"n_embd": 256, "n_inner": 1024, "n_head": 4, "n_layer": 2}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mixtral"])
def test_a_smaller_decoder_moves_fewer_bytes_on_a_tpu(family, tmp_path):
    pytest.importorskip("libtpu")  # `make bench-compiled` installs libtpu
    folder = tmp_path / "model"
    model = random_model(folder, family, **WIDE_GPT2 if family == "gpt2" else WIDE)
    whole, wanted = removal.counts(model.architecture), Wanted(gigabytes=1.0)
    assert compiled_budget.choose(folder, wanted, 16) == whole
    size = removal.parameters(model.architecture, model.tensors, whole)
    limit = 1.4e-9 * size  # the gigabytes of 70 % of the parameters in bfloat16
    found = compiled_budget.choose(folder, replace(wanted, gigabytes=limit), 16)
    smaller = removal.parameters(model.architecture, model.tensors, found)
    assert 0.3 * size < smaller < size


@pytest.mark.parametrize(
    "wanted", [Wanted(budget=10**9), Wanted(layers=3), Wanted(heads=4), Wanted(gigabytes=1.0)]
)
def test_a_model_that_stays_whole_is_refused_for_every_kind_of_budget(
    wanted, tmp_path, monkeypatch
):
    """A fake search for a budget in bytes decides that nothing must be removed."""
    sizes: Any = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = random_model(tmp_path / "model", **sizes, hidden_size=24)
    counts = removal.counts(model.architecture)
    monkeypatch.setattr(compiled_budget, "choose", lambda *_: counts)
    with pytest.raises(InputError, match="must remove a part of the model"):
        pruning_run.choose_counts(tmp_path / "model", model, wanted, 16)
    monkeypatch.setattr(compiled_budget, "choose", lambda *_: counts._replace(layers=2))
    smaller = replace(wanted, layers=2)
    assert pruning_run.choose_counts(tmp_path / "model", model, smaller, 16).layers == 2


def test_what_a_removed_layer_added_is_made_up_for_by_the_layers_after_it(tmp_path):
    """The layers after a removed layer are fitted to their inputs in the whole model."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 48}
    model = random_model(tmp_path / "model", "qwen2", **sizes)
    text = random_text(9000, 16, 64, 8, 0)
    selection = removal.whole(model.architecture)._replace(layers=np.array([0, 2]))
    repaired, cut, arrays = distances(model, selection, text)
    assert not any(name.startswith("model.layers.2.") for name in arrays)
    assert repaired < 0.4 * cut


def test_a_tensor_belongs_to_the_layer_in_its_name():
    names = ("model.layers.0.mlp", "model.layers.9.mlp", "model.layers.10.mlp", "lm_head.weight")
    assert [removal.layer_of(name) for name in names] == [0, 9, 10, -1]


def test_arrays_of_a_smaller_model_have_the_dtypes_of_the_large_one(tmp_path):
    """Kernels are stored in half precision, and norms in single precision."""

    def halve(weights):
        return {
            name: array.astype(np.float16) if array.ndim == 2 else array
            for name, array in weights.items()
        }

    model = random_model(tmp_path / "model", "qwen3", halve, num_hidden_layers=2)
    plan = cutting.plan(model, removal.whole(model.architecture), None, repaired=False)
    found = {name: array.dtype for name, array in cutting.arrays(plan, {}, lambda _: None)}
    assert found == {name: tensor.dtype for name, tensor in model.tensors.items()}
    assert set(found.values()) == {np.dtype("float16"), np.dtype("float32")}
