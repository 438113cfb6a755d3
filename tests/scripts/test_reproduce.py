"""The command `reproduce.py`: its page, its results, its errors, and how it resumes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import reproduce
from experiments.cli import InputError
from tests.support.browser import open_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The environment variables, with a cache folder that only these tests use."""
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path_factory.getbasetemp() / "cache")}


def command(*options):
    return [sys.executable, str(ROOT / "scripts" / "reproduce.py"), *map(str, options)]


@pytest.fixture(scope="module")
def smallest(tmp_path_factory, cache):
    """The output folder of the report's smallest run: one epoch, one seed, few layers."""
    out = tmp_path_factory.mktemp("smallest")
    finished = subprocess.run(
        command("--epochs", 1, "--seeds", 1, "--depth", 8, "--out", out),
        env=cache,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert "Open " in finished.stdout
    return out


def without_times(path):
    results = json.loads(path.read_text())
    for changing in ("seconds", "date", "command"):
        del results[changing]
    del results["environment"]["commit"]  # the commit can change during the test
    return results


def test_results_hold_every_value(smallest):
    results = without_times(smallest / "report" / "results.json")
    assert results["data"]["train"] + results["data"]["test"] == 1797
    for name in ("batch_norm", "unitized"):
        assert results["training"][name]["accuracy"]["mean"] > 0.5
        assert np.shape(results["training"][name]["test_accuracy"]) == (1, 1)
        assert np.shape(results["distances"][name]) == (1, 1)
        assert len(results["moments"][name]["kurtosis"]["median"]) == 2
        layers = len(results["pruning"]["layers"])
        for pair in results["pruning"]["pairs"]:
            assert np.shape(results["pruning"][name]["spearman"][pair]) == (1, layers)
        assert set(results["pruning"][name]["masked"]) == {"l1", "l2", "fermat", "gm"}
    assert layers == 9  # convolutions: one in the stem, 6 in blocks, 2 in shortcuts
    assert results["odd_point"]["network"]["is_odd"]
    assert len({claim["paper"] for claim in results["claims"]}) == 3
    assert all(claim["as_recorded"] for claim in results["claims"])
    checks = [check for claim in results["claims"] for check in claim["checks"]]
    sampled = [check for check in checks if check["kind"].startswith("Monte-Carlo")]
    assert len(sampled) >= 10
    for check in sampled:
        assert abs(check["estimate"]) > check["stderr"] > 0


@pytest.mark.parametrize("name", ["batch_norm", "unitized"])
def test_the_last_epoch_of_every_network_is_kept(smallest, name):
    assert [path for path in smallest.rglob(f"{name}/checkpoints-0/*") if path.name.isdigit()]


def test_both_normalizations_start_as_the_same_network(smallest):
    # Before training, both networks have the same weights and alpha is 0, so their outputs are
    # equal.
    moments = json.loads((smallest / "report" / "results.json").read_text())["moments"]
    for moment in ("mean", "var", "skewness", "kurtosis"):
        for part in ("low", "median", "high"):
            start = [moments[name][moment][part][0] for name in ("batch_norm", "unitized")]
            np.testing.assert_allclose(*start, rtol=1e-3, atol=1e-5)
    trained = [moments[name]["kurtosis"]["median"][1] for name in ("batch_norm", "unitized")]
    assert abs(trained[0] - trained[1]) > 1e-3


def test_every_claim_is_decided_for_the_corrected_form(smallest):
    for claim in json.loads((smallest / "report" / "results.json").read_text())["claims"]:
        assert claim["as_recorded"], claim
        assert claim["printed_holds"] is False, claim


def test_random_filters_rank_as_gaussian_theory_predicts(smallest):
    # After one epoch, weights are still close to their Gaussian initial values.
    pruned = json.loads((smallest / "report" / "results.json").read_text())["pruning"]
    measured = np.array(pruned["batch_norm"]["spearman"]["l1-l2"][0], float)
    expected = np.array(pruned["expected_spearman"]["l1-l2"])
    wide = np.array([layer["filters"] == 64 and layer["dims"] > 64 for layer in pruned["layers"]])
    assert abs(measured[wide].mean() - expected[wide].mean()) < 0.05


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_opens_in_a_browser(smallest, tmp_path, width):
    seen = open_page(smallest / "report" / "index.html", width, 900, scratch=tmp_path)
    assert seen["console"] == []
    assert seen["content"] <= width
    assert len(seen["figures"]) > 20
    for figure in seen["figures"]:
        assert figure["height"] > 100, figure
        assert figure["marks"] > 5, figure


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dataset": "letters"}, "the data set must be one of"),
        ({"data_dir": Path("/no/such/folder")}, "--data-dir must be a folder"),
        ({"epochs": 0}, "--epochs must be at least 1; got 0"),
        ({"seeds": 0}, "--seeds must lie in .* got 0"),
        ({"depth": 21}, "--depth must be 6k \\+ 2 with k at least 1; got 21"),
        ({"batch_size": 1}, "--batch-size must be at least 2; got 1"),
        ({"out": Path(__file__)}, "--out must be a folder that can be written"),
        ({"out": Path(__file__) / "below"}, "--out must be a folder that can be written"),
    ],
)
def test_bad_input_is_one_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        reproduce.main(**options)
    assert "\n" not in str(raised.value)


def test_bad_input_ends_with_status_2_and_touches_nothing(tmp_path):
    earlier = {tmp_path / "report" / name: name for name in ("index.html", "results.json")}
    (tmp_path / "report").mkdir()
    for path, text in earlier.items():
        path.write_text(text)
    finished = subprocess.run(
        command("--epochs", 0, "--out", tmp_path), capture_output=True, text=True
    )
    assert finished.returncode == 2
    assert finished.stderr == "error: --epochs must be at least 1; got 0\n"
    assert earlier == {path: path.read_text() for path in (tmp_path / "report").iterdir()}


def test_help_lists_the_options():
    shown = subprocess.run(command("--help"), capture_output=True, text=True, check=True).stdout
    for option in ("dataset", "data-dir", "epochs", "seeds", "batch-size", "depth", "out"):
        assert re.search(rf"--{option}\b", shown)


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_same_results(tmp_path, cache):
    options = ("--epochs", 4, "--seeds", 1, "--out")
    subprocess.run(command(*options, tmp_path / "whole"), env=cache, check=True)
    for seconds in np.random.default_rng().uniform(6, 25, 3):
        with subprocess.Popen(command(*options, tmp_path / "killed"), env=cache) as process:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
    subprocess.run(command(*options, tmp_path / "killed"), env=cache, check=True)
    whole, killed = (
        without_times(tmp_path / name / "report" / "results.json") for name in ("whole", "killed")
    )
    assert whole == killed


def test_what_is_printed_of_a_report(capsys):
    path = Path(reproduce.__file__).parents[1] / "docs/results/report/results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    reproduce.summarize(results)
    said = " ".join(capsys.readouterr().out.split())
    for name, arm in (("batch norm", "batch_norm"), ("unitized", "unitized")):
        accuracy = results["training"][arm]["accuracy"]
        mean, error = 100 * accuracy["mean"], 100 * accuracy["stderr"]
        assert f"{name}: test accuracy {mean:.2f} % (± {error:.2f})" in said
    for claim in results["claims"]:
        assert " ".join(f"{claim['name']}: {claim['verdict']}".split()) in said
    results["training"]["unitized"]["accuracy"]["stderr"] = None
    reproduce.summarize(results)
    assert f"{mean:.2f} % (one seed)" in capsys.readouterr().out
