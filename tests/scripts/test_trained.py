"""Uses of a finished run: loading, exporting, evaluating and logging."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import analyze
import prune
import train
from experiments import recipes
from experiments.cli import InputError
from experiments.data import datasets
from experiments.recipes import PRESETS, Recipe, residual_recipe
from experiments.training import introduction, loop, run as training_run, run_folder, trained
from experiments.training.checkpoints import Checkpoints
from experiments.training.loop import Extras
from experiments.training.optimizers import make_optimizer
from experiments.training.run_folder import read_lines
from experiments.training.step import State
from experiments.training.step_log import StepLog
from experiments.training.trained import load_network
from tests.support.small_runs import (
    SMALL,
    View,
    compiled,
    random_images,
    with_steps_per_call,
    without_times,
)

pytestmark = pytest.mark.usefixtures("users_jax")
RECIPE = replace(SMALL, epochs=1, batch_size=128)


@pytest.fixture(scope="module")
def run(tmp_path_factory, users_jax):
    """The folder of a run on the digits, in which two seeds are trained together by `vmap`."""
    out = tmp_path_factory.mktemp("run")
    train.main(RECIPE, train.Options(seeds=2, devices=1, out=out))
    return out


def test_a_run_is_loaded_without_its_data_and_classifies_as_it_did(run, monkeypatch):
    images = datasets.load("digits")
    monkeypatch.setattr(datasets, "load", lambda *_: pytest.fail("data were read"))
    accuracies = [
        line["accuracy"]
        for seed in (0, 1)
        for line in read_lines(run / f"seed-{seed}" / "metrics.jsonl")
    ]
    for seed, expected in enumerate(accuracies):
        model = load_network(run, seed)
        assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(nnx.state(model)))
        right = np.argmax(jax.jit(model)(images.x_test), 1) == images.y_test
        assert right.mean() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("content", "got"), [(None, "has none"), ("{", "(JSONDecodeError)")])
def test_a_folder_that_is_no_run_is_told_from_a_damaged_one(content, got, tmp_path):
    if content is not None:
        (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(InputError, match=rf"with its recipe\.json; .*{re.escape(got)}$"):
        load_network(tmp_path)


def test_a_loaded_network_is_exported_for_any_batch(run):
    model = load_network(run)
    shape = jax.export.symbolic_shape("n, 8, 8, 1")
    images = jax.ShapeDtypeStruct(shape, np.float32)
    exported = jax.export.export(jax.jit(model))(images)
    x = np.random.default_rng(0).standard_normal((5, 8, 8, 1)).astype(np.float32)
    np.testing.assert_allclose(exported.call(x), jax.jit(model)(x), rtol=1e-5, atol=1e-5)


def test_an_analysis_of_a_run_is_of_its_weights_and_not_of_the_optimizers_moments(tmp_path):
    recipe = residual_recipe("digits", 8, 1, 64)
    program = compiled(recipe, random_images())
    run_folder.prepare(tmp_path, recipe, random_images(), vmapped_seeds=1)
    state = program.init_state((1,))
    with Checkpoints(tmp_path / "checkpoints-1") as checkpoints:
        checkpoints.save(3, state, notes=[])
    found = analyze.load(tmp_path, (), 1)
    kernels = [leaf for leaf in jax.tree.leaves(state.params) if leaf.ndim == 4]
    layers = [name for name, w in found.items() if w.ndim == 4]
    # The layers are the stem, 6 convolutions in blocks and 2 shortcuts.
    assert len(layers) == len(kernels) == 9
    np.testing.assert_array_equal(found["stem"], state.params["stem"]["kernel"][...])
    with pytest.raises(InputError, match="must have a checkpoint of seed 0"):
        analyze.load(tmp_path, (), 0)


def blocks(page):
    text = (Path(train.__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```py\n(.*?)```", text, re.S)


def test_the_page_on_training_loads_and_exports_a_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train").symlink_to(run)
    names: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec("\n".join(blocks("training.md")), names)
    (line,) = read_lines(run / "seed-0" / "metrics.jsonl")
    right = np.argmax(names["logits"], 1) == names["images"].y_test
    np.testing.assert_allclose(right.mean(), line["accuracy"], atol=1e-6)
    assert names["exported"].in_avals[0].shape[1:] == (8, 8, 1)


def test_the_hook_of_the_page_on_clusters_writes_what_a_logger_shows(tmp_path):
    written, names = [], {}
    exec("\n".join(blocks("clusters.md")), names)
    writer = SimpleNamespace(add_scalar=lambda *values: written.append(values))
    one, view = with_steps_per_call(compiled(SMALL, random_images()), 2), View()
    extras = Extras(hooks=(names["to_writer"](writer),))
    (lines,) = loop.train(one, (0,), tmp_path, view, view.interrupted, extras).lines
    losses = [value[1:] for value in written if value[0] == "loss so far"]
    assert [step for _, step in losses] == [2, 4, 6, 8, 10, 12]
    assert [loss for loss, _ in losses[1::2]] == [line["loss"] for line in lines]


def test_a_seed_that_a_run_lacks_is_refused(run):
    with pytest.raises(InputError, match=r"must have a checkpoint of seed 2; .* has none"):
        load_network(run, 2)


@pytest.mark.parametrize("seed", [-1, 3])
def test_a_seed_beside_the_seeds_of_a_program_is_refused(seed, tmp_path):
    run_folder.prepare(tmp_path, SMALL, random_images(), vmapped_seeds=3)
    with pytest.raises(InputError, match=f"must have a checkpoint of seed {seed}; .* has none"):
        load_network(tmp_path, seed)


def test_evaluating_alone_prints_the_accuracies_and_trains_nothing(run, capsys, tmp_path):
    before = sorted(path for path in run.rglob("*") if path.is_file())
    options = train.Options(seeds=2, devices=1, out=run, evaluate_only=True)
    train.main(RECIPE, options)
    said = capsys.readouterr().out
    for seed in (0, 1):
        (line,) = read_lines(run / f"seed-{seed}" / "metrics.jsonl")
        # The run has 11 steps.
        assert re.search(rf" {seed} │ +11 │ +{100 * line['accuracy']:.2f} ", said)
    assert "top-1, %" in said
    assert sorted(path for path in run.rglob("*") if path.is_file()) == before
    with pytest.raises(InputError, match=r"needs a run with a checkpoint; .* has none"):
        train.main(RECIPE, replace(options, out=tmp_path))


def test_evaluating_alone_needs_no_option_of_the_training(run, capsys, tmp_path):
    """The options omit the epochs, the optimizer, and the run that gave the initial weights."""
    out = tmp_path / "further"
    given = train.Options(seeds=2, devices=1, init_from=run, out=out)
    train.main(replace(RECIPE, optimizer="adamw", drops=(), learning_rate=1e-3), given)
    trained = capsys.readouterr().out
    preset = PRESETS["digits-mlp"][1]
    train.main(preset, train.Options(seeds=2, devices=1, out=out, evaluate_only=True))
    said = capsys.readouterr().out
    for seed in (0, 1):
        (line,) = read_lines(out / f"seed-{seed}" / "metrics.jsonl")
        assert f"{100 * line['accuracy']:.2f} " in said
        assert f"{100 * line['accuracy']:.2f} " in trained
    other = replace(preset, normalization="none")
    with pytest.raises(InputError, match="has normalization batch_norm, not none"):
        train.main(other, train.Options(seeds=2, devices=1, out=out, evaluate_only=True))


@pytest.mark.parametrize(("vmaps_seeds", "seeds"), [(False, (2,)), (True, (1, 2))])
def test_every_seed_starts_from_the_network_of_the_same_seed(vmaps_seeds, seeds, monkeypatch):
    networks = [({"w": np.full(2, i)}, {"mean": np.full(3, 10 * i)}) for i in range(3)]
    monkeypatch.setattr(trained, "_weights", lambda run, of: [networks[seed] for seed in of])
    shape = (len(seeds),) if vmaps_seeds else ()
    params, statistics = {"w": jnp.zeros((*shape, 2))}, {"mean": jnp.zeros((*shape, 3))}
    state = State(params, statistics, "untrained", jnp.int32(0), jnp.float32(0))
    given: Any = SimpleNamespace(vmaps_seeds=vmaps_seeds, init_state=lambda asked: state)
    found = trained.InitialWeights(Path("run"), 3).init_state(given, seeds)
    expected = np.array(seeds) if vmaps_seeds else np.array(seeds[0])
    np.testing.assert_array_equal(found.params["w"].T, [expected] * 2)
    np.testing.assert_array_equal(found.statistics["mean"].T, [10 * expected] * 3)
    assert found.optimizer == "untrained"


def test_evaluating_alone_prints_on_the_main_process_only(run, capsys, monkeypatch):
    for module in (training_run, introduction):
        monkeypatch.setattr(module, "is_main_process", lambda: False)
    train.main(RECIPE, train.Options(seeds=2, devices=1, out=run, evaluate_only=True))
    assert capsys.readouterr().out == ""


def logged(one, out, view=None):
    view = view or View()
    seen = []
    extras = Extras(log_every=2, hooks=(lambda chunk: seen.append(chunk.step),))
    loop.train(one, (0,), out, view, view.interrupted, extras)
    return read_lines(out / "seed-0" / "steps.jsonl"), seen


@pytest.mark.parametrize(("profile", "counted"), [(False, range(12)), (True, [0, 0, 1, 2, 3, 4])])
def test_chunks_that_compile_or_are_profiled_do_not_count_for_the_speed(
    profile, counted, one, tmp_path, monkeypatch
):
    steps: list[int] = []

    class Clock(loop.Clock):
        def __call__(self, chunk):
            super().__call__(chunk)
            steps.append(self.images // SMALL.batch_size)

    monkeypatch.setattr(loop, "Clock", Clock)
    for name in ("start_trace", "stop_trace"):
        monkeypatch.setattr(jax.profiler, name, lambda *_, **options: None)
    view = View()
    loop.train(one, (0,), tmp_path, view, view.interrupted, Extras(profile=profile))
    assert steps == list(counted)


def test_steps_are_logged_with_their_own_losses(one, tmp_path):
    lines, seen = logged(one, tmp_path)
    epochs = read_lines(tmp_path / "seed-0" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12] == seen
    assert [line["epoch"] for line in lines] == [1, 1, 2, 2, 3, 3]
    assert {line["learning_rate"] for line in lines} == {SMALL.learning_rate}
    for epoch, (first, second) in zip(
        epochs, zip(lines[::2], lines[1::2], strict=True), strict=True
    ):
        assert (first["loss"] + second["loss"]) / 2 == pytest.approx(epoch["loss"], rel=1e-5)
        assert first["loss"] != second["loss"]


def test_lines_of_steps_have_the_mean_loss_of_their_own_steps_and_seed(tmp_path):
    """A run of two seeds, in epochs of five steps, resumes after step 3."""
    given: Any = SimpleNamespace(steps=5, recipe=Recipe(epochs=2, learning_rate=0.5, drops=(0.5,)))
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        lines = [{"step": step, "loss": 0.0} for step in (2, 3, 4)]
        (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    state: Any = SimpleNamespace(step=np.array([3, 3]), loss=np.array([6.0, 60.0]))
    log = StepLog(given, folders, state)
    for step, epoch, sums in ((5, 0, (10.0, 80.0)), (8, 1, (9.0, 3.0)), (10, 1, (10.0, 5.0))):
        log(SimpleNamespace(state=SimpleNamespace(loss=np.array(sums)), step=step, epoch=epoch))  # pyright: ignore[reportArgumentType]
    for folder, losses in zip(folders, ([2.0, 3.0, 0.5], [10.0, 1.0, 1.0]), strict=True):
        found = read_lines(folder / "steps.jsonl")
        assert [line["step"] for line in found] == [2, 3, 5, 8, 10]  # later steps are removed
        assert [line["loss"] for line in found[2:]] == losses
        assert [line["epoch"] for line in found[2:]] == [1, 2, 2]
        assert [line["learning_rate"] for line in found[2:]] == pytest.approx([0.5, 0.1, 0.1])


def test_a_resumed_log_is_that_of_a_whole_run(one, tmp_path):
    whole, _ = logged(one, tmp_path / "whole")
    view = View(interrupt_after=6)
    with pytest.raises(loop.StoppedError):
        logged(one, tmp_path / "cut", view)
    path = tmp_path / "cut" / "seed-0" / "steps.jsonl"
    later = {"step": 99, "epoch": 9, "learning_rate": 0.0, "loss": 0.0}
    path.write_text(path.read_text() + json.dumps(later) + "\n")
    assert logged(one, tmp_path / "cut")[0] == whole


def test_a_hook_sees_every_state(tmp_path):
    one = with_steps_per_call(compiled(SMALL, random_images()), 2)
    norms, view = [], View()

    def hook(chunk):
        leaves = map(np.asarray, jax.tree.leaves(chunk.state.params))
        norms.append(float(sum(np.square(leaf).sum() for leaf in leaves)))

    loop.train(one, (0,), tmp_path, view, view.interrupted, Extras(hooks=(hook,)))
    assert len(norms) == 6
    assert len({*norms}) == 6


WRONG = (None, True, 0, -1, 2.5, 10**9, float("nan"), "", "x", "preact99999999", [], [0.5, "x"], {})


@pytest.mark.parametrize(
    "name", json.loads(json.dumps(vars(SMALL))) | {"vmapped_seeds": 1, "data": 1}
)
def test_a_recipe_of_another_version_or_of_anyone_is_refused_in_a_sentence(name, tmp_path, run):
    """For every wrong value of a field, the file is refused or train.py accepts the recipe."""
    settings = json.loads((run / "recipe.json").read_text())
    data = [settings["data"] | {part: value} for part in settings["data"] for value in WRONG]
    for value in [*WRONG, *(data if name == "data" else ())]:
        (tmp_path / "recipe.json").write_text(json.dumps(settings | {name: value}))
        with contextlib.suppress(InputError):
            recipe, _ = trained.read_recipe(tmp_path)
            recipes.check(recipe)
            make_optimizer(recipe, 3)
            assert hash(recipe)
    del settings[name]
    (tmp_path / "recipe.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"with its recipe\.json; got .*KeyError"):
        load_network(tmp_path)


def weights_of(run, seed=0):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(load_network(run, seed)))]


@pytest.mark.parametrize("vmap_seeds", ["yes", "no"])
def test_a_run_starts_from_the_weights_of_another_one(vmap_seeds, run, tmp_path):
    """The rate is 0 and running statistics are constant, so networks stay as in the old run."""
    still = replace(RECIPE, learning_rate=0.0, running_momentum=1.0, batch_size=64)
    options = train.Options(
        seeds=2, devices=1, vmap_seeds=vmap_seeds, init_from=run, out=tmp_path / "a"
    )
    train.main(still, options)
    for seed in (0, 1):
        for new, old in zip(weights_of(tmp_path / "a", seed), weights_of(run, seed), strict=True):
            np.testing.assert_array_equal(new, old)
    train.main(still, options)  # the run resumes
    with pytest.raises(InputError, match="--init-from must name the run whose weights started"):
        train.main(still, replace(options, init_from=None))


def test_a_run_that_began_with_other_weights_is_pruned(run, tmp_path):
    options = train.Options(devices=1, vmap_seeds="no", init_from=run, seeds=2, out=tmp_path / "a")
    plain = replace(RECIPE, epochs=1, batch_size=64)
    train.main(plain, options)
    recipe, seeds, _ = prune.read(tmp_path / "a")
    assert (recipe, seeds) == (plain, 2)
    prune.main(prune.Options(tmp_path / "a", batch_sizes=(), out=tmp_path / "pruned"))
    assert (tmp_path / "pruned" / "results.json").is_file()
    (tmp_path / "a" / "results.json").unlink()
    with pytest.raises(InputError, match=r"a run with --init-from must be complete; .* has no res"):
        prune.read(tmp_path / "a")


@pytest.mark.parametrize("normalization", ["unitized", "group_norm"])
def test_weights_of_another_network_are_refused(normalization, run, tmp_path):
    other = replace(RECIPE, normalization=normalization)
    with pytest.raises(
        InputError, match=r"--init-from must be a run of the same network, .* has sh"
    ):
        train.main(other, train.Options(devices=1, out=tmp_path, init_from=run))
    with pytest.raises(InputError, match="must have a checkpoint of seed 2"):
        train.main(RECIPE, train.Options(devices=1, seeds=3, out=tmp_path, init_from=run))


def test_a_run_at_a_constant_rate_goes_on_to_more_epochs(tmp_path):
    constant = replace(RECIPE, drops=(), warmup=0.0)
    for epochs in (1, 3):
        train.main(replace(constant, epochs=epochs), train.Options(devices=1, out=tmp_path / "a"))
    train.main(replace(constant, epochs=3), train.Options(devices=1, out=tmp_path / "b"))
    runs = [read_lines(tmp_path / out / "seed-0" / "metrics.jsonl") for out in "ab"]
    assert without_times(runs[0]) == without_times(runs[1])
    assert json.loads((tmp_path / "a" / "recipe.json").read_text())["epochs"] == 3
    for changes in ({"epochs": 2}, {"epochs": 4, "momentum": 0.5}):
        with pytest.raises(InputError, match=r"a new folder or a run of this recipe; .* has "):
            train.main(replace(constant, **changes), train.Options(devices=1, out=tmp_path / "a"))


@pytest.mark.parametrize("falls", [{"drops": (0.5,)}, {"schedule": "cosine"}, {"warmup": 0.1}])
def test_a_run_whose_rate_falls_over_its_epochs_says_how_to_go_on(falls, tmp_path):
    recipe, images = replace(SMALL, **falls), random_images()
    run_folder.prepare(tmp_path, recipe, images, vmapped_seeds=1)
    (tmp_path / "checkpoints-0" / "4").mkdir(parents=True)
    said = r"--epochs must remain 3, because .* ends there; got 4: .* use --init-from .* --out"
    with pytest.raises(InputError, match=said):
        run_folder.prepare(tmp_path, replace(recipe, epochs=4), images, vmapped_seeds=1)
    other = replace(recipe, epochs=4, momentum=0.5)
    with pytest.raises(InputError, match=r"has momentum 0\.9, not 0\.5$"):
        run_folder.prepare(tmp_path, other, images, vmapped_seeds=1)


def test_records_without_images_have_the_sizes_of_both_splits():
    data = {"name": "imagenet2012", "classes": 5, "shape": None, "train": 30, "test": 7}
    records = trained.data_shapes(data)
    assert isinstance(records, trained.Records)
    assert (len(records.train), len(records.test), records.classes) == (30, 7, 5)
