"""The text of results is complete and short, and stays the same if it is read and rewritten."""

import json
import os

import numpy as np

from experiments import cli, files

RESULTS = {
    "seconds": 12.5,
    "rows": [{"name": "a long name " * 6, "values": list(range(60)), "mean": None}],
    "matrix": np.arange(40, dtype=np.float32).reshape(2, 20) / 3,
    "empty": {"list": [], "dict": {}, "text": ""},
    "flags": [True, False, None],
    "missing": float("nan"),
}


def test_the_text_says_what_the_results_hold():
    expected = {**RESULTS, "missing": None, "matrix": RESULTS["matrix"].tolist()}
    found = json.loads(files.results_text(RESULTS))
    np.testing.assert_allclose(found.pop("matrix"), expected.pop("matrix"), rtol=5e-6)
    assert found == expected


def test_float32_survives_whole():
    values = _float32s()
    results = {"values": [{"value": value} for value in values], "some": values[:8]}
    written = json.loads(files.results_text(results))
    found = np.array([v["value"] for v in written["values"]], np.float32)
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(np.array(written["some"], np.float32), values[:8])


def test_fractions_of_curves_have_six_digits_and_counts_all_of_theirs():
    values = _float32s().astype(np.float64)
    written = np.array(json.loads(files.results_text({"values": values}))["values"])
    counts = values == np.round(values)
    np.testing.assert_array_equal(written[counts], values[counts])
    np.testing.assert_allclose(written, values, rtol=5e-6)
    digits = [len(f"{abs(v):.9e}".split("e")[0].rstrip("0")) - 1 for v in written[~counts]]
    assert max(digits) == 6


def test_a_curve_has_nine_numbers_or_more():
    for count, digits in ((8, 9), (9, 6)):
        written = json.loads(files.results_text({"values": [1 / 3] * count}))
        assert written["values"] == [round(1 / 3, digits)] * count


def _float32s():
    drawn = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    return drawn[np.isfinite(drawn)]


def test_a_record_is_one_line_and_what_is_short_too():
    record = dict(zip("abcdefghijklmnop", range(10**9, 10**9 + 16), strict=True))
    lines = files.results_text({**RESULTS, "records": [record, record]}).splitlines()
    assert f'   "values": {list(range(60))},' in lines
    assert ' "empty": {"list": [], "dict": {}, "text": ""},' in lines
    assert f"  {json.dumps(record)}," in lines


def test_written_again_the_text_is_the_same():
    text = files.results_text(RESULTS)
    assert files.results_text(json.loads(text)) == text


def test_what_a_killed_command_left_of_a_file_is_replaced(tmp_path):
    path = tmp_path / "results.json"
    (tmp_path / ".results.json.part").write_text("half of a fi")
    files.write(path, "whole")
    assert path.read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_an_environment_counts_the_cores_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cli.environment()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)
