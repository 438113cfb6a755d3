"""Tables of compiled programs: compared programs do the same work, and no function is missing."""

import importlib
import inspect
import json
import os
import pkgutil
import signal
import subprocess
import sys
import types
from contextlib import nullcontext
from functools import partial
from html import escape
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bench_compiled
import geometry
import pruning
from experiments import cli
from experiments.benchmarks.host_functions import HOST_ONLY
from experiments.cli import InputError
from experiments.compiled import compile_only, layers as compiled_layers, tables as compiled_tables
from experiments.compiled.compile_only import compile_only_devices
from experiments.compiled.functions import cases
from experiments.compiled.layers import LAYERS, Limits, floor, judge, training
from experiments.compiled.tables import LIMITS, TABLES
from experiments.pages import compiled as compiled_page

ROOT = Path(__file__).parents[2]
IMAGES, VECTORS = (256, 56, 56, 256), (8192, 4096)


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_a_table_is_compiled_for_the_devices_of_its_target(target, monkeypatch):
    asked = []
    device = jax.devices()[0]
    devices = {compiled_tables.TARGETS[target]: [device, device]}
    monkeypatch.setattr(compiled_tables, "compile_only_devices", lambda name: devices[name])
    for name in ("layer_rows", "collective_rows", "function_rows", "block_rows"):
        monkeypatch.setattr(
            compiled_tables, name, lambda *args, name=name: asked.append((name, *args)) or []
        )
    for table in TABLES:
        found = list(compiled_tables.rows(target, table, [(2, 3)], ["float32"]))
        assert (len(found) == 1) == ((target, table) == ("h100", "bottleneck"))
    sharding = jax.sharding.SingleDeviceSharding(device)
    expected = [
        ("layer_rows", target, sharding, [(2, 3)], ["float32"]),
        ("collective_rows", [device, device]),
        ("function_rows", sharding),
    ]
    if target == "v5e":
        expected.append(("block_rows", sharding))
    assert sorted(asked, key=lambda call: call[0]) == sorted(expected, key=lambda call: call[0])


def test_every_public_function_is_compiled_or_said_to_be_for_the_host():
    names = ["jaxnorm", "jaxnorm.shift"]
    for package in (pruning, geometry):
        inner = {m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_"}
        names += [package.__name__, *(f"{package.__name__}.{m}" for m in inner - {"claims"})]
    public = {
        value
        for package in map(importlib.import_module, names)
        for name, value in vars(package).items()
        if isinstance(inspect.unwrap(value), types.FunctionType)
        and not name.startswith("_")
        and value.__module__.startswith(package.__name__)
    }
    compiled = {case.function for case in cases()}
    host = {function for functions in HOST_ONLY.values() for function in functions}
    assert compiled | host == public
    assert not compiled & host


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_our_batch_norm_does_flax_s_work(key, mode):
    x, dy = 1 + jax.random.normal(key, (2, 8, 4, 4, 3), jnp.float32)
    params = {"scale": jnp.full(3, 2, jnp.float32), "bias": jnp.ones(3, jnp.float32)}
    running = (jnp.zeros(3, jnp.float32), jnp.full(3, 2, jnp.float32))

    def outputs(name):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            if mode == "training":
                return jax.jit(partial(training, LAYERS[name]))(params, running, x, dy)
            return jax.jit(partial(compiled_layers.inference, LAYERS[name]))(params, running, x)

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # noqa: E731
    jax.tree.map(close, outputs("BatchNorm"), outputs("Flax"))


def test_floors_follow_from_the_passes_over_the_data():
    assert floor("BatchNorm", VECTORS, "training") == 1 + 2 + 2 + 3
    assert floor("unitized, Eq. 10", IMAGES, "training") == 1 + 2 + 2 + 3
    assert floor("unitized, Eq. 9", VECTORS, "training") == 1 + 1 + 2 + 2 + 2 + 3
    assert floor("Flax", IMAGES, "inference") == 2
    assert floor("unitized, Eq. 9", IMAGES, "inference") == 3


def test_a_row_holds_its_limits_to_two_decimals():
    row = {"ratio_to_flax": 1.004, "temporary": 0.0}
    assert judge(row, Limits(1.0, 0.1))["holds"] is True
    assert judge(row | {"ratio_to_flax": 1.01}, Limits(1.0, 0.1))["holds"] is False
    assert judge(row | {"temporary": 2.0}, Limits(1.0, 0.1))["holds"] is False
    assert judge(row, Limits())["holds"] is None


@pytest.mark.parametrize(("target", "plugin"), [("v5e", "libtpu"), ("h100", "jax_cuda12_plugin")])
def test_a_missing_plugin_is_named_with_the_line_that_installs_it(monkeypatch, target, plugin):
    monkeypatch.setattr(compile_only, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"needs {plugin}: pip install .*compiled\]"):
        compile_only_devices(target)
    with pytest.raises(InputError, match=plugin):
        bench_compiled.main(bench_compiled.Options(target=target))


def test_collectives_of_a_row_are_counted_and_their_bytes_summed():
    kinds = {"all-reduce": (8.0, 16.5), "all-gather": (4.0,)}
    collectives = [{"op": op, "bytes": size} for op, sizes in kinds.items() for size in sizes]
    row = {"layer": "a", "shape": (2, 3), "devices": 4, "collectives": collectives}
    cells = TABLES["collectives"].cells(row | {"as_few_as_flax": False})
    assert cells == ["a", "2×3", "4", "1 all-gather, 2 all-reduce", "28", "no"]


def test_cells_show_the_numbers_of_their_columns_and_their_own_limits():
    row = {"layer": "a", "shape": (2, 3), "dtype": "d", "mode": "m", "traffic": 1.25, "floor": 8}
    row |= {"ratio_to_flax": 1.5, "temporary": 0.25, "limits": {"traffic": 2.0, "temporary": 3.0}}
    row |= {"holds": True, "kernels": 7, "seconds": 9.04, "megabytes": 121.2, "function": "f"}
    row |= {"size": "s", "ratio_to_arguments_and_results": 4.25, "notable": {"sort": 1, "dot": 2}}
    compared = ["1.50 (≤ 2.00)", "0.25 (≤ 3.00)", "holds", "7"]
    layers = ["a", "2×3", "d", "m", "1.25", "8", *compared, "9.0"]
    assert TABLES["layers"].cells(row) == layers
    assert TABLES["bottleneck"].cells(row) == ["a", "121", *compared, "9"]
    assert TABLES["functions"].cells(row) == ["f", "s", "121", "4.2", "7", "2 dot, 1 sort"]
    unlimited = row | {"limits": {"traffic": None, "temporary": 3.0}, "holds": None}
    assert TABLES["layers"].cells(unlimited)[6:9] == ["1.50", "0.25 (≤ 3.00)", ""]


@pytest.mark.parametrize("shape", ["256", "256,x", "256,0", ""])
def test_an_odd_shape_is_refused(shape):
    with pytest.raises(InputError, match="--shapes must be sizes such as 256,56,56,256"):
        bench_compiled.main(bench_compiled.Options(shapes=(shape,)))


def test_a_shape_has_an_axis_of_one_at_least():
    assert bench_compiled.shape_of("8,1") == (8, 1)
    assert bench_compiled.shape_of("256, 56,56,256") == IMAGES


def test_the_page_has_every_row_and_says_what_is_not_measured():
    row = {
        "layer": "BatchNorm",
        "shape": IMAGES,
        "dtype": "bfloat16",
        "mode": "training",
        "traffic": 8.0,
        "floor": 8,
        "ratio_to_flax": 1.0,
        "temporary": 0.0,
        "kernels": 12,
        "seconds": 1.5,
    }
    function_row = {"function": "pruning.gm", "size": "512×4608"}
    found = {
        "layers": [
            judge(row, Limits(1.0, 0.1)),
            judge(row | {"ratio_to_flax": 2.0}, Limits(1.0, 0.1)),
        ],
        "bottleneck": [{"skipped": "convolutions"}],
        "functions": [function_row | {"error": "ValueError: no"}],
    }
    html = compiled_page.render(
        {
            "targets": {"h100": found},
            "command": "python scripts/bench_compiled.py",
            "date": "2026-01-01",
            "seconds": 60.0,
            "environment": {"jax": jax.__version__},
            "plugins": {},
        }
    )
    for text in (
        *map(escape, LIMITS),
        "256×56×56×256",
        "1 of 2",
        "2.00 (≤ 1.00)",
        "ValueError: no",
        "shift.emd",
    ):
        assert text in html


def interpreter() -> str:
    """The running interpreter, unless only the one of `make bench-compiled` has libtpu."""
    environment = ROOT / ".venv-compiled/bin/python"
    return sys.executable if find_spec("libtpu") or not environment.exists() else str(environment)


@pytest.mark.slow
@pytest.mark.skipif(
    not find_spec("libtpu") and interpreter() == sys.executable,
    reason="libtpu is not installed; `make bench-compiled` does",
)
@pytest.mark.parametrize("shape", ["256,56,56,256", "256,14,14,1024"])
def test_layers_of_images_move_no_more_than_flax_s_on_a_tpu(tmp_path, shape):
    command = [interpreter(), "scripts/bench_compiled.py", "--target", "v5e", "--only", "layers"]
    command += ["--shapes", shape, "--dtype", "bfloat16", "--out", str(tmp_path)]
    ours = ("JAX_", "XLA_")  # the variables with JAX's settings begin with these
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["targets"]["v5e"]["layers"]
    found = {r["layer"]: r["ratio_to_flax"] for r in rows if r["mode"] == "training"}
    assert len(found) == 4
    assert max(found.values()) <= 1.05, found


@pytest.fixture
def made_up_targets(monkeypatch):
    """A list that records requests for rows and changes of JAX's settings; all rows are made up."""
    asked = []

    def rows(function, target, tables, shapes, dtypes):
        assert function is bench_compiled.measured
        asked.append((target, tables, shapes, dtypes))
        return {name: [{"skipped": f"{target} has none"}] for name in tables}

    monkeypatch.setattr(compile_only, "in_own_process", rows)
    monkeypatch.setattr(bench_compiled, "version", lambda name: f"{name} 1.0")
    monkeypatch.setattr(compile_only, "find_spec", lambda name: object())
    monkeypatch.setattr(jax.config, "update", lambda *setting: asked.append(setting))
    return asked


def test_without_options_everything_is_measured_and_written(made_up_targets, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_compiled, "OUT", tmp_path / "out")
    bench_compiled.main(bench_compiled.Options())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    everything = [*TABLES], compiled_layers.SHAPES, compiled_layers.DTYPES
    assert made_up_targets == [
        ("jax_platforms", "cpu"),  # this setting comes first, so that no plugin looks for a device
        ("v5e", *everything),
        ("h100", *everything),
    ]
    assert results["plugins"] == {
        "libtpu": "libtpu 1.0",
        "jax-cuda12-plugin": "jax-cuda12-plugin 1.0",
    }
    assert results["targets"]["h100"]["layers"] == [{"skipped": "h100 has none"}]
    assert results["command"].startswith("python scripts/bench_compiled.py")
    assert 0 < results["seconds"] <= cli.seconds()
    assert "not compiled: v5e has none" in (tmp_path / "out" / "index.html").read_text()


def test_a_part_is_written_only_where_it_is_asked_for(made_up_targets, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_compiled, "OUT", tmp_path / "default")
    options = {"target": "h100", "only": "layers", "shapes": ("8,4", "2,3,3,5")}
    bench_compiled.main(bench_compiled.Options(**options, dtype="float32"))
    assert made_up_targets[1:] == [("h100", ["layers"], [(8, 4), (2, 3, 3, 5)], ["float32"])]
    assert not list(tmp_path.iterdir())
    bench_compiled.main(bench_compiled.Options(**options, out=tmp_path / "part"))
    results = json.loads((tmp_path / "part" / "results.json").read_text())
    assert list(results["targets"]) == ["h100"]
    assert results["plugins"].keys() == {"jax-cuda12-plugin"}


def test_rows_are_printed_below_their_table_as_they_are_compiled(monkeypatch, capsys):
    def rows(target, table, shapes, dtypes):
        assert (target, shapes, dtypes) == ("v5e", [(4, 2)], ["float32"])
        if table == "layers":
            yield {"skipped": "first"}
            assert "not compiled: first" in capsys.readouterr().out
        yield {"skipped": table}

    monkeypatch.setattr(compiled_tables, "rows", rows)
    found = bench_compiled.measured("v5e", ["layers", "functions"], [(4, 2)], ["float32"])
    assert found == {
        "layers": [{"skipped": "first"}, {"skipped": "layers"}],
        "functions": [{"skipped": "functions"}],
    }
    first, _, title, head, row = capsys.readouterr().out.splitlines()
    assert first.startswith("not compiled: layers | ")
    assert title == "v5e: Public functions, float32"
    assert head.split(" | ") == list(TABLES["functions"].columns)
    assert len(row.split(" | ")) == len(head.split(" | "))


def test_a_target_has_a_process_that_leaves_ctrl_c_to_this_one(monkeypatch):
    class Executor(nullcontext):
        def __init__(self, workers, *, mp_context, initializer, initargs):
            assert (workers, mp_context.get_start_method()) == (1, "spawn")
            assert (initializer, initargs) == (signal.signal, (signal.SIGINT, signal.SIG_IGN))
            super().__init__(self)

        def submit(self, function, *arguments):
            assert function is max
            return SimpleNamespace(result=lambda: arguments)

    monkeypatch.setattr(compile_only, "ProcessPoolExecutor", Executor)
    assert compile_only.in_own_process(max, "a", "b") == ("a", "b")


@pytest.mark.parametrize("name", TABLES)
def test_a_row_that_was_not_compiled_fills_all_columns(name):
    count = len(TABLES[name].columns)
    skipped = TABLES[name].cells({"skipped": "no"})
    assert skipped == ["not compiled: no", *(count - 1) * [""]]
    refused = TABLES[name].cells({"function": "f", "size": "9", "error": "E"})
    assert refused == ["f", "9", *(count - 3) * [""], "E"]
