"""Moments and shift during training, measured on small networks."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import covariate_shift
import jaxnorm
from experiments.cli import InputError
from experiments.data import datasets
from experiments.measures import shift as measures
from experiments.pages import shift as shift_page
from jaxnorm import models
from tests.support.other_values import with_one_other_value
from tests.support.recorded import assert_as_recorded, condense

SETTINGS = (0, 1, *measures.SCHEDULES, *measures.ORDERS, *measures.NORMALIZATIONS)

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """Give the mlp three hidden layers instead of eleven, and measure the last two layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 16, 8)))
        patch.setattr(measures, "LAYERS", ("norms.1", "norms.2"))
        yield


@pytest.fixture(scope="module")
def run(users_jax, tmp_path_factory):
    out = tmp_path_factory.mktemp("shift")
    covariate_shift.main(epochs=3, seeds=2, exact=40, orders=("norm first",), out=out)
    return out, json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_every_epoch_of_every_network_has_shift_moments_and_accuracy(run):
    _, results = run
    first, *others = results["runs"]
    numbers = [np.hstack([x for x in jax.tree.leaves(run) if x not in SETTINGS]) for run in others]
    recorded = condense(results | {"runs": [first, *numbers]})
    assert_as_recorded("runs/covariate_shift", recorded, rtol=5e-3, atol=1e-4)
    assert len(results["runs"]) == 8
    for run in results["runs"]:
        assert len(run["accuracy"]) == 3
        assert 0 < run["loss"][0] < 1.2 * np.log(10)  # random guesses have the loss log 10
        if run["seed"] == 0:
            assert np.shape(run["moments"]["kurtosis"]) == (8, 3)
        for kind, layers in run["shift"].items():
            if kind != "whole set":
                assert all(np.all(np.array(layer["floor"]) > 0) for layer in layers.values())
                continue
            for layer in layers.values():
                assert np.all(np.array(layer["lower"]) < layer["exact"])
                assert np.all(np.array(layer["exact"]) <= np.array(layer["upper"]) * (1 + 1e-4))


def test_schedules_start_alike_and_differ_after_the_first_drop(run):
    _, results = run
    drops, constant = (
        next(r for r in results["runs"] if r["schedule"] == s and r["normalization"] == "unitized")
        for s in ("drops", "constant")
    )
    assert results["learning_rate"][0] > results["learning_rate"][-1]
    assert drops["loss"][0] == constant["loss"][0]
    assert drops["loss"][-1] != constant["loss"][-1]


def test_the_page_shows_what_was_found(run):
    out, results = run
    text = (out / "index.html").read_text(encoding="utf-8")
    assert text.count("<svg role=") == 4 + 2 + 8
    found, structure = jax.tree.flatten(results["findings"])
    again, same = jax.tree.flatten(json.loads(json.dumps(shift_page.findings(results))))
    assert structure == same
    for value, expected in zip(found, again, strict=True):  # numbers in the file have nine digits
        assert value == (pytest.approx(expected, 1e-6) if isinstance(value, float) else expected)


def test_the_error_of_means_is_said_for_more_than_one_seed():
    of_none = {"findings": {"accuracy": [], "drops": [], "movement": []}}
    for seeds, said in ((1, []), (2, ["A number after ± is one standard error over 2 seeds."])):
        assert list(shift_page.sentences(of_none | {"settings": {"seeds": seeds}})) == said


def test_an_interrupted_run_resumes_after_the_last_finished_network(run, monkeypatch):
    out, before = run
    last = sorted((out / "runs").glob("*.json"))[-1]
    last.unlink()
    trained = []
    train = measures.train
    monkeypatch.setattr(measures, "train", lambda *args: trained.append(1) or train(*args))
    covariate_shift.main(epochs=3, seeds=2, exact=40, orders=("norm first",), out=out)
    assert trained == [1]
    again = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert again["runs"] == before["runs"]


@pytest.fixture(scope="module", params=list(measures.ORDERS))
def trained(users_jax, request):
    """A program, its network after 5 steps (with inaccurate running averages), and its images."""
    images = datasets.load("digits", None)
    recipe = measures.dense_recipe("digits", 2, 64)
    own = measures.Run("unitized", request.param, "drops", 0).recipe(recipe)
    program = measures.program(own, images)
    state = program.trainer.init_state((0,))
    state = program.trainer.advance(state, program.trainer.batches((0,), 0, 0), (0,), 5)
    return program, (state.params, state.statistics), images


def forward(network, x, order):
    """The outputs of all normalizations for `x`, computed in NumPy with statistics of `x`."""
    params = {
        ".".join(map(str, k)): np.asarray(v[...], float) for k, v in nnx.to_flat_state(network[0])
    }
    h, outputs = x.reshape(len(x), -1).astype(float), []
    for i in range(3):
        h = h @ params[f"layers.{i}.kernel"] + params[f"layers.{i}.bias"]
        h = np.maximum(h, 0) if order == "ReLU first" else h
        centered = h - h.mean(0)
        r = np.sqrt(centered.var(0) + 1e-5)
        normalized = centered / r
        alpha = params[f"norms.{i}.alpha"]
        length = np.sqrt((normalized**2).sum(1, keepdims=True) + 1e-5)
        h = (alpha / length + 1 - alpha) * normalized
        h = h * params[f"norms.{i}.scale"] + params[f"norms.{i}.bias"]
        outputs.append(h)
        h = h if order == "ReLU first" else np.maximum(h, 0)
    return outputs


def test_statistics_of_the_whole_set_are_those_of_one_batch_of_all_images(trained):
    program, network, images = trained
    order = "ReLU first" if "relu" in program.trainer.recipe.model else "norm first"
    exact = program.whole_set(network, jnp.asarray(images.x_train))
    found = program.outputs(exact, jnp.asarray(images.x_train))
    expected = forward(network, images.x_train, order)
    for name, values in (("norms.1", expected[1]), ("norms.2", expected[2])):
        np.testing.assert_allclose(found[name], values, atol=2e-3)


def test_with_frozen_weights_only_running_averages_and_batches_move(trained):
    """If weights are frozen and statistics are of the whole training set, outputs do not change."""
    program, network, images = trained
    x, probe = jnp.asarray(images.x_train), jnp.asarray(images.x_test)
    more = program.more_batches(network, x, jax.random.key(1))
    exact, again = program.whole_set(network, x), program.whole_set(more, x)
    outputs = [program.outputs(n, probe)["norms.2"] for n in (network, more, exact, again)]
    np.testing.assert_allclose(outputs[2], outputs[3], atol=1e-5)
    assert jaxnorm.shift.emd(outputs[0][:100], outputs[1][:100]) > 0.05
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), network[0], more[0])
    assert all(jax.tree.leaves(same))


def test_images_in_batches_are_normalized_by_their_own_batch(trained):
    program, network, images = trained
    found = program.in_batches(network, jnp.asarray(images.x_train[:200]))["norms.1"]
    assert len(found) == 192  # the last 8 images, fewer than a batch of 64, are left out
    bias = np.asarray(network[0]["norms"][1]["bias"][...])
    scale = np.asarray(network[0]["norms"][1]["scale"][...])
    for batch in np.split(np.asarray(found), 3):
        np.testing.assert_allclose(((batch - bias) / scale).mean(0), 0, atol=0.05)


def test_a_network_moves_the_bar_by_its_epochs_whether_trained_or_read(tmp_path):
    recipe = measures.dense_recipe("digits", 2, 64)
    path, lines, moved = tmp_path / "runs" / "a.json", [{"epoch": 1}, {"epoch": 2}], []
    found = measures.read_or_train(lambda: iter(lines), recipe, path, moved.append)
    assert (found, moved) == (lines, [0, 1, 1])
    read = measures.read_or_train(lambda: pytest.fail("trained"), recipe, path, moved.append)
    assert (read, moved) == (lines, [0, 1, 1, 0, 2])


def test_every_option_that_decides_a_network_is_in_the_name_of_its_file():
    recipe = measures.dense_recipe("mnist", 200, 128)
    keys = [measures.digest(recipe, 400), measures.digest(recipe, 40)]
    keys += [measures.digest(other, 400) for _, other in with_one_other_value(recipe)]
    assert len(set(keys)) == len(keys)
    runs = [
        measures.Run(n, o, s, 0).recipe(recipe)
        for n in ("batch_norm", "unitized")
        for o in measures.ORDERS
        for s in measures.SCHEDULES
    ]
    assert len({measures.digest(own, 400) for own in runs}) == len(runs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 1}, "--epochs must be at least 2; got 1"),
        ({"seeds": 0}, "--seeds must be at least 1; got 0"),
        ({"batch_size": 1}, "--batch-size must be at least 2; got 1"),
        ({"exact": 1}, "--exact must be at least 2; got 1"),
        ({"dataset": "pears"}, "the data set must be one of digits, .* got 'pears'"),
    ],
)
def test_bad_options_are_refused(options, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        covariate_shift.main(**options, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
