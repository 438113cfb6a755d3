"""The text of measured results: whole, short, and the same when it is written again."""

import json

import numpy as np

from experiments import files

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
    np.testing.assert_allclose(found.pop("matrix"), expected.pop("matrix"), rtol=5e-9)
    assert found == expected


def test_float32_survives_whole():
    drawn = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    values = drawn[np.isfinite(drawn)]
    written = json.loads(files.results_text({"values": values}))["values"]
    np.testing.assert_array_equal(np.float32(written), values)


def test_a_list_of_numbers_is_one_line_and_what_is_short_too():
    lines = files.results_text(RESULTS).splitlines()
    assert f'   "values": {list(range(60))},' in lines
    assert ' "empty": {"list": [], "dict": {}, "text": ""},' in lines
    assert max(len(line) for line in lines if "[" not in line) <= 100


def test_written_again_the_text_is_the_same():
    text = files.results_text(RESULTS)
    assert files.results_text(json.loads(text)) == text
