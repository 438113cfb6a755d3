"""Training steps for chips that are not attached, and on meshes of either type of axes."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import train
from experiments import cli
from experiments.cli import InputError
from experiments.compiled import compile_only
from experiments.data import stand_ins
from experiments.data.datasets import Images
from experiments.recipes import PRESETS, Recipe, replace
from experiments.training import trainer

SMALL = replace(PRESETS["digits-mlp"][1], batch_size=16)


pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((85, 8, 8, 1)).astype(np.float32)
    y = (x.sum((1, 2, 3)) > 0).astype(np.int32)
    return Images("made", "", 2, x[:70], y[:70], x[70:], y[70:])


def first_steps(recipe, images, axis_type, *, devices=8, steps=3, **layout):
    """A trainer of `recipe`, and its training state after the first `steps` steps."""
    mesh = trainer.mesh_of(devices, axis_type=axis_type)
    program = trainer.Trainer(recipe, images, mesh, trainer.Layout(**layout))
    seeds = (0, 1) if layout.get("vmap_seeds") else (0,)
    state = program.advance(program.init_state(seeds), program.batches(seeds, 0, 0), seeds, steps)
    return program, state


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({"normalization": "unitized", "accumulate": 2}, {"vmap_seeds": True}),
        pytest.param({}, {"shard_state": True}, marks=pytest.mark.slow),
        pytest.param(
            {"normalization": "group_norm", "norm_channels": 2, "precision": "bfloat16"},
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model": "preact8", "augment": True, "normalization": "unitized"},
            {"shard_state": True, "remat": True},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_explicit_axes_give_the_first_steps_of_auto_axes(changes, layout, images, monkeypatch):
    monkeypatch.setattr(trainer, "MIN_SHARDED_SIZE", 64)
    recipe = replace(SMALL, **changes)
    (auto, auto_state), (explicit, explicit_state) = (
        first_steps(recipe, images, kind, **layout) for kind in (AxisType.Auto, AxisType.Explicit)
    )
    np.testing.assert_allclose(explicit_state.loss, auto_state.loss, rtol=1e-5)
    assert explicit.evaluate(explicit_state) == auto.evaluate(auto_state)


@pytest.mark.parametrize(
    "groups", [2, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 16))]
)
def test_groups_have_the_statistics_of_their_images_on_any_devices(groups, images):
    recipe = replace(SMALL, statistics_groups=groups, batch_size=32)
    one, four = (first_steps(recipe, images, AxisType.Auto, devices=n, steps=1)[1] for n in (1, 4))
    np.testing.assert_allclose(four.loss, one.loss, rtol=1e-5)
    for a, b in zip(*(jax.tree.leaves(state.statistics) for state in (four, one)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_groups_that_devices_cannot_share_evenly_are_refused(images):
    with pytest.raises(
        InputError, match="must divide the 8 devices or be a multiple of them; got 3"
    ):
        first_steps(replace(SMALL, statistics_groups=3, batch_size=48), images, AxisType.Auto)


def test_gradients_are_added_over_devices_in_float32(images):
    """The test reads the lowered program, because XLA's CPU back end promotes bfloat16 sums."""
    recipe = replace(SMALL, precision="bfloat16")
    program = trainer.Trainer(recipe, images, trainer.mesh_of(8))
    text = program.lower().as_text()
    summed = re.findall(r"\}\) : \(tensor<([\dx]*?)x?(f32|bf16)>\)", text)
    assert {dtype for _, dtype in summed} == {"f32"}
    elements = sum(int(np.prod([int(n) for n in dims.split("x") if n])) for dims, _ in summed)
    assert elements >= program.parameters


def test_the_lowered_step_is_the_one_that_runs(images, monkeypatch):
    monkeypatch.setattr(trainer, "MIN_SHARDED_SIZE", 64)
    layout = trainer.Layout(shard_state=True)
    program = trainer.Trainer(SMALL, images, trainer.mesh_of(8), layout)
    compiled = program.lower().compile()  # an unused donation would raise an error
    state = program.init_state((0,))
    leaves = jax.tree.leaves(state)
    shardings = jax.tree.leaves(compiled.input_shardings[0][0])
    for leaf, sharding in zip(leaves, shardings, strict=True):
        assert sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
    assert any(not leaf.sharding.is_fully_replicated for leaf in leaves)


@pytest.mark.parametrize("name", stand_ins.DATA_SETS)
def test_data_sets_are_described_without_being_there(name):
    presets = [recipe for _, recipe in PRESETS.values() if recipe.dataset == name]
    recipe = replace(presets[0], model="vgg11") if presets else Recipe(dataset=name)
    made = stand_ins.shapes_of(name)
    count = len(made.x_train) if isinstance(made, Images) else len(made.train)
    assert count >= recipe.batch_size
    assert made.classes in (10, 100, 1000)


def test_every_preset_has_a_data_set_to_compile_for():
    assert {recipe.dataset for _, recipe in PRESETS.values()} <= stand_ins.DATA_SETS.keys()


def test_a_plugin_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(compile_only, "find_spec", lambda plugin: None)
    with pytest.raises(InputError, match="needs libtpu: pip install"):
        train.main(SMALL, train.Options(compile_for="v5e:2x2"))


def test_a_library_that_is_not_installed_is_named_before_minutes_of_compilation(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", version)
    path = "experiments.training.compile_for.compile_only_devices"
    monkeypatch.setattr(path, lambda _: pytest.fail("compiled"))
    with pytest.raises(InputError, match="jaxnorm must be installed, because its version"):
        train.main(SMALL, train.Options(compile_for="v5e:2x2"))


def compile_for(topology, *options, out):
    script = Path(train.__file__)
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "false", "XLA_FLAGS": ""}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    return subprocess.run(
        [sys.executable, str(script), *options, "--compile-for", topology, "--out", str(out)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


with_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu")


@pytest.mark.slow
@with_libtpu
@pytest.mark.parametrize(
    "options",
    [
        ("digits-mlp", "--precision", "bfloat16"),
        ("digits-mlp", "--shard-state", "--accumulate", "2"),
        ("digits-mlp", "--seeds", "2", "--axis-type", "explicit"),
        ("digits-preact8", "--remat", "--normalization", "unitized"),
        ("cifar10-vgg16", "--model", "vgg11"),
    ],
)
def test_a_step_is_compiled_for_chips_that_are_not_attached(options, tmp_path):
    out = tmp_path / "out"
    found = compile_for("v5e:2x2", *options, out=out)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("compiled, not run: 4 x TPU v5 lite (v5e:2x2), ")
    result = json.loads(found.stdout.splitlines()[-1])
    assert result["memory"]["fits"]
    assert result["bound"] in ("compute", "HBM", "interconnect")
    assert result["flops"] > 0
    summed = {e["dtype"]: e["bytes"] for e in result["collectives"] if e["kind"] == "all-reduce"}
    assert summed.keys() == {"f32"}
    assert summed["f32"] >= 4 * result["parameters"]
    assert not out.exists()


@pytest.mark.slow
@with_libtpu
@pytest.mark.parametrize(
    ("topology", "options", "sentence"),
    [
        ("v9:2x2", (), "the topology must be h100 or one that libtpu knows, such as v5e:4x4"),
        ("v5e:2x2", ("--batch-size", "30"), "--batch-size must be a multiple of devices times"),
        ("v5e:2x2", ("--devices", "5"), "--devices must be from 1 to 4; got 5"),
    ],
)
def test_what_cannot_be_compiled_ends_with_a_sentence(topology, options, sentence, tmp_path):
    found = compile_for(topology, "digits-mlp", *options, out=tmp_path / "out")
    assert found.returncode == 2
    assert sentence in found.stderr.splitlines()[-1]
    assert "Traceback" not in found.stderr


@pytest.fixture
def topologies(monkeypatch):
    """A list that records requests for topologies; every accelerator plugin counts as installed."""
    asked = []

    def describe(name="", platform=None, **options):
        asked.append((name, platform, options))
        return SimpleNamespace(devices=("one", "two"))

    monkeypatch.setattr(compile_only, "find_spec", lambda plugin: object())
    monkeypatch.setattr(compile_only.topologies, "get_topology_desc", describe)
    monkeypatch.setattr(jax.config, "update", lambda *setting: asked.append(setting))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return asked


@pytest.mark.parametrize(
    ("name", "platform", "topology"),
    [("v5e:2x2", "tpu", None), ("h100", "cuda", "1x1x1"), ("h100:8", "cuda", "1x1x8")],
)
def test_devices_are_of_the_topology_that_was_named(topologies, name, platform, topology):
    assert compile_only.compile_only_devices(name) == ["one", "two"]
    setting, (named, asked, options) = topologies
    # With this setting, no plugin looks for a device.
    assert setting == ("jax_platforms", "cpu")
    assert (named, asked) == (name if platform == "tpu" else "h100", platform)
    assert options.get("topology") == topology
    assert options.get("target_config") == (compile_only.H100 if platform == "cuda" else None)
    assert os.environ.items() >= compile_only.ENVIRONMENT.items()


@pytest.mark.parametrize("name", ["v9:2x2", "h100:0", "h100:x"])
def test_what_no_plugin_knows_is_refused_and_other_errors_are_not_swallowed(
    topologies, name, monkeypatch
):
    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError(f"{reason}: no such topology")

    monkeypatch.setattr(compile_only.topologies, "get_topology_desc", refuse)
    reason = "INVALID_ARGUMENT"
    with pytest.raises(ValueError, match=f"must be h100, h100:N, or one .*; got '{name}'"):
        compile_only.compile_only_devices(name)
    reason = "INTERNAL"
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compile_only.compile_only_devices(name)


@pytest.mark.parametrize(
    ("name", "plugin"),
    [("h100", "jax_cuda12_plugin"), ("h100:8", "jax_cuda12_plugin"), ("v5e:2x2", "libtpu")],
)
def test_a_topology_needs_the_plugin_of_its_platform(name, plugin, monkeypatch):
    missing = {plugin}
    monkeypatch.setattr(compile_only, "find_spec", lambda p: None if p in missing else p)
    with pytest.raises(InputError, match=f"^compiling for {name} needs {plugin}: "):
        compile_only.check_plugin(name)
    missing.clear()
    compile_only.check_plugin(name)


def test_a_program_is_measured_on_the_devices_of_its_arguments():
    devices = jax.devices()[:4]
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    shapes = {
        "x": jax.ShapeDtypeStruct((8, 32), np.float32),
        "n": jax.ShapeDtypeStruct((4,), "int32"),
    }
    arguments = compile_only.place(shapes, sharding)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), arguments) == {
        "x": ((8, 32), np.float32),
        "n": ((4,), np.int32),
    }
    assert {x.sharding for x in arguments.values()} == {sharding}
    found = compile_only.measure(lambda x: x.sum(0), arguments["x"])
    # Each of the four devices stores 2 × 32 numbers of the argument, and the 32 numbers of the sum,
    # with four bytes for each number.
    assert found.arguments_and_results == 4 * (2 * 32 + 32)
    ((kind, dtypes, size),) = found.collectives
    assert (kind, list(dtypes), size) == ("all-reduce", ["f32"], 4 * 32)
    assert found.bytes >= 4 * (2 * 32 + 32)
    assert found.kernels >= 1
    assert found.unknown_loops == 0
    assert 0 < found.seconds < 60
    assert isinstance(found.temporary, int)
