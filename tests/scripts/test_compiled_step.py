"""Costs of a training step that is compiled for other chips, from made-up compiled programs."""

import json
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.sharding import AxisType

from experiments.cli import InputError
from experiments.compiled import step as compiled_step
from experiments.compiled.step import Chip
from experiments.data import stand_ins
from experiments.recipes import PRESETS, replace
from experiments.training import compile_for
from experiments.training.trainer import Layout

RECIPE = replace(PRESETS["digits-mlp"][1], batch_size=12)
CHIP = Chip(flops=1e12, hbm_bandwidth=1e9, hbm=1000, interconnect=2e6)
TEXT = """HloModule made

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[60], y: f32[40]) -> (f32[60], f32[40]) {
  %x = f32[60]{0} parameter(0)
  %y = f32[40]{0} parameter(1)
  ROOT %sum = (f32[60]{0}, f32[40]{0}) all-reduce(%x, %y), to_apply=%add
}
"""


class Compiled:
    """A stand-in for a lowered program and for the compiled program, with made-up costs."""

    def __init__(self, flops: float | None = 2e9, error: Exception | None = None):
        self.flops, self.error = flops, error

    def compile(self):
        if self.error:
            raise self.error
        return self

    def as_text(self):
        return TEXT

    def cost_analysis(self):
        return None if self.flops is None else {"flops": self.flops}

    def memory_analysis(self):
        sizes = {"argument": 500, "temp": 300, "output": 450, "alias": 400, "generated_code": 50}
        return SimpleNamespace(**{f"{name}_size_in_bytes": n for name, n in sizes.items()})


@pytest.fixture
def show(monkeypatch, capsys):
    """A function that shows the cost of a program on three chips, and returns lines and JSON."""

    def run(program, *, chip: Chip | None = CHIP, alone: Any = None, **options):
        def trainer(recipe, data, mesh, *, layout):
            built.append((recipe, data, mesh, layout))
            own = alone if mesh.size == 1 else program
            return SimpleNamespace(parameters=1234567, lower=lambda seeds: own)

        built.clear()
        kind = jax.devices()[0].device_kind
        for module in (compile_for, compiled_step):
            monkeypatch.setattr(module, "CHIPS", {kind: chip} if chip else {})
        monkeypatch.setattr(compile_for, "Trainer", trainer)
        monkeypatch.setattr(
            compile_for, "compile_only_devices", lambda name: jax.devices()[: int(name[-1])]
        )
        compile_for.show(RECIPE, "made:3", Layout(remat=True), **options)
        *lines, result = capsys.readouterr().out.splitlines()
        return lines, json.loads(result)

    built: list[Any] = []
    run.built = built  # pyright: ignore[reportFunctionMemberAccess]
    return run


def test_a_step_is_bound_by_what_takes_longest(show):
    lines, result = show(Compiled())
    ((recipe, data, mesh, layout),) = show.built
    assert (recipe, layout) == (RECIPE, Layout(remat=True))
    assert mesh.devices.tolist() == jax.devices()[:3]
    assert mesh.axis_types == (AxisType.Auto,)
    digits: Any = stand_ins.shapes_of("digits")
    assert data.x_train.shape == digits.x_train.shape
    assert (result["topology"], result["chips"], result["images_per_chip"]) == ("made:3", 3, 4)
    # 400 of the 450 bytes of results use buffers of arguments, and count only as arguments.
    assert result["memory"] == {
        "arguments": 500, "temporary": 300, "results": 50, "program": 50, "needed": 900,
        "fits": True,
    }  # fmt: skip
    assert result["flops"] == 2e9
    assert result["hbm_bytes"] == 800  # the argument is read, and the result is written
    (reduced,) = result["collectives"]
    assert (reduced["kind"], reduced["count"], reduced["bytes"]) == ("all-reduce", 1, 400)
    sent = 400 * 2 * 2 / 3  # an all-reduce of 400 bytes in a ring of three chips
    assert result["seconds"] == pytest.approx(
        {"compute": 2e-3, "HBM": 8e-7, "interconnect": sent / 2e6}
    )
    assert result["bound"] == "compute"
    assert result["recipe"]["batch_size"] == 12
    assert result["layout"]["remat"] is True
    assert 0 <= result["compile_seconds"] < 60
    assert {"jax", "commit"} <= result["environment"].keys()
    kind = jax.devices()[0].device_kind
    assert lines == [
        f"compiled, not run: 3 x {kind} (made:3), 4 images per chip, 1,234,567 parameters; "
        "all numbers are per chip",
        "memory: 900 B of 1 kB: fits (arguments 500 B, temporary 300 B, program 50 B)",
        "collectives: 1 all-reduce of 2 f32 arrays, 400 B",
        f"HBM traffic: 800 B in {result['kernels']} kernels",
        "floating-point operations: 2 G",
        "bounds by the chip's published figures: compute 2 ms, HBM 800 ns, "
        "interconnect 267 µs; compute is largest",
    ]


def test_operations_that_a_compiler_does_not_count_are_jax_s_of_one_device(show):
    for uncounted in (Compiled(flops=None), Compiled(flops=-1.0), Compiled(flops=0.0)):
        _, result = show(uncounted, alone=Compiled(flops=6e9))
        assert result["flops"] == 2e9
        assert [mesh.size for _, _, mesh, _ in show.built] == [3, 1]
        assert show.built[1][0] == RECIPE


def test_of_an_unknown_chip_there_are_no_bounds(show):
    lines, result = show(Compiled(), chip=None, axis_type=AxisType.Explicit, devices=2)
    assert (result["chips"], result["images_per_chip"]) == (2, 6)
    assert show.built[0][2].axis_types == (AxisType.Explicit,)
    assert result["memory"]["fits"] is None
    assert not {"seconds", "bound"} & result.keys()
    assert lines[1].startswith("memory: 900 B (arguments ")
    assert lines[-1].startswith("no bounds: the published figures of ")
    assert lines[-1].endswith(" are not known")


def test_what_needs_more_than_a_chip_has_does_not_fit(show):
    """A step does not fit in memory. If the compiler still gives its costs, all lines are shown."""
    (fitting, _), (lines, result) = (
        show(Compiled(), chip=CHIP._replace(hbm=hbm)) for hbm in (900, 899)
    )
    assert result["memory"]["fits"] is False
    assert fitting[1].startswith("memory: 900 B of 900 B: fits (arguments 500 B")
    changed = fitting[1].replace("of 900 B: fits", "of 899 B: does not fit")
    assert lines == [fitting[0], changed, *fitting[2:]]
    assert len(lines) == 6
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 20.5G of 15.75G hbm. Exceeded")
    lines, result = show(Compiled(error=error), chip=CHIP._replace(hbm=16e9))
    assert result["memory"] == {"needed": 20.5 * 2**30, "fits": False}
    assert "flops" not in result
    assert lines[1:] == ["memory: 22 GB of 16 GB: does not fit"]


def test_what_a_compiler_refuses_and_unknown_topologies_are_one_sentence(show, monkeypatch):
    error = jax.errors.JaxRuntimeError("\nINTERNAL: no device\nat line 3")
    with pytest.raises(
        InputError, match=r"must be able to .* without a device; INTERNAL: no device$"
    ):
        show(Compiled(error=error))
    long = jax.errors.JaxRuntimeError("a" * 300 + "b")
    with pytest.raises(InputError, match=r"; a{300}$"):
        show(Compiled(error=long))

    def refuse(name):
        raise ValueError(f"no {name}")

    monkeypatch.setattr(compile_for, "compile_only_devices", refuse)
    with pytest.raises(InputError, match=r"^--compile-for: no made:3$"):
        compile_for.show(RECIPE, "made:3", Layout())


def test_a_step_without_collectives_says_so(show, monkeypatch):
    monkeypatch.setattr(Compiled, "as_text", lambda self: TEXT.replace("all-reduce(", "negate("))
    lines, result = show(Compiled())
    assert result["seconds"]["interconnect"] == 0
    assert "collectives: none" in lines


def test_collectives_are_counted_by_kind_and_dtype_with_their_whole_arrays():
    """The bytes of a reduce-scatter's operand count, and the bytes of an all-gather's result.

    An asynchronous collective counts once, at its start.
    """
    found = compiled_step.collectives(
        """HloModule made

ENTRY %main (x: f32[100]) -> f32[100] {
  %x = f32[100]{0} parameter(0)
  %y = bf16[50]{0:T(128)(2,1)} parameter(1)
  %g = (bf16[50]{0}, bf16[200]{0}) all-gather-start(%y), dimensions={0}
  %h = bf16[200]{0} all-gather-done(%g)
  %r = (f32[100]{0}, bf16[50]{0}) all-reduce(%x, %y), to_apply=%add
  %s = f32[25]{0} reduce-scatter(%x), to_apply=%add
  %t = f32[100]{0} all-reduce-start(%x), to_apply=%add
  %u = f32[100]{0} all-reduce-done(%t)
  ROOT %p = f32[100]{0} collective-permute(%u)
}
"""
    )
    assert [tuple(row.values()) for row in found] == [
        ("all-gather", "bf16", 1, 1, 400),
        ("all-reduce", "bf16", 1, 1, 100),
        ("all-reduce", "f32", 2, 2, 800),
        ("collective-permute", "f32", 1, 1, 400),
        ("reduce-scatter", "f32", 1, 1, 400),
    ]
    # The ring has four chips. It sends all-reduces of 900 bytes, a permute, an all-gather and a
    # reduce-scatter.
    sent = 2 * 3 / 4 * 900 + 400 + 3 / 4 * (400 + 400)
    assert compiled_step.bytes_sent(found, 4) == pytest.approx(sent)


def test_every_chip_is_published_with_all_its_figures():
    """The test allows one order of magnitude for each figure, and so would find a wrong unit."""
    for chip in compiled_step.CHIPS.values():
        assert 1e14 < chip.flops < 1e15
        assert 5e11 < chip.hbm_bandwidth < 5e12
        assert 1e10 < chip.hbm < 1e11
        assert 1e11 < chip.interconnect < 1e12


@pytest.mark.parametrize("compiler", ["libtpu", "jax-cuda12-plugin"])
def test_compilers_are_among_the_versions(compiler, monkeypatch):
    monkeypatch.setattr(
        compiled_step,
        "distributions",
        lambda: [SimpleNamespace(name=compiler), SimpleNamespace(name="pears")],
    )
    monkeypatch.setattr(compiled_step, "version", lambda name: f"{name} 1.0")
    found = compiled_step.environment()
    assert found[compiler] == f"{compiler} 1.0"
    assert {"libtpu", "jax-cuda12-plugin", "pears"} & found.keys() == {compiler}
    assert found["jax"] == jax.__version__


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2e-10, "0.2 n"),
        (9.996e-7, "1 µ"),
        (1.5e-9, "1.5 n"),
        (963e-6, "963 µ"),
        (0, "0 "),
        (-5.0, "-5 "),
        (1.0, "1 "),
        (20.1, "20.1 "),
        (999.4, "999 "),
        (999.6, "1 k"),
        (0.5, "500 m"),
        (1000, "1 k"),
        (9.996e5, "1 M"),
        (1.5412e12, "1.54 T"),
        (2.5e16, "2.5e+04 T"),
    ],
)
def test_numbers_have_the_prefix_of_their_unit_from_nano_to_tera(number, text):
    assert compiled_step.with_prefix(number) == text
