"""The atlas of normalizers: its measurements, its conclusions, its page and its command."""

import itertools
import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import atlas as command
from experiments.cli import InputError
from experiments.measures import atlas, atlas_findings
from experiments.pages import atlas as atlas_page
from jaxnorm import models
from tests.support.recorded import assert_as_recorded, condense

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")


def small_task(name=atlas.TASKS[0]):
    if name == atlas.TASKS[2]:
        own = atlas.texts(40)
        return own._replace(x_test=own.x_test[:20], y_test=own.y_test[:20], epochs=1, batch_size=8)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, 60).astype(np.int32)
    parts = x[:40], y[:40], x[40:], y[40:]
    if name == atlas.TASKS[0]:
        build = partial(models.MLP, inputs=784, widths=(7, 5), classes=10)
        return atlas.Task(build, *parts, ("norms.0", "norms.1"), epochs=2, batch_size=8)
    return atlas.Task(atlas.ConvNet, *parts, ("norms.0", "norms.2"), epochs=1, batch_size=8)


def measured(normalizer, name=atlas.TASKS[0]):
    own = small_task(name)
    norm = atlas.norms(per_pixel=name == atlas.TASKS[2])[normalizer]
    return list(atlas.train(own, atlas.program(own, norm), normalizer, 0))


@pytest.mark.parametrize(
    "normalizer",
    ["batch norm", "DyT", *(pytest.param(n, marks=pytest.mark.slow) for n in atlas.NORMS)],
)
def test_a_distance_is_below_what_is_certain_of_it(normalizer):
    lines = measured(normalizer)
    if normalizer in ("batch norm", "DyT"):
        name = f"runs/atlas_{normalizer.replace(' ', '_')}"
        assert_as_recorded(name, condense(lines), rtol=0.03, atol=1e-4)
    assert len(lines) == 2
    for layer in (layer for line in lines for layer in line["layers"].values()):
        assert 0 < layer["epoch"] <= layer["moment_bound"] * (1 + 1e-5)
        assert layer["step"] > 0
        has_statistics = normalizer in ("batch norm", "batch renorm") or "unitized" in normalizer
        assert (layer["floor"] > 0) == has_statistics
        parameters_say_nothing = normalizer in ("batch norm", "unitized", "batch renorm")
        assert (layer["certificate"] is None) == parameters_say_nothing
        if layer["certificate"] is not None:
            assert layer["epoch"] <= layer["certificate"] * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", atlas.TASKS[1:])
@pytest.mark.parametrize("normalizer", ["unitized, bounded", "layer norm", "RMS norm"])
def test_images_and_texts_have_certificates_of_their_vectors(name, normalizer):
    for layer in measured(normalizer, name)[0]["layers"].values():
        assert layer["epoch"] <= layer["certificate"] * (1 + 1e-5)


def test_a_convolution_is_a_product_of_patches():
    x = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 4))
    for stride in (1, 2):
        expected = jax.lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            [(1, 1), (1, 1)],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        found = atlas._patches(x, stride) @ kernel.reshape(27, 4)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_networks_of_a_comparison_start_from_the_same_kernels():
    for task in (small_task(), small_task(atlas.TASKS[1]), atlas.texts(4)):
        kernels = []
        for norm in atlas.norms(per_pixel=False).values():
            state = atlas.nnx.to_pure_dict(atlas.nnx.state(atlas._new(task, norm), atlas.nnx.Param))
            del state["norms"]
            kernels.append(jnp.stack([jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(state)]))
        assert all((kernels[0] == other).all() for other in kernels)


def test_a_model_of_texts_does_not_see_what_it_predicts():
    own = atlas.texts(4)
    model = atlas._new(own, atlas.norms(per_pixel=True)["layer norm"])
    tokens = jnp.asarray(own.x_train[:1])
    changed = tokens.at[0, 20].set(tokens[0, 20] ^ 1)
    logits, other = model(tokens), model(changed)
    np.testing.assert_array_equal(logits[0, :20], other[0, :20])
    assert jnp.abs(logits[0, 20:] - other[0, 20:]).max() > 0


def made_up(shift, loss, task="t", normalizer="a", seed=0) -> dict[str, Any]:
    layer = {"spread": 2.0, "epoch": 2 * shift, "step": shift, "baseline": 1.0, "floor": 0.0}
    layer |= {"moment_bound": 4 * shift, "certificate": None}
    line = {"loss": [loss, loss], "test_loss": loss, "accuracy": 0.5, "layers": {"norms.0": layer}}
    return {"task": task, "normalizer": normalizer, "seed": seed, "epochs": [line]}


def made_up_runs(effect, noise=0.0, seeds=2):
    rng = np.random.default_rng(0)
    for task, seed, (i, name) in itertools.product("xy", range(seeds), enumerate(atlas.NORMS)):
        shift = np.exp(0.3 * i + rng.normal() * 0.1 + (task == "x"))
        loss = shift**effect * np.exp(noise * rng.normal()) * (7 if task == "x" else 1)
        yield made_up(shift, loss, task, name, seed)


def test_an_exact_relation_is_found_whatever_the_task():
    for effect, sign in ((0.5, 1), (-2.0, -1)):
        found = atlas_findings.findings(list(made_up_runs(effect)))
        assert found["comparisons"] == 4
        for row in found["correlations"]:
            for part in ("between", "within"):
                np.testing.assert_allclose(row[part]["correlation"], sign, rtol=1e-9)
                np.testing.assert_allclose([row[part]["low"], row[part]["high"]], sign, rtol=1e-9)


def test_a_correlation_is_that_of_deviations_from_the_comparison():
    runs = list(made_up_runs(0.0, noise=1.0))
    whole = atlas_findings.comparisons(runs)
    shifts = np.log([[run["epochs"][0]["layers"]["norms.0"]["epoch"] for run in c] for c in whole])
    losses = np.log([[run["epochs"][0]["test_loss"] for run in c] for c in whole])
    x, y = (a - a.mean(1, keepdims=True) for a in (shifts, losses))
    found = atlas_findings.findings(runs)["correlations"][0]["between"]
    expected: Any = stats.pearsonr(x.ravel(), y.ravel())
    np.testing.assert_allclose(found["correlation"], expected[0], rtol=1e-9)
    assert found["low"] < 0 < found["high"]


def test_an_interval_leaves_out_draws_without_a_correlation():
    """With three groups, the bootstrap has 27 possible draws; one group has a constant x."""
    x, y = np.array([[0, 1], [0, 3], [2, 2]]), np.array([[0, 2], [1, 0], [0, 1]])
    draws = [list(draw) for draw in itertools.product(range(3), repeat=3)]
    varied = [draw for draw in draws if draw != [2, 2, 2]]
    listed = [stats.pearsonr(x[draw].ravel(), y[draw].ravel())[0] for draw in varied]
    assert len(listed) == 26
    found = atlas_findings.interval(x.astype(float), y.astype(float))
    expected: Any = stats.pearsonr(x.ravel(), y.ravel())
    np.testing.assert_allclose(found["correlation"], expected[0])
    bounds = np.quantile(listed, [0.025, 0.975], method="inverted_cdf")
    np.testing.assert_allclose([found["low"], found["high"]], bounds)
    # These three runs have the same task and the same seed, but different normalizers.
    runs = [
        made_up(np.exp(shift), np.exp(loss), normalizer=name)
        for name, shift, loss in (("a", 0, 0), ("b", 1, 2), ("c", 3, 1))
    ]
    shift, outcome = atlas_findings.SHIFTS["of a step"], lambda run: run["epochs"][0]["test_loss"]
    found = atlas_findings.correlation([runs], shift, outcome)
    np.testing.assert_allclose([found["between"]["low"], found["between"]["high"]], [-1, 1])
    assert found["within"] is None


def test_an_interrupted_comparison_does_not_count():
    runs = list(made_up_runs(1.0))
    found = atlas_findings.findings(runs[:-1])
    assert found["comparisons"] == 3
    # The first three runs have one task, one seed and three normalizers. A comparison is complete
    # if it has every normalizer that occurs in the runs.
    assert atlas_findings.findings(runs[:3])["comparisons"] == 1


def test_a_row_has_the_mean_and_the_standard_error_of_its_seeds():
    runs = [made_up(1.0, 2.0, seed=0), made_up(1.0, 4.0, seed=1)]
    (row,) = atlas_findings.rows(runs)
    assert row["test_loss"] == {"mean": 3.0, "stderr": 1.0}
    assert row["certificate"]["mean"] is None
    assert row["moment_bound"]["mean"] == 2.0


def test_settings_name_what_decides_the_results():
    expected = {"size": 9, "seeds": 4, "probe": 300, "learning_rate": 0.003, "momentum": 0.9}
    found = atlas.settings(seeds=4, size=9)
    assert {name: found[name] for name in expected} == expected
    assert found["frozen_batches"] == 20


@pytest.mark.fitted_figures
def test_the_command_resumes_and_its_page_has_an_answer(tmp_path, monkeypatch):
    runs = {(r["task"], r["normalizer"], r["seed"]): r for r in made_up_runs(1.0)}
    asked = []

    def measure(name, normalizer, seed, data_dir, size):
        asked.append((name, normalizer, seed))
        return runs[name, normalizer, seed]

    monkeypatch.setattr(atlas, "runs", lambda seeds: list(runs))
    monkeypatch.setattr(atlas, "measure", measure)
    monkeypatch.setattr(atlas_page, "figure", lambda results: "")
    monkeypatch.setattr(atlas_findings, "DRAWS", 99)
    for _ in range(2):
        command.main(seeds=2, out=tmp_path)
    assert asked == list(runs)
    text = (tmp_path / "index.html").read_text()
    assert "networks with less shift tend to have a lower loss" in text
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["runs"]) == 32
    traffic = {"targets": {"v5e": [{"normalizer": "DyT", "shape": [8, 4], "traffic": 5.0}]}}
    assert "5.0 n" in atlas_page.render(results | {"traffic": traffic})


def test_the_traffic_of_a_file_is_shown_and_kept(tmp_path, monkeypatch):
    runs = [made_up(shift, shift, normalizer=name) for name, shift in (("DyT", 1.5), ("Derf", 2.5))]
    monkeypatch.setattr(atlas, "runs", lambda seeds: [("t", run["normalizer"], 0) for run in runs])
    monkeypatch.setattr(atlas, "measure", lambda _, name, *__: runs[["DyT", "Derf"].index(name)])
    monkeypatch.setattr(atlas_page, "figure", lambda results: "")
    monkeypatch.setattr(atlas_findings, "DRAWS", 9)
    measured = [("DyT", 5.0), ("Derf", 6.5)]
    rows = [{"normalizer": name, "shape": [8, 4], "traffic": n} for name, n in measured]
    traffic = {"targets": {"v5e": rows}}
    (tmp_path / "traffic.json").write_text(json.dumps(traffic))
    missing, out = tmp_path / "none.json", tmp_path / "out"
    (tmp_path / "other.json").write_text('{"runs": []}')
    for wrong in (missing, tmp_path / "other.json"):
        with pytest.raises(InputError, match=rf"--traffic must be a file .* got {wrong}"):
            command.main(seeds=2, traffic=wrong, out=out)
    assert not out.exists()
    command.main(seeds=2, traffic=tmp_path / "traffic.json", out=out)
    assert json.loads((tmp_path / "out/results.json").read_text())["traffic"] == traffic
    text = (tmp_path / "out/index.html").read_text()
    assert text.count("5.0 n") == text.count("6.5 n") == 1
