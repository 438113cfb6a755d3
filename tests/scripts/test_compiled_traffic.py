"""Traffic, read from the text of compiled programs, agrees with counts by hand."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import atlas_traffic
from experiments.compiled import compile_only, normalizers
from experiments.compiled.text import (
    BYTES,
    array_bytes,
    arrays,
    branches,
    closing,
    hbm_bytes,
    padded_elements,
    parse,
    parse_instruction,
    trip_count,
    tuple_parts,
)
from experiments.compiled.traffic import collectives, summary

KILOBYTE = 1024  # bytes of f32[256], or of a row of f32[10,256]

FUSIONS = """
%read_row (p0: f32[10,256], p1: s32[]) -> f32[1,256] {
  %p0 = f32[10,256]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %c = s32[] constant(0)
  ROOT %ds = f32[1,256]{1,0} dynamic-slice(%p0, %p1, %c), dynamic_slice_sizes={1,256}
}

%write_row (q0: f32[10,256], q1: f32[1,256], q2: s32[]) -> f32[10,256] {
  %q0 = f32[10,256]{1,0} parameter(0)
  %q1 = f32[1,256]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  ROOT %dus = f32[10,256]{1,0} dynamic-update-slice(%q0, %q1, %q2, %q2)
}

%body (t: (s32[], f32[10,256])) -> (s32[], f32[10,256]) {
  %t = (s32[], f32[10,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %a = f32[10,256]{1,0} get-tuple-element(%t), index=1
  %row = f32[1,256]{1,0} fusion(%a, %i), kind=kLoop, calls=%read_row
  %new = f32[10,256]{1,0} fusion(%a, %row, %i), kind=kLoop, calls=%write_row
  ROOT %r = (s32[], f32[10,256]{1,0}) tuple(%i, %new)
}
"""
DATA_DEPENDENT = """
%condition (u: (s32[], f32[10,256])) -> pred[] {
  %u = (s32[], f32[10,256]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}
"""
COUNTED = """
%condition (u: (s32[], f32[10,256])) -> pred[] {
  %u = (s32[], f32[10,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%u), index=0
  %bound = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}
"""


def entry(*lines, functions=""):
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule made_up\n{functions}\nENTRY %main (x: f32[10,256]) -> f32[] {{\n{body}\n}}\n"


def loop(condition, attributes=""):
    return entry(
        "%x = f32[10,256]{1,0} parameter(0)",
        "%zero = s32[] constant(0)",
        "%start = (s32[], f32[10,256]{1,0}) tuple(%zero, %x)",
        "ROOT %w = (s32[], f32[10,256]{1,0}) while(%start), condition=%condition, body=%body"
        + attributes,
        functions=FUSIONS + condition,
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[]", 4),
        ("bf16[3,5]{1,0}", 30),
        ("f32[3]{0:T(128)}", 128 * 4),
        # The 16 channels are padded to 128 lanes.
        ("bf16[128,32,32,16]{3,2,1,0:T(8,128)(2,1)}", 128 * 32 * 32 * 128 * 2),
        # The 128 images fill the lanes.
        ("bf16[128,32,32,16]{0,3,2,1:T(8,128)(2,1)}", 128 * 32 * 32 * 16 * 2),
        ("f32[8]{0:T(128)S(1)}", 0),  # this array is in vector memory
        ("f32[8]{0:T(128)S(5)}", 0),  # this array is in host memory
        ("(f32[3]{0:T(128)}, f32[8]{0:S(1)}, pred[2], token[])", 128 * 4 + 2),
    ],
)
def test_arrays_take_their_tiles_in_hbm(shape, expected):
    assert hbm_bytes(shape) == expected


def test_tuples_split_at_their_own_commas():
    assert tuple_parts("((f32[2,3]{1,0}, s32[]), pred[4]{0:T(8,128)})") == [
        "(f32[2,3]{1,0}, s32[])",
        "pred[4]{0:T(8,128)}",
    ]


def test_a_program_is_its_computations_and_their_instructions():
    program = parse(loop(COUNTED))
    assert list(program.computations) == ["read_row", "write_row", "body", "condition", "main"]
    assert program.entry == "main"
    root = program.computations["body"][-1]
    assert (root.op, root.operands, root.is_root) == ("tuple", ["i", "new"], True)


def test_a_kernel_reads_each_operand_once_and_writes_its_result():
    found = summary(
        entry(
            "%x = f32[256]{0} parameter(0)",
            "%y = f32[256]{0} parameter(1)",
            "%z = f32[256]{0} add(%x, %y)",
            "ROOT %square = f32[256]{0} multiply(%z, %z)",
        )
    )
    assert found.bytes == 3 * KILOBYTE + 2 * KILOBYTE
    assert found.kernels == 2
    assert found.rows == ((3 * KILOBYTE, "add", "z"), (2 * KILOBYTE, "multiply", "square"))


def test_copies_from_hbm_to_vector_memory_count_and_vector_memory_does_not():
    found = summary(
        entry(
            "%x = f32[10,256]{1,0:T(8,128)} parameter(0)",
            "%s = (f32[10,256]{1,0:T(8,128)S(1)}, f32[10,256]{1,0:T(8,128)}, u32[]{:S(2)})"
            " copy-start(%x)",
            "%d = f32[10,256]{1,0:T(8,128)S(1)} copy-done(%s)",
            "ROOT %y = f32[10,256]{1,0:T(8,128)S(1)} negate(%d)",
        )
    )
    assert found.bytes == 16 * KILOBYTE  # ten rows are padded to two tiles of eight rows
    assert found.kernels == 2


def test_a_slice_that_is_moved_counts_once_for_each_side_that_is_in_hbm():
    slices = {"": 2 * 8 * KILOBYTE, "S(1)": 8 * KILOBYTE}  # a row is padded to a tile of eight rows
    for place, expected in slices.items():
        found = summary(
            entry(
                "%x = f32[10,256]{1,0:T(8,128)} parameter(0)",
                "%i = s32[] constant(0)",
                f"%s = ((f32[10,256]{{1,0:T(8,128)}}), f32[1,256]{{1,0:T(8,128){place}}}, "
                "u32[]{:S(2)}) dynamic-slice-start(%x, %i, %i)",
                f"ROOT %d = f32[1,256]{{1,0:T(8,128){place}}} dynamic-slice-done(%s)",
            )
        )
        assert found.bytes == expected


# Each of the two kernels reads the index (4 bytes) and a row, and writes a row.
TRIP = 4 + KILOBYTE + KILOBYTE + 4 + KILOBYTE + KILOBYTE


@pytest.mark.parametrize(
    ("text", "trips", "unknown"),
    [
        (loop(DATA_DEPENDENT, ', backend_config={"known_trip_count":{"n":"5"}}'), 5, 0),
        (loop(COUNTED), 7, 0),
        (loop(DATA_DEPENDENT), 1, 1),
        (loop(COUNTED.replace("LT", "GT")), 1, 1),  # the loop runs while counter > bound
        (loop(COUNTED.replace("s32[] constant", "f32[] constant")), 1, 1),
        (loop(COUNTED.replace("%bound = ", "%other = s32[] constant(9)\n  %bound = ")), 1, 1),
        # an s64 constant does not bound the 32-bit counter
        (loop(COUNTED.replace("%bound = ", "%other = s64[] constant(9)\n  %bound = ")), 7, 0),
        (loop(COUNTED, ', backend_config={"known_trip_count":{"n":"12"}}'), 12, 0),
    ],
)
def test_loops_count_by_trips_and_slices_by_their_rows(text, trips, unknown):
    found = summary(text)
    assert found.bytes == trips * TRIP
    assert found.kernels == 2 * trips
    assert found.unknown_loops == unknown
    assert found.notable == {f"while x{'?' if unknown else trips}": 1}


@pytest.mark.parametrize("op", ["copy", "bitcast"])
def test_a_row_written_counts_as_a_row_if_the_whole_is_passed_on_after(op):
    at_root = "ROOT %dus = f32[10,256]{1,0}"
    passed_on = f"  ROOT %whole = f32[10,256]{{1,0}} {op}(%dus)\n}}"
    before, after = loop(COUNTED).split(at_root)
    written, rest = after.split("\n}", 1)
    text = before + at_root.removeprefix("ROOT ") + written + "\n" + passed_on + rest
    assert summary(text).bytes == summary(loop(COUNTED)).bytes == 7 * TRIP


def test_a_loop_of_unknown_length_inside_another_counts_once_a_trip():
    """The outer loop runs three times. The inner loop counts as one loop of unknown length."""
    pair = "(s32[], f32[10,256]{1,0})"
    outer = (
        f"%outer (o: (s32[], f32[10,256])) -> (s32[], f32[10,256]) {{\n  %o = {pair} parameter(0)\n"
        f"  ROOT %v = {pair} while(%o), condition=%condition, body=%body\n}}\n"
    )
    found = summary(
        entry(
            f"%start = {pair} parameter(0)",
            f"ROOT %w = {pair} while(%start), condition=%condition, body=%outer"
            ', backend_config={"known_trip_count":{"n":"3"}}',
            functions=FUSIONS + DATA_DEPENDENT + outer,
        )
    )
    assert (found.bytes, found.kernels, found.unknown_loops) == (3 * TRIP, 6, 1)
    assert found.notable == {"while x3": 1, "while x?": 3}
    assert sorted(row[0] for row in found.rows) == [3 * TRIP / 2] * 2


TWO, ONE, LARGE, SMALL = (
    f"%{name} (p: f32[256]) -> f32[2] {{\n  %p = f32[256]{{0}} parameter(0)\n{lines}\n}}\n"
    for name, lines in {
        "two": "  %n = f32[256]{0} negate(%p)\n  ROOT %s = f32[256]{0} sort(%n), dimensions={0}",
        "one": "  ROOT %n = f32[256]{0} negate(%p)",
        "large": "  %n = f32[256]{0} negate(%p)\n  ROOT %s = f32[2]{0} slice(%n), slice={[0:2]}",
        "small": "  %a = f32[2]{0} slice(%p), slice={[0:2]}\n  %b = f32[2]{0} negate(%a)\n"
        "  %c = f32[2]{0} negate(%b)\n  ROOT %d = f32[2]{0} negate(%c)",
    }.items()
)
SORTED = {"negate": 2 * KILOBYTE, "sort": 2 * KILOBYTE}


@pytest.mark.parametrize(
    ("named", "functions", "expected"),
    [
        ("true_computation=%one, false_computation=%two", ONE + TWO, SORTED),
        ("true_computation=%two, false_computation=%one", ONE + TWO, SORTED),
        ("branch_computations={%one, %two, %one}", ONE + TWO, SORTED),
        # three small kernels have less traffic than one large kernel
        (
            "branch_computations={%small, %large}",
            LARGE + SMALL,
            {"negate": 2 * KILOBYTE, "slice": 16},
        ),
    ],
)
def test_of_several_branches_the_one_with_most_traffic_counts(named, functions, expected):
    found = summary(
        entry(
            "%i = s32[] parameter(0)",
            "%x = f32[256]{0} parameter(1)",
            f"ROOT %c = f32[256]{{0}} conditional(%i, %x, %x), {named}",
            functions=functions,
        )
    )
    assert {op: size for size, op, _ in found.rows} == expected
    assert found.kernels == 2
    assert found.notable == dict.fromkeys({"conditional", "sort"} & {"conditional", *expected}, 1)


def test_a_gather_reads_its_rows_and_a_scatter_writes_its_updates():
    found = summary(
        entry(
            "%x = f32[10,256]{1,0} parameter(0)",
            "%rows = s32[2]{0} parameter(1)",
            "%g = f32[2,256]{1,0} gather(%x, %rows), slice_sizes={1,256}",
            "ROOT %s = f32[10,256]{1,0} scatter(%x, %rows, %g), to_apply=%add",
        )
    )
    gathered = 2 * KILOBYTE + 8 + 2 * KILOBYTE
    scattered = 8 + 2 * KILOBYTE + 2 * KILOBYTE
    assert found.bytes == gathered + scattered
    assert found.notable == {"gather": 1, "scatter": 1}


def test_a_fusion_within_a_fusion_reads_what_the_inner_one_reads():
    outer = (
        "%outer (o0: f32[10,256], o1: s32[]) -> f32[1,256] {\n"
        "  %o0 = f32[10,256]{1,0} parameter(0)\n  %o1 = s32[] parameter(1)\n"
        "  %inner = f32[1,256]{1,0} fusion(%o0, %o1), kind=kLoop, calls=%read_row\n"
        "  ROOT %n = f32[1,256]{1,0} negate(%inner)\n}\n"
    )
    found = summary(
        entry(
            "%x = f32[10,256]{1,0} parameter(0)",
            "%i = s32[] parameter(1)",
            "ROOT %k = f32[1,256]{1,0} fusion(%x, %i), kind=kLoop, calls=%outer",
            functions=FUSIONS + outer,
        )
    )
    # The kernel reads the row and the index (4 bytes), and writes the negated row.
    assert found.bytes == KILOBYTE + 4 + KILOBYTE
    assert found.kernels == 1


def test_an_array_that_is_written_into_itself_is_read_whole():
    own = (
        "%own (w0: f32[10,256], w1: s32[]) -> f32[10,256] {\n"
        "  %w0 = f32[10,256]{1,0} parameter(0)\n  %w1 = s32[] parameter(1)\n"
        "  ROOT %dus = f32[10,256]{1,0} dynamic-update-slice(%w0, %w0, %w1, %w1)\n}\n"
    )
    lines = "%x = f32[10,256]{1,0} parameter(0)", "%i = s32[] parameter(1)"
    root = "ROOT %k = f32[10,256]{1,0} fusion(%x, %i), kind=kLoop, calls=%own"
    assert summary(entry(*lines, root, functions=own)).rows[0][0] >= 20 * KILOBYTE + 4


def test_what_fusions_hold_is_notable_and_custom_calls_have_their_targets_name():
    fused = (
        "%fused (p: f32[256]) -> f32[256] {\n  %p = f32[256]{0} parameter(0)\n"
        "  ROOT %s = f32[256]{0} sort(%p), dimensions={0}\n}\n"
    )
    found = summary(
        entry(
            "%x = f32[256]{0} parameter(0)",
            "%f = f32[256]{0} fusion(%x), kind=kLoop, calls=%fused",
            '%c = f32[256]{0} custom-call(%f), custom_call_target="Cholesky"',
            "ROOT %a = f32[256]{0} custom-call(), custom_call_target="
            '"AllocateBuffer", backend_config="AllocateBuffer"',
            functions=fused,
        )
    )
    assert found.notable == Counter({"sort": 1, "Cholesky": 1})
    assert found.kernels == 2


@pytest.mark.parametrize(
    ("target", "expected"), [("__cublas$gemm", 2), ("__cudnn$convForward", 2), ("TopK", 6)]
)
def test_workspaces_of_products_and_convolutions_are_no_results(target, expected):
    text = entry(
        "%x = f32[256]{0} parameter(0)",
        f'ROOT %c = (f32[256]{{0}}, s8[4096]{{0}}) custom-call(%x), custom_call_target="{target}"',
    )
    assert summary(text).bytes == expected * KILOBYTE


def test_collectives_are_listed_with_the_bytes_of_their_results():
    text = entry(
        "%x = f32[256]{0} parameter(0)",
        "%y = bf16[512]{0} parameter(1)",
        "%r = (f32[256]{0}, bf16[512]{0}) all-reduce(%x, %y), to_apply=%add",
        "%s = (f32[256]{0}, f32[1024]{0}) all-gather-start(%x), dimensions={0}",
        "ROOT %d = f32[1024]{0} all-gather-done(%s)",
    )
    reduced, gathered = collectives(text)
    assert reduced == ("all-reduce", ("f32", "bf16"), 2 * KILOBYTE)
    assert gathered == ("all-gather", ("f32",), 4 * KILOBYTE)
    assert summary(text).bytes == 4 * KILOBYTE + KILOBYTE + 4 * KILOBYTE
    assert summary(text).notable == {"all-reduce": 1, "all-gather": 1}


def test_xla_s_own_text_is_read():
    x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    found = summary(jax.jit(lambda x: x * 2 + 1).lower(x).compile())
    assert found.bytes == pytest.approx(2 * 4e6, rel=1e-3)
    looped = summary(
        jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, x: x @ x, x)).lower(x).compile()
    )
    assert looped.notable["while x9"] == 1


@pytest.mark.parametrize("name", BYTES)
def test_elements_take_the_bytes_of_the_bits_in_their_name(name):
    bits = re.search(r"\d+", name)
    assert BYTES[name] == (int(bits[0]) / 8 if bits else 1)  # a boolean takes one byte


def test_bytes_wherever_they_lie_include_vector_memory_and_padding():
    shape = "(f32[3]{0:T(128)}, s4[16]{0:S(1)}, token[])"
    assert array_bytes(shape) == 128 * 4 + 8
    assert hbm_bytes(shape) == 128 * 4


def test_arrays_have_their_dimensions_and_tokens_are_none():
    found = arrays("(f32[]{}, bf16[<=8,3]{1,0:T(8,128)}, token[], pred[0])")
    assert found == [("f32", [], "{}"), ("bf16", [8, 3], "{1,0:T(8,128)}"), ("pred", [0], "")]


@pytest.mark.parametrize(
    ("dims", "layout", "expected"),
    [
        ([], "{}", 1),
        ([5, 6], "{1,0}", 30),
        ([5, 6], "{1,0:T(4,8)}", 8 * 8),
        ([5, 6], "{0,1:T(4,8)}", 8 * 8),
        ([3, 5, 6], "{2,0,1:T(4,8)}", 5 * 4 * 8),
        ([3, 5, 6], "{2,1,0:T(4,8)(2,1)}", 3 * 8 * 8),
        ([6], "{0:T(4,8)}", 4 * 8),  # one row is padded to a tile
    ],
)
def test_an_array_is_padded_to_the_tiles_of_its_two_fastest_dimensions(dims, layout, expected):
    assert padded_elements(dims, layout) == expected


def test_an_instruction_has_its_operands_its_attributes_and_its_comments_are_left_out():
    line = "  ROOT %out.1 = (f32[2]{0}, /*index=1*/s32[]) fusion(%a.2, /*x*/%b-c), kind=k, calls=%f"
    found = parse_instruction(line)
    assert found == (
        "out.1",
        "(f32[2]{0}, s32[])",
        "fusion",
        ["a.2", "b-c"],
        ", kind=k, calls=%f",
        True,
    )
    assert parse_instruction("  %c = s32[] constant(7), metadata={}") == (
        "c", "s32[]", "constant", ["7"], ", metadata={}", False,
    )  # fmt: skip
    parameter = parse_instruction("  %p = f32[] parameter(3)")
    assert parameter is not None
    assert parameter.operands == ["3"]
    for line in ("%c = s32[] constant(7)", "  %c = s32[]", "}", ""):
        assert parse_instruction(line) is None


def test_a_parenthesis_closes_at_its_own_depth():
    assert closing("(a(b)c)d)") == 6
    assert closing("(a") == 2


def test_only_a_call_has_a_computation_that_it_runs():
    program = parse(loop(COUNTED))
    row, new = program.computations["body"][3:5]
    assert [i.op for i in program.callee(row)] == [
        "parameter",
        "parameter",
        "constant",
        "dynamic-slice",
    ]
    assert program.callee(new)[-1].op == "dynamic-update-slice"
    assert program.callee(program.computations["body"][0]) == []


def test_branches_are_listed_or_named():
    def named(attributes):
        found = parse_instruction(f"  %c = f32[] conditional(%p, %x), {attributes}")
        assert found is not None
        return branches(found)

    assert named("branch_computations={%a, %b.1}") == ["a", "b.1"]
    assert named("true_computation=%yes, false_computation=%no") == ["yes", "no"]
    assert named("metadata={}") == []


def test_a_counter_may_be_compared_in_a_fusion():
    fused = """
%compared (v: s32[]) -> pred[] {
  %v = s32[] parameter(0)
  %bound = s32[] constant(5)
  ROOT %less = pred[] compare(%v, %bound), direction=LT
}

%condition (u: (s32[], f32[10,256])) -> pred[] {
  %u = (s32[], f32[10,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%u), index=0
  ROOT %tested = pred[] fusion(%i), kind=kLoop, calls=%compared
}
"""
    program = parse(loop(fused))
    (repeated,) = (i for i in program.computations["main"] if i.op == "while")
    assert trip_count(program, repeated) == 5


@pytest.mark.parametrize("target", atlas_traffic.TOPOLOGIES)
def test_the_traffic_of_a_target_is_measured_for_its_topology(target, monkeypatch):
    devices = dict(zip(atlas_traffic.TOPOLOGIES.values(), jax.devices(), strict=False))
    monkeypatch.setattr(compile_only, "compile_only_devices", lambda name: [devices[name]])

    def rows(sharding):
        (device,) = sharding.device_set
        yield {"normalizer": "n", "shape": [2], "traffic": 8.0, "device": device}

    monkeypatch.setattr(normalizers, "rows", rows)
    (row,) = atlas_traffic.measure_rows(target)
    assert row["device"] == devices[atlas_traffic.TOPOLOGIES[target]]


def test_a_sum_over_chips_that_starts_has_all_its_results():
    pair = "(f32[256]{0}, f32[2,256]{1,0})"
    found = summary(
        entry(
            "%x = f32[256]{0} parameter(0)",
            "%y = f32[2,256]{1,0} parameter(1)",
            f"%s = {pair} all-reduce-start(%x, %y), to_apply=%add",
            f"ROOT %d = {pair} all-reduce-done(%s)",
        )
    )
    assert (found.bytes, found.kernels) == (2 * 3 * KILOBYTE, 1)
