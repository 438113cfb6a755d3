"""Every option of a command reaches the function that does its work."""

import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from jax.sharding import AxisType

import analyze
import atlas
import atlas_traffic
import bench
import bench_compiled
import compare_lm
import covariate_shift
import filter_models
import filter_settings
import prune_lm
import repair
import reproduce
import shift_estimators
import train
import train_lm
from experiments.data import stand_ins
from experiments.recipes import replace
from experiments.training import run_folder
from tests.support.small_runs import random_images

DATA = Path(__file__).parent


class ReachedError(Exception):
    """Raised by a fake function when a command calls it; holds the arguments of the call."""


def named(arguments):
    """The arguments by name; a dataclass or named tuple is replaced by its fields."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        match value:
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                found |= dataclasses.asdict(value)
            case tuple() if hasattr(value, "_fields"):
                found |= {field: getattr(value, field) for field in vars(type(value))["_fields"]}
            case _:
                found[name] = value
    return found


LM: dict[str, Any] = {"sequences": 5, "length": 6, "held_out": 7}
UNITS: dict[str, Any] = {"layers": 1, "heads": 2, "intermediate": 3, "hidden": 4, "experts": 5}
SCHEDULES: dict[str, Any] = {"schedules": ("constant",), "orders": ("ReLU first",)}
SMALL: dict[str, Any] = {"epochs": 3, "batch_size": 9}
REPAIRED: dict[str, Any] = {"images": 100, "test": 3, "batch": 50, "draws": 4, "ratios": (0.2,)}
STEPS: dict[str, Any] = {
    "steps": 3,
    "batch_size": 4,
    "length": 5,
    "learning_rate": 0.5,
    "seed": 6,
    "every": 7,
}
RECIPE = train.PRESETS["digits-mlp"][1]
PROCESSES: dict[str, Any] = {"coordinator": "a:1", "processes": 3, "process": 2, "heartbeat": 11}
ABOUT_RESNET: dict[str, Any] = {"weights": DATA / "w", "data_dir": DATA}


def evaluate_alone(out):
    """Evaluate a run that has an empty checkpoint, on noise in the shape of ImageNet.

    The run started from another run's weights, which the options of the evaluation omit.
    """
    recipe = replace(train.PRESETS["imagenet-vgg16"][1], model="vgg11", crop=32, batch_size=8)
    noise = stand_ins.noise(recipe.dataset, recipe.batch_size)
    out.mkdir()
    run_folder.prepare(out, recipe, noise, vmapped_seeds=1, init_from="abc")
    (out / "checkpoints-0" / "1").mkdir(parents=True)
    given = {"evaluate_only": True, "fake_data": True, "devices": 1, "seeds": 2}
    train.main(recipe, train.Options(**given, evaluations=("crops",), out=out))


@pytest.mark.parametrize(
    ("call", "function", "expected"),
    [
        pytest.param(
            lambda out: analyze.main(DATA, ("a", "b"), seed=7, out=out),
            "analyze.load",
            {"path": DATA, "layers": ("a", "b"), "seed": 7},
            id="analyze, layers",
        ),
        pytest.param(
            lambda out: analyze.main(DATA, ratio=0.3, gaussian_layers=21, out=out),
            "experiments.measures.analysis.measure",
            {"ratio": 0.3, "gaussian_layers": 21},
            id="analyze",
        ),
        pytest.param(
            lambda out: atlas.main(DATA, 3, 50, out=out),
            "experiments.measures.atlas.measure",
            {"data_dir": DATA, "size": 50},
            id="atlas",
        ),
        pytest.param(
            lambda out: atlas.main(seeds=4, out=out),
            "experiments.measures.atlas.runs",
            {"seeds": 4},
            id="atlas, seeds",
        ),
        pytest.param(
            lambda out: bench.main(bench.Options(runs=7)),
            "experiments.benchmarks.timing.time_pair",
            {"runs": 7},
            id="bench",
        ),
        pytest.param(
            lambda out: bench_compiled.main(
                bench_compiled.Options("v5e", "layers", ("2,3",), "float32", out)
            ),
            "experiments.compiled.compile_only.in_own_process",
            {"arguments": ("v5e", ["layers"], [(2, 3)], ["float32"])},
            id="bench_compiled",
        ),
        pytest.param(
            lambda out: compare_lm.main(
                compare_lm.Options(DATA, (0.3,), 4, **LM, epoch=0.2, out=out)
            ),
            "experiments.language.comparison.compare",
            LM | {"folder": DATA, "keep": (0.3,), "seeds": 4, "epoch": 0.2},
            id="compare_lm",
        ),
        pytest.param(
            lambda out: covariate_shift.main(
                **SMALL, **SCHEDULES, seeds=2, exact=11, data_dir=None, out=out
            ),
            "experiments.measures.shift.train_all",
            SMALL | SCHEDULES | {"seeds": 2, "exact": 11},
            id="covariate_shift",
        ),
        pytest.param(
            lambda out: filter_models.main((DATA / "a",), (DATA / "b", DATA / "c"), out),
            "experiments.measures.filter_models.table_4",
            {"others": {"b": DATA / "b", "c": DATA / "c"}},
            id="filter_models",
        ),
        pytest.param(
            lambda out: filter_settings.main(seeds=5, out=out),
            "experiments.measures.filter_tests.measure",
            {"seeds": 5},
            id="filter_settings",
        ),
        pytest.param(
            lambda out: prune_lm.main(
                prune_lm.Options(
                    DATA,
                    prune_lm.Amounts(
                        parameters="5K", target="h100", units=("hidden",), round_to=8, **UNITS
                    ),
                    DATA / "text",
                    "wanda",
                    "none",
                    **LM,
                    seed=8,
                    maxtext=True,
                    out=out,
                )
            ),
            "experiments.language.pruning_run.prune",
            UNITS
            | LM
            | {"folder": DATA, "budget": 5000, "target": "h100", "units": ("hidden",)}
            | {"round_to": 8, "score": "wanda", "repair": "none", "seed": 8, "maxtext": True}
            | {"text": DATA / "text", "gigabytes": None},
            id="prune_lm",
        ),
        pytest.param(
            lambda out: prune_lm.main(
                prune_lm.Options(DATA, prune_lm.Amounts(gigabytes=0.5), out=out)
            ),
            "experiments.language.pruning_run.prune",
            {"gigabytes": 0.5, "budget": None, "text": None},
            id="prune_lm, gigabytes",
        ),
        pytest.param(
            lambda out: repair.main(
                repair.Options("resnet20", **ABOUT_RESNET, **REPAIRED, out=out)
            ),
            "experiments.measures.repair_images.run",
            ABOUT_RESNET | REPAIRED,
            id="repair, resnet20",
        ),
        pytest.param(
            lambda out: repair.main(
                repair.Options("recalibration", **ABOUT_RESNET, images=9, test=8, out=out)
            ),
            "experiments.measures.recalibration.run",
            ABOUT_RESNET | {"count": 9, "tested": 8},
            id="repair, recalibration",
        ),
        pytest.param(
            lambda out: reproduce.main("mnist", DATA, **SMALL, seeds=2, depth=14, out=out),
            "experiments.measures.report.measure",
            SMALL | {"dataset": "mnist", "data_dir": DATA, "seeds": 2, "model": "preact14"},
            id="reproduce",
        ),
        pytest.param(
            lambda out: shift_estimators.main(4, 9, out / "a.json"),
            "experiments.measures.shift_estimators.measure",
            {"seeds": 4, "steps": 9},
            id="shift_estimators",
        ),
        pytest.param(
            lambda out: train.main(
                RECIPE,
                train.Options(
                    seeds=2, vmap_seeds="yes", remat=True, workers=3, microbatches=2, out=out
                ),
            ),
            "experiments.training.trainer.Layout",
            {"shard_state": False, "remat": True, "vmap_seeds": True, "workers": 3}
            | {"microbatches": 2},
            id="train, layout",
        ),
        pytest.param(
            lambda out: train.main(RECIPE, train.Options(shard_state=True, out=out)),
            "experiments.training.trainer.Layout",
            {"shard_state": True, "remat": False, "vmap_seeds": False},
            id="train, sharded",
        ),
        pytest.param(
            lambda out: train.main(RECIPE, train.Options(data_dir=DATA, fake_data=True, out=out)),
            "experiments.data.stand_ins.load",
            {"data_dir": DATA, "fake": True},
            id="train, data",
        ),
        pytest.param(
            lambda out: train.main(RECIPE, train.Options(profile=True, log_every=7, out=out)),
            "experiments.training.loop.Extras",
            {"evaluations": (), "profile": True, "log_every": 7},
            id="train, extras",
        ),
        pytest.param(
            evaluate_alone,
            "experiments.training.run.show_evaluations",
            {"groups": [(0,), (1,)], "evaluations": ("crops",)},
            id="train, evaluations alone",
        ),
        pytest.param(
            lambda out: train.main(RECIPE, train.Options(**PROCESSES, out=out)),
            "experiments.training.processes.init_distributed",
            {"coordinator": "a:1", "processes": 3, "process": 2, "heartbeat": 11},
            id="train, processes",
        ),
        pytest.param(
            lambda out: train.main(
                RECIPE, train.Options(devices=3, axis_type="explicit", compile_for="h100", out=out)
            ),
            "experiments.training.compile_for.show",
            {"devices": 3, "axis_type": AxisType.Explicit},
            id="train, compile_for",
        ),
        pytest.param(
            lambda out: train_lm.main(train_lm.Options(**STEPS, out=out)),
            "experiments.language.training_run.train",
            STEPS,
            id="train_lm",
        ),
    ],
)
def test_every_option_reaches_the_work_of_its_command(
    call, function, expected, monkeypatch, tmp_path
):
    module, _, name = function.rpartition(".")
    owner = importlib.import_module(module)
    signature = inspect.signature(getattr(owner, name))

    def reached(*args, **options):
        raise ReachedError(signature.bind(*args, **options).arguments)

    monkeypatch.setattr(analyze, "load", lambda *_: {})
    monkeypatch.setattr(bench, "choose", lambda options: {"title": lambda: [None]})
    monkeypatch.setattr(filter_models, "kernels", lambda path: {})
    monkeypatch.setattr(filter_models, "pruned", lambda folder: folder)
    monkeypatch.setattr("experiments.measures.filter_models.network", lambda kernels: {})
    monkeypatch.setattr("experiments.compiled.compile_only.check_plugin", lambda name: None)
    evaluations: list[Any] = []
    introduce = lambda *given: evaluations.append(given[-1])  # noqa: E731
    monkeypatch.setattr("experiments.training.introduction.introduce", introduce)
    monkeypatch.setattr("experiments.measures.shift_estimators.cases", lambda: [None])
    monkeypatch.setattr(owner, name, reached)
    with pytest.raises(ReachedError) as raised:
        call(tmp_path / "out")
    found = named(raised.value.args[0])
    assert {option: found[option] for option in expected} == expected
    assert evaluations in ([], [found.get("evaluations")])


@pytest.mark.parametrize(
    ("call", "made", "expected"),
    [
        pytest.param(
            lambda out: analyze.main(DATA, ratio=0.3, gaussian_layers=21, out=out),
            {"measures.analysis.measure": {}},
            {"settings": {"ratio": 0.3, "gaussian layers": 21, "level": 0.05}},
            id="analyze",
        ),
        pytest.param(
            lambda out: atlas.main(DATA, 4, 50, out=out),
            {"measures.atlas.runs": [], "measures.atlas_findings.findings": {}},
            {"seeds": 4, "settings": {"seeds": 4, "size": 50}},
            id="atlas",
        ),
        pytest.param(
            lambda out: atlas_traffic.main(("h100",), out / "a.json"),
            {"compiled.compile_only.in_own_process": "rows"},
            {"targets": {"h100": "rows"}, "plugins": {"jax-cuda12-plugin": "7"}},
            id="atlas_traffic",
        ),
        pytest.param(
            lambda out: compare_lm.main(
                compare_lm.Options(DATA, (0.3,), 4, **LM, epoch=0.2, out=out)
            ),
            {"language.comparison.compare": {}},
            {"seeds": 4, "settings": LM | {"keep": [0.3], "seeds": 4, "epoch": 0.2}},
            id="compare_lm",
        ),
        pytest.param(
            lambda out: covariate_shift.main("mnist", DATA, **SMALL, seeds=2, exact=11, out=out),
            {"measures.shift.train_all": [], "pages.shift.findings": {}},
            {"settings": SMALL | {"dataset": "mnist", "seeds": 2, "exact": 11}}
            | {"data": {"name": str(("mnist", DATA))}, "learning_rate": [0.05, 0.01, 0.002]},
            id="covariate_shift",
        ),
        pytest.param(
            lambda out: filter_settings.main(seeds=5, out=out),
            {"measures.filter_tests.measure": {}},
            {"seeds": 5},
            id="filter_settings",
        ),
    ],
)
def test_results_name_the_options_that_decide_them(call, made, expected, monkeypatch, tmp_path):
    """Fakes replace all measurements of the commands."""

    def written(results):
        raise ReachedError(results)

    for name, value in made.items():
        monkeypatch.setattr(f"experiments.{name}", lambda *_, value=value, **__: value)
    monkeypatch.setattr(analyze, "load", lambda *_: {})
    monkeypatch.setattr(atlas_traffic, "version", lambda name: "7")
    only = {"h100": None}
    monkeypatch.setattr("experiments.compiled.compile_only.check_plugin", only.__getitem__)
    load = lambda *which: random_images()._replace(name=str(which))  # noqa: E731
    monkeypatch.setattr("experiments.data.datasets.load", load)
    monkeypatch.setattr("experiments.pages.page.write", lambda results, *_: written(results))
    monkeypatch.setattr("experiments.files.write_results", lambda path, results: written(results))
    with pytest.raises(ReachedError) as raised:
        call(tmp_path / "out")
    (found,) = raised.value.args
    for name, value in expected.items():
        own = found[name]
        if name in ("settings", "data"):
            own = {field: own[field] for field in value}
        assert own == value
