"""Training from recipes has the same results on any devices and after any interruption."""

import dataclasses
import itertools
import json
import math
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tensorboardX.proto import event_pb2 as events

import train
from experiments import recipes
from experiments.cli import InputError, StoppedError
from experiments.data import datasets, stand_ins
from experiments.data.datasets import Images
from experiments.recipes import PRESETS, Recipe, replace
from experiments.training import (
    checkpoints,
    events as event_log,
    introduction,
    loop,
    networks,
    processes,
    run,
    run_folder,
    trainer,
)
from experiments.training.optimizers import learning_rate, make_optimizer
from experiments.training.step import rematerialize
from jaxnorm import models
from tests.support import made_imagenet
from tests.support.small_runs import (
    SMALL,
    View,
    bits,
    compiled,
    first_state,
    train_one,
    with_steps_per_call,
    without_times,
)

pytestmark = pytest.mark.usefixtures("users_jax")


def restored(one, folder):
    with checkpoints.Checkpoints(folder / "checkpoints-0") as saved:
        return saved.restore(one.init_state((0,)), lambda line: None)[0]


def test_a_run_interrupted_at_any_step_ends_with_the_same_bits(one, tmp_path):
    whole = train_one(one, tmp_path / "whole")
    # An epoch has four steps. Step 1 is the first step of the run, step 4 is the last step of an
    # epoch, step 7 is inside an epoch, and step 11 precedes the last step of the run.
    for step in (1, 4, 7, 11):
        with pytest.raises(StoppedError):
            train_one(one, tmp_path / f"{step}", View(interrupt_after=step))
        view = View()
        again = train_one(one, tmp_path / f"{step}", view)
        assert view.steps[:2] == [step, step + 1]
        assert without_times(again) == without_times(whole)
        assert bits(restored(one, tmp_path / f"{step}")) == bits(restored(one, tmp_path / "whole"))
    saved = run_folder.read_lines(tmp_path / "whole" / "seed-0" / "metrics.jsonl")
    assert saved == whole
    assert [line["epoch"] for line in saved] == [1, 2, 3]


def test_a_damaged_checkpoint_is_left_out_with_a_line(one, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "BETWEEN_CHECKPOINTS", 0)
    whole = train_one(one, tmp_path)
    newest = max((tmp_path / "checkpoints-0").iterdir(), key=lambda path: int(path.name))
    assert newest.name == "12"
    files = [path for path in newest.rglob("*") if path.is_file() and path.stat().st_size > 2000]
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    view = View()
    assert without_times(train_one(one, tmp_path, view)) == without_times(whole)
    assert "checkpoint 12 is damaged" in view.lines[0]
    assert view.steps == [11, 12]


@pytest.mark.parametrize("shard_state", [False, True])
def test_eight_devices_have_the_losses_of_one(one, images, shard_state, monkeypatch):
    monkeypatch.setattr(trainer, "MIN_SHARDED_SIZE", 64)
    eight = compiled(SMALL, images, 8, shard_state=shard_state)
    states = [p.init_state((0,)) for p in (one, eight)]
    spread = [not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(states[1].params)]
    assert any(spread) == shard_state
    for step in range(4):  # more steps would amplify rounding errors without bound
        pairs = zip((one, eight), states, strict=True)
        states = [p.advance(s, p.batches((0,), 0, 0), (0,), 1) for p, s in pairs]
        np.testing.assert_allclose(float(states[1].loss), float(states[0].loss), rtol=1e-5)
        assert int(states[1].step) == step + 1
    assert one.evaluate(states[0]) == eight.evaluate(states[1])


def test_each_device_computes_its_part_of_a_batch(images):
    def program_text(recipe, devices):
        return str(compiled(recipe, images, devices).lower().compile().as_text())

    assert "all-reduce" not in program_text(SMALL, 1)
    text = program_text(replace(SMALL, accumulate=2, augment=True), 8)
    assert "all-reduce" in text
    # Each device computes layer 1 of one image at a time: 16 images / 2 parts / 8 devices = 1.
    assert "f32[1,24]" in text


@pytest.mark.parametrize(
    ("layout", "operation"),
    [({"remat": True}, "stablehlo.optimization_barrier"), ({"microbatches": 2}, "stablehlo.while")],
)
def test_a_layout_that_saves_memory_is_in_the_program(layout, operation, images):
    recipe = replace(SMALL, model="preact8")
    programs = (compiled(recipe, images, **options) for options in (layout, {}))
    saving, usual = (program.lower((0,)).as_text().count(operation) for program in programs)
    assert saving > usual


def test_a_scan_of_steps_has_the_losses_of_single_steps(one, images, monkeypatch):
    by_one = first_state(one, 4)
    monkeypatch.setattr(trainer, "platform", lambda mesh: "gpu")
    found = first_state(compiled(SMALL, images), 4)
    np.testing.assert_allclose(float(found.loss), float(by_one.loss), rtol=1e-5)
    assert int(found.step) == int(by_one.step) == 4


def test_every_test_image_counts_once(one, images):
    state = first_state(one, one.steps)
    key = jax.random.key(0)
    model = nnx.eval_shape(lambda: networks.network(SMALL, classes=2, shape=(4, 4, 1), key=key))
    nnx.update(model, state.params, state.statistics)
    model.eval()
    logits = nnx.jit(lambda model, x: model(x))(model, images.x_test)
    right = np.argmax(logits, -1) == images.y_test
    assert one.evaluate(state) == [{"accuracy": right.mean()}]


def test_an_order_holds_every_image_once_and_changes_with_seed_and_epoch(one):
    orders = [np.asarray(one.batches((s,), epoch, 0)) for s, epoch in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(70))
    assert all((a != b).any() for a, b in itertools.combinations(orders, 2))


def test_running_statistics_are_not_counted_as_parameters(one):
    state = one.init_state((0,))
    assert one.parameters == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert jax.tree.leaves(state.statistics)


def test_kernels_start_alike_under_every_normalization(images):
    def kernels(normalization):
        recipe = replace(SMALL, normalization=normalization, norm_channels=2)
        params = compiled(recipe, images).init_state((0,)).params
        return [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]

    expected = kernels("batch_norm")
    for normalization in ("unitized", "group_norm", "none"):
        for kernel, same in zip(kernels(normalization), expected, strict=True):
            np.testing.assert_array_equal(kernel, same)


def test_parts_of_a_batch_have_its_gradient(images):
    recipe = replace(SMALL, normalization="none", momentum=0.5)
    whole, parts = (compiled(replace(recipe, accumulate=n), images) for n in (1, 4))
    states = [first_state(p, 3) for p in (whole, parts)]
    for a, b in zip(*(jax.tree.leaves(s.params) for s in states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_microbatches_on_devices_have_the_statistics_of_the_batch(images, accumulate):
    recipe = replace(SMALL, momentum=0.5, accumulate=accumulate)
    whole, parts = compiled(recipe, images), compiled(recipe, images, 2, microbatches=2)
    states = [first_state(p, 3) for p in (whole, parts)]
    leaves = (jax.tree.leaves((s.params, s.statistics)) for s in states)
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_bfloat16_computes_and_float32_keeps(one, images):
    short = compiled(replace(SMALL, precision="bfloat16"), images)
    state = first_state(short, short.steps)
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.statistics))} == {
        jnp.dtype("float32")
    }
    expected = float(first_state(one, one.steps).loss)
    assert 0 < abs(float(state.loss) - expected) < 0.2 * expected


def test_rates_drop_at_the_start_of_the_epochs_named():
    recipe = PRESETS["cifar10-resnet20"][1]
    at = {e: learning_rate(recipe, 1, e) for e in (0, 59, 60, 119, 120, 159, 160, 199)}
    expected = [0.05, 0.05, 0.01, 0.01, 0.002, 0.002, 0.0004, 0.0004]
    np.testing.assert_allclose(list(at.values()), expected, rtol=1e-12)


def test_the_rate_is_inside_the_velocity():
    recipe = Recipe(learning_rate=1.0, epochs=2, drops=(0.5,), drop_factor=10.0, weight_decay=0.0)
    optimizer = make_optimizer(recipe, 2)
    w, v = jnp.ones(1), np.zeros(1)
    state, expected = optimizer.init(w), np.ones(1)
    # The rule is v ← 0.9 v − rate · g and then w ← w + 0.9 v − rate · g.
    for rate in (1.0, 1.0, 0.1, 0.1):
        gradient = 2 * expected
        v = 0.9 * v - rate * gradient
        expected = expected + 0.9 * v - rate * gradient
        updates, state = optimizer.update(w + w, state, w)
        w = w + jnp.asarray(updates)
        np.testing.assert_allclose(w, expected, rtol=1e-6)


def test_a_network_that_is_not_finite_is_not_saved(images, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "BETWEEN_CHECKPOINTS", 0)
    # the loss of the first step is still finite, but the weights after this step are not
    recipe = replace(SMALL, learning_rate=1e3, weight_decay=1e37)
    one = with_steps_per_call(compiled(recipe, images), 1)
    with pytest.raises(InputError, match=r"network must remain finite; by step 1 it .*: no check"):
        train_one(one, tmp_path)
    assert not [path for path in (tmp_path / "checkpoints-0").iterdir() if path.name.isdigit()]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 0}, "--epochs must be at least 1; got 0"),
        ({"weight_decay": math.nan}, "--weight-decay must be a finite number; got nan"),
        ({"batch_size": 30, "accumulate": 4}, "must be a multiple"),
        (
            {"batch_size": 30, "accumulate": 2, "statistics_groups": 4},
            "multiple .* got batch size 30 and product 8",
        ),
    ],
)
def test_recipes_out_of_range_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        recipes.check(replace(SMALL, **changes))


def test_what_cannot_be_built_is_refused(images):
    with pytest.raises(InputError, match="--model must be one of mlp, mlp_relu_first, preactN"):
        compiled(replace(SMALL, model="transformer"), images)
    with pytest.raises(InputError, match="--model preact21: depth must be 6k"):
        compiled(replace(SMALL, model="preact21"), images)
    with pytest.raises(InputError, match="--norm-groups and --norm-channels must divide"):
        compiled(replace(SMALL, normalization="group_norm", norm_groups=7), images)
    assert compiled(replace(SMALL, batch_size=70), images).steps == 1
    with pytest.raises(InputError, match="must be at most the 70 training images; got 71"):
        compiled(replace(SMALL, batch_size=71), images)
    with pytest.raises(InputError, match=r"times --accumulate times --microbatches, 3; got"):
        compiled(SMALL, images, microbatches=3)
    with pytest.raises(
        InputError, match="--statistics-groups must be 1 if --microbatches is above 1"
    ):
        compiled(replace(SMALL, statistics_groups=2), images, microbatches=2)
    with pytest.raises(InputError, match="--devices must be from 1 to 8; got 9"):
        trainer.mesh_of(9)
    with pytest.raises(InputError, match="must be a multiple of devices"):
        compiled(replace(SMALL, batch_size=12), images, 8)


@pytest.mark.usefixtures("unchecked")
def test_a_network_too_deep_for_its_images_is_refused(images):
    coloured = images._replace(
        x_train=images.x_train.repeat(3, -1), x_test=images.x_test.repeat(3, -1)
    )
    with pytest.raises(InputError, match="--model vgg11 must fit the images; images must be at"):
        compiled(replace(SMALL, model="vgg11"), coloured)


SHALLOW = ("mlp", "preact8", "preact20", "vgg16")  # models that build quickly, except on CIFAR-100
DEEP = [
    name
    for name, (_, recipe) in PRESETS.items()
    if recipe.model not in SHALLOW or recipe.dataset == "cifar100"
]


@pytest.mark.parametrize(
    "name", [n if n not in DEEP else pytest.param(n, marks=pytest.mark.slow) for n in PRESETS]
)
def test_presets_are_networks_of_their_images(name):
    _, recipe = PRESETS[name]
    recipes.check(recipe)
    size = {"digits": 8, "mnist": 28}.get(recipe.dataset, 32)
    streamed = recipe.dataset in recipes.STREAMED
    size = 224 if streamed else size
    shape = (size, size, 3 if size >= 32 else 1)
    classes = {"cifar100": 100, "imagenet2012": 1000}.get(recipe.dataset, 10)

    def logits(x):
        model = networks.network(
            recipe, classes=classes, shape=shape, streamed=streamed, key=jax.random.key(0)
        )
        return model(x)

    found = nnx.eval_shape(logits, jax.ShapeDtypeStruct((2, *shape), jnp.float32))
    assert found.shape == (2, classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_presets_take_a_step_on_made_data(name, tmp_path):
    recipe = replace(PRESETS[name][1], batch_size=2, statistics_groups=1, warmup=0)
    rng = np.random.default_rng(0)
    if recipe.dataset in recipes.STREAMED:
        made_imagenet.make(tmp_path)
        made = datasets.records(recipe.dataset, tmp_path)
    else:
        size = {"digits": 8, "mnist": 28}.get(recipe.dataset, 32)
        x = rng.standard_normal((4, size, size, 3 if size == 32 else 1)).astype(np.float32)
        y = np.arange(4, dtype=np.int32)
        made = Images(recipe.dataset, "", 100 if recipe.dataset == "cifar100" else 10, x, y, x, y)
    program = trainer.Trainer(recipe, made, trainer.mesh_of(1))
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(program.init_state((0,)).params)]
    state = first_state(program, 1)
    program.close()
    assert math.isfinite(float(state.loss))
    assert int(state.step) == 1
    after = jax.tree.leaves(state.params)
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


def test_vmapped_seeds_have_the_losses_of_single_seeds(one, images, tmp_path):
    both = with_steps_per_call(compiled(SMALL, images, vmap_seeds=True), 2)
    train_one(both, tmp_path / "both", seeds=(0, 1))
    for seed in (0, 1):
        train_one(one, tmp_path / "alone", seeds=(seed,))
        together, alone = (
            run_folder.read_lines(tmp_path / name / f"seed-{seed}" / "metrics.jsonl")
            for name in ("both", "alone")
        )
        assert len(together) == 3
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-3)


def scalars(folder):
    """The values that TensorBoard shows, by step and name; later events replace earlier ones."""
    protocol: Any = events
    found = {}
    for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = protocol.Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            if event.session_log.status == protocol.SessionLog.START:
                found = {key: value for key, value in found.items() if key[0] < event.step}
            found |= {(event.step, v.tag): v.simple_value for v in event.summary.value}
    return found


def test_an_epoch_can_be_seen_before_the_run_ends(tmp_path):
    log = event_log.EventLog(tmp_path / "events", 1)
    log.add(1, {"loss": 0.5, "accuracy": 0.25})
    assert scalars(tmp_path / "events") == {(1, "loss"): 0.5, (1, "accuracy"): 0.25}
    log.close()


def test_a_resumed_run_hides_the_epochs_that_it_repeats(tmp_path):
    log = event_log.EventLog(tmp_path, 1)
    for epoch in (1, 2, 3):
        log.add(epoch, {"loss": 0.5 * epoch})
    log.close()
    event_log.EventLog(tmp_path, 2).close()
    assert scalars(tmp_path) == {(1, "loss"): 0.5}


def test_events_are_those_of_the_lines_after_an_interruption(one, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "BETWEEN_CHECKPOINTS", math.inf)
    monkeypatch.setattr(time, "time", lambda: 1.8e9)  # both runs start in the same second
    with pytest.raises(StoppedError):
        train_one(one, tmp_path, View(interrupt_after=9))
    lines = train_one(one, tmp_path)
    shown = scalars(tmp_path / "seed-0" / "events")
    assert {step for step, _ in shown} == {1, 2, 3}
    for line in lines:
        np.testing.assert_allclose(shown[line["epoch"], "loss"], line["loss"], rtol=1e-6)


def test_a_run_leaves_a_page_and_its_numbers(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load", lambda name, folder: images)
    options = train.Options(seeds=2, devices=1, profile=True, out=tmp_path)
    recipe = replace(SMALL, epochs=12, drops=(0.1,))
    train.main(recipe, options)
    results = json.loads((tmp_path / "results.json").read_text())
    accuracies = [run[-1]["accuracy"] for run in results["seeds"]]
    summary = run.summary(accuracies)
    assert results["accuracy"] == {name: pytest.approx(summary[name], 1e-8) for name in summary}
    assert [len(run) for run in results["seeds"]] == [12, 12]
    assert results["environment"]["jax"] == jax.__version__
    page = (tmp_path / "index.html").read_text()
    assert f"{100 * results['accuracy']['median']:.2f} %" in page
    assert "÷5" in page
    said = capsys.readouterr().out
    assert said.startswith("1 x cpu, 16 images a step, ")
    assert re.search(r", 4 steps an epoch, [\d.]+ k floating-point operations a step, ", said)
    assert "\nrate        learning-rate 0.05, schedule drops, warmup 0, drops 0.1, drop-" in said
    assert "\noptimizer   optimizer nesterov, momentum 0.9, weight-decay 0, " in said
    assert "\nimages      images neither cropped nor flipped\n" in said
    assert max(map(len, said.splitlines())) < 160
    assert "seeds vmapped" in said
    assert all(f"{seed[-1]['loss']:.4f}" in said for seed in results["seeds"])
    assert f"the median {100 * results['accuracy']['median']:.2f} %" in said
    assert list((tmp_path / "profile").rglob("perfetto_trace.json.gz"))


def said_of(preset, **changes):
    recipe = replace(PRESETS[preset][1], **changes)
    evaluations: Any = ("crops",) if recipe.dataset in recipes.STREAMED else ()
    streamed = recipe.dataset in recipes.STREAMED
    said = introduction.settings(recipe, streamed=streamed, evaluations=evaluations)
    shown = " ".join(introduction.lines(said))
    assert all(f"{name.replace('_', '-')} " in shown for name in said if name != "augment")
    return said.keys() - {"augment"}, said["augment"]


def test_only_settings_that_apply_are_said():
    every = {field.name for field in dataclasses.fields(Recipe)}
    drops, groups = {"drops", "drop_factor"}, {"norm_groups", "norm_channels"}
    sizes = {"crop", "scales", "test_scales", "augment"}
    assert said_of("digits-mlp") == (every - groups - sizes, "images neither cropped nor flipped")
    names, done = said_of("imagenet-resnet50")
    assert names == every - groups - drops - (sizes - {"test_scales"})
    assert done.endswith("a shorter side from 256 to 480, cropped at random to 224 and flipped at "
        "random")  # fmt: skip
    names, done = said_of("cifar10-resnet110-micro-g4", optimizer="adamw", drops=())
    unused = {"norm_channels", "running_momentum", "statistics_groups", "momentum"}
    assert names == every - unused - drops - sizes
    assert done == "images padded by 4, cropped at random and flipped at random"
    assert "norm_channels" in said_of("cifar10-resnet110-micro-c4")[0]


def test_what_options_alone_decide_is_refused_without_jax():
    lines = """
        import sys, dataclasses, pathlib, train
        from experiments.cli import InputError
        recipe = train.PRESETS["digits-mlp"][1]
        changes = ("learning_rate", float("nan")), ("model", "resnet21"), ("model", "densenet")
        recipes = [dataclasses.replace(recipe, **dict([change])) for change in changes]
        runs = [(recipe, train.Options()) for recipe in recipes]
        runs += [(recipe, train.Options(process=1)), (recipe, train.Options(evaluate_only=True))]
        for recipe, options in runs:
            try: train.main(recipe, options)
            except InputError as error: print(error, "jax" in sys.modules)
    """
    code = textwrap.dedent(lines)
    environment = os.environ | {"PYTHONPATH": f"{Path(train.__file__).parent}"}
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert [line.rpartition(" ")[2] for line in said.splitlines()] == 5 * ["False"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": 0}, r"--seeds must lie in \[1, 10000\]; got 0"),
        ({"workers": -1}, "--workers must be at least 0; got -1"),
        ({"processes": 2}, "--processes and --process need --coordinator HOST:PORT"),
        ({"coordinator": "host:1"}, "--coordinator HOST:PORT needs --processes and --process"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        train.check(SMALL, train.Options(**options))


def test_what_one_of_two_processes_has_raised_is_raised_for_both(monkeypatch):
    gathered = []

    def gather(flags):
        gathered.append(flags.tolist())
        return np.array([flags, [True, False, False]])

    monkeypatch.setattr(processes.jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes.multihost_utils, "process_allgather", gather)
    assert processes.any_process(False, False, True) == (True, False, True)
    assert gathered == [[False, False, True]]


@pytest.mark.parametrize(
    ("options", "is_vmapped"),
    [({}, False), ({"seeds": 2}, True), ({"seeds": 2, "vmap_seeds": "no"}, False)],
)
def test_seeds_of_one_program_are_vmapped_and_one_seed_is_not(
    monkeypatch, tmp_path, options, is_vmapped
):
    asked = []

    def refuse(recipe, data, mesh, layout):
        asked.append(layout.vmap_seeds)
        raise InputError("enough")

    monkeypatch.setattr(trainer, "Trainer", refuse)
    with pytest.raises(InputError, match="enough"):
        train.main(SMALL, train.Options(out=tmp_path, **options))
    assert asked == [is_vmapped]


def test_an_evaluation_that_is_refused_makes_no_folder(tmp_path):
    out = tmp_path / "new"
    with pytest.raises(InputError, match=r"needs a run with a checkpoint; .*new has none"):
        train.main(SMALL, train.Options(evaluate_only=True, out=out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("preset", "view", "said"),
    [
        ("imagenet-vgg16", "whole", "vgg16 has dense layers, which take images of one size"),
        ("digits-mlp", "crops", "--evaluations needs a streamed data set; digits is in memory"),
    ],
)
def test_evaluations_that_cannot_be_are_refused_before_the_training(preset, view, said):
    with pytest.raises(InputError, match=said):
        train.check(PRESETS[preset][1], train.Options(evaluations=(view,)))


@pytest.mark.parametrize("model", ["preact8", "resnet8", "vgg11"])
def test_blocks_are_rematerialized_where_asked(model):
    """The test reads the lowered program, because XLA's CPU back end ignores rematerialization."""
    x, y = np.ones((40, 32, 32, 3), np.float32), np.arange(40, dtype=np.int32) % 10
    images = Images("made", "", 10, x, y, x, y)
    recipe = Recipe(model=model, batch_size=16, normalization="none", precision="bfloat16")
    programs = [
        compiled(recipe, images, 2, remat=remat, shard_state=True, microbatches=2)
        for remat in (False, True)
    ]
    barriers = [program.lower().as_text().count("optimization_barrier") for program in programs]
    assert barriers[1] >= barriers[0] + 3


def test_the_stages_of_a_vgg_are_rematerialized():
    """The VGG calls its stages with keyword arguments, which `nnx.remat` does not accept."""
    vgg = models.VGG(11, classes=10, hidden=(), rngs=nnx.Rngs(0))
    graph, state = nnx.split(nnx.view(rematerialize(vgg), use_running_average=True))
    x = jax.random.normal(jax.random.key(0), (1, 32, 32, 3), jnp.float32)

    def run(state, x):
        return nnx.merge(graph, state)(x)

    equations = jax.make_jaxpr(run)(state, x).eqns
    assert sum("policy" in eqn.params for eqn in equations) == len(vgg.stages)
    plain = nnx.view(vgg, use_running_average=True)(x)
    np.testing.assert_allclose(run(state, x), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_rematerialized_blocks_change_nothing(images):
    recipe = Recipe(batch_size=16, normalization="unitized")
    programs = [compiled(recipe, images, remat=remat) for remat in (False, True)]
    losses = [float(first_state(program, 3).loss) for program in programs]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_numbers_of_seeds_are_summarized():
    assert run.summary([0.5]) == {"median": 0.5, "mean": 0.5, "stderr": None}
    found = run.summary([0.1, 0.2, 0.6])
    stderr = np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5
    np.testing.assert_allclose(np.array(list(found.values()), float), [0.2, 0.3, float(stderr)])


def command_line(out, *options):
    script = Path(train.__file__)
    return [sys.executable, str(script), "digits-mlp", "--out", str(out), *options]


@pytest.mark.slow
@pytest.mark.parametrize("shard_state", [False, True])
def test_two_processes_train_as_one_with_two_devices(shard_state, tmp_path):
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "false", "XLA_FLAGS": ""}
    options = (
        "--epochs",
        "2",
        "--drops",
        "--seeds",
        "2",
        *(["--shard-state"] if shard_state else []),
    )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pair = [
        subprocess.Popen(
            command_line(
                tmp_path / "pair",
                *(*options, "--coordinator", f"localhost:{port}"),
                *("--processes", "2", "--process", str(i)),
            ),
            env=environment | {"JAX_NUM_CPU_DEVICES": "1"},
        )
        for i in range(2)
    ]
    assert [process.wait(300) for process in pair] == [0, 0]
    subprocess.run(
        command_line(tmp_path / "one", *options),
        env=environment | {"JAX_NUM_CPU_DEVICES": "2"},
        check=True,
    )
    for seed in range(2):
        found, expected = (
            run_folder.read_lines(tmp_path / name / f"seed-{seed}" / "metrics.jsonl")
            for name in ("pair", "one")
        )
        assert len(found) == len(expected) == 2
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
            assert a["accuracy"] == b["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_for_two_epochs(name, tmp_path, monkeypatch):
    """Run `train.py PRESET --epochs 2 --fake-data` with one small batch per epoch."""
    monkeypatch.setattr(stand_ins, "STEPS", 1)
    recipe = replace(PRESETS[name][1], epochs=2, batch_size=2)
    if recipe.dataset in recipes.STREAMED:
        recipe = replace(recipe, crop=32, scales=(36, 48), test_scales=(32,))
    train.main(recipe, train.Options(fake_data=True, devices=1, workers=0, out=tmp_path))
    (lines,) = json.loads((tmp_path / "results.json").read_text())["seeds"]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert all(math.isfinite(line["loss"]) for line in lines)
    rates = [learning_rate(recipe, 1, epoch) for epoch in range(2)]
    np.testing.assert_allclose([line["learning_rate"] for line in lines], rates, rtol=1e-6)
    assert "Random images and labels" in (tmp_path / "index.html").read_text()
