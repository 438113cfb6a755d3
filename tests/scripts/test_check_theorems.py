"""The command that checks the claims: its output, its errors and how it resumes."""

import io
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import check_theorems
from claims import ALL, PAPERS
from experiments.cli import InputError
from experiments.measures import claims as claim_measures
from experiments.pages import mathematics, theorem_plots
from experiments.pages.theorem_cards import anchor
from geometry import claims

SCRIPT = Path(check_theorems.__file__)
CURVE = theorem_plots.Figure(lambda: {"n": [1.0], "true": [2.0]}, "", "")
GAMMA, FACTS = "Definition 1, example", "Facts 1 and 2"


@pytest.fixture
def few(monkeypatch):
    """Replace all claims by two: one whose number is computed, and one whose number is sampled."""
    chosen = tuple(claim for claim in ALL if claim.name in (GAMMA, FACTS))
    assert len(chosen) == 2
    monkeypatch.setattr(claim_measures, "ALL", chosen)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.environ["JAX_COMPILATION_CACHE_DIR"])
    monkeypatch.setattr("claims.ALL", chosen)
    monkeypatch.setattr(theorem_plots, "FIGURES", {"none": CURVE})  # no finding shows this figure
    return chosen


def results_in(folder):
    results = json.loads((folder / "results.json").read_text())
    return {name: results[name] for name in results if name not in ("seconds", "date", "command")}


def test_a_run_writes_a_page_and_the_same_numbers_again(few, tmp_path, capsys):
    check_theorems.main(precision=2.0, out=tmp_path / "a")
    printed = capsys.readouterr().out
    assert GAMMA in printed
    assert mathematics.plain(few[0].statement) in " ".join(printed.split())
    assert "not as recorded" not in printed
    page = (tmp_path / "a" / "index.html").read_text()
    for claim in few:
        assert f'id="{anchor(claim.paper, claim.name)}"' in page
        assert claim.name in page
    assert "bn_decomposed/cells.py" in page
    assert str(tmp_path) not in page
    results = results_in(tmp_path / "a")
    assert [claim["as_recorded"] for claim in results["claims"]] == [True, True]
    (tmp_path / "a" / "measured.json").unlink()
    check_theorems.main(precision=2.0, out=tmp_path / "a")
    assert results_in(tmp_path / "a") == results


def test_a_run_resumes_from_what_was_measured(few, tmp_path, monkeypatch):
    check_theorems.main(precision=2.0, out=tmp_path)
    results = results_in(tmp_path)

    def refuse(what, *_):
        raise AssertionError(what)

    monkeypatch.setattr("geometry.claims._decide._measure", refuse)
    check_theorems.main(precision=2.0, out=tmp_path)
    assert results_in(tmp_path) == results
    with pytest.raises(AssertionError):  # another seed measures the claims again
        check_theorems.main(precision=2.0, seed=1, out=tmp_path)


def test_outcomes_that_are_not_recorded_end_with_status_1(few, tmp_path, monkeypatch, capsys):
    gamma = next(claim for claim in few if claim.name == GAMMA)
    wrong = replace(gamma, checks=(replace(gamma.checks[1], predicted=0.11),))
    other = replace(wrong, name="Definition 2")
    monkeypatch.setattr(claim_measures, "ALL", (wrong, *few, other))
    with pytest.raises(SystemExit) as stopped:
        check_theorems.main(precision=2.0, out=tmp_path)
    assert stopped.value.code == 1
    expected = f"not as recorded: {gamma.paper}, {GAMMA}; {gamma.paper}, Definition 2"
    assert capsys.readouterr().err.strip().endswith(expected)
    found = [claim["as_recorded"] for claim in results_in(tmp_path)["claims"]]
    assert found == [False, True, True, False]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"claim": "Theorem 99"},
            r"--claim must name .* as Theorem 1; Theorem .*; --list shows all names$",
        ),
        ({"paper": "other"}, "--paper must be one of unitization, cwda, bn-decomposed, jaxnorm; g"),
        ({"precision": 0.0}, r"--precision must lie in \(0, 2\]; got 0.0"),
        ({"precision": float("nan")}, r"--precision must lie in \(0, 2\]; got nan"),
        ({"precision": 2.5}, r"--precision must lie in \(0, 2\]; got 2.5"),
        ({"devices": 0}, "--devices must be at least 1; got 0"),
        ({"devices": 9}, "--devices must be at most 8, the number of available devices; got 9"),
        ({"out": SCRIPT}, "--out must be a folder that can be written"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(options, sentence, tmp_path):
    # JAX already uses these devices, so the CPU can no longer be split into 9 devices.
    assert len(jax.devices()) == 8
    with pytest.raises(InputError, match=sentence):
        check_theorems.main(**({"out": tmp_path} | options))
    assert claim_measures.first_devices(3) == jax.devices()[:3]


def full_disk(*_, **__):
    raise OSError(28, "No space left on device")


def test_half_the_precision_takes_a_quarter_of_the_draws(few, tmp_path):
    draws = []
    for precision in (1.0, 2.0):
        check_theorems.main(precision=precision, claim=GAMMA, out=tmp_path)
        (claim,) = results_in(tmp_path)["claims"]
        draws.append(max(check["draws"] or 0 for check in claim["checks"]))
    assert draws[0] == 4 * draws[1]


@pytest.mark.parametrize("broken", ["file", "page"])
def test_a_full_disk_loses_nothing_that_was_measured(few, tmp_path, monkeypatch, broken, capsys):
    check_theorems.main(precision=2.0, claim=FACTS, out=tmp_path)
    assert results_in(tmp_path)["curves"] == {}  # figures are computed only for a run of all claims
    before = (tmp_path / "results.json").read_bytes()
    if broken == "page":
        monkeypatch.setattr("experiments.pages.page.write", full_disk)
    else:
        monkeypatch.setattr("experiments.files.write", full_disk)
    with pytest.raises(InputError, match="the results; No space left on device: "):
        check_theorems.main(precision=2.0, out=tmp_path)
    assert (tmp_path / "results.json").read_bytes() == before
    measured = json.loads((tmp_path / "measured.json").read_text())["measured"]
    assert "Unitization, Facts 1 and 2: dual with the other sign, and pinned" in measured
    if broken == "page":
        assert "gaussian_rows" in measured
        assert GAMMA in capsys.readouterr().out


def test_claims_are_selected_by_name_and_paper():
    selected = claim_measures.select("cwda", "equations 29")
    assert [claim.name for claim in selected] == ["Lemma 3, Equations 29 and 33"]
    assert len(claim_measures.select("cwda", None)) == len(PAPERS["cwda"])
    assert claim_measures.select(None, None) == ALL


def test_a_number_means_the_object_of_all_papers(capsys):
    check_theorems.main(claim="Theorem 1", list_only=True)
    listed = capsys.readouterr().out
    assert [claim.name for claim in claim_measures.select(None, "Theorem 1")] == [
        claim.name for claim in ALL if "Theorem 1" in claims.objects(claim)
    ]
    assert "Theorem 11" not in listed
    assert "unitization" in listed
    assert "cwda" in listed


def test_list_names_every_claim_with_its_standing_and_checks_nothing(monkeypatch, capsys):
    monkeypatch.setattr(claim_measures, "measure", None)
    monkeypatch.setenv("COLUMNS", "300")
    check_theorems.main(list_only=True)
    lines = capsys.readouterr().out
    for claim in ALL:
        assert re.search(rf"{re.escape(claim.name)} .*{re.escape(claim.standing)}", lines)


def test_options_are_kept_and_errata_are_written_where_they_are_asked_for(
    few, tmp_path, monkeypatch, capsys
):
    out, errata = tmp_path / "out", tmp_path / "errata.md"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    option = "jax_compilation_cache_dir"
    kept = getattr(jax.config, option)
    check_theorems.main(precision=2.0, seed=3, devices=2, out=out, errata=errata)
    used = getattr(jax.config, option)
    jax.config.update(option, kept)
    assert used == str(out / "compiled")
    text = errata.read_text()
    assert GAMMA in text
    assert "**Correct:**" in text
    results = results_in(out)
    assert (results["seed"], results["precision"], results["devices"]) == (3, 2.0, 2)
    assert results["level"] == claims.LEVEL
    assert results["curves"] == {"none": {"n": [1.0], "true": [2.0]}}
    assert f"Open {out / 'index.html'}" in capsys.readouterr().out.replace("\n", "")


PROCESS = """
import sys, json, jax
jax.config.update("jax_enable_x64", True)
rank, port = int(sys.argv[1]), sys.argv[2]
if port != "0":
    jax.distributed.initialize(f"localhost:{port}", 2, rank)
from claims import ALL
from geometry import claims
names = ("Definition 1, example", "Theorem 14, item 1")
chosen = [claim for claim in ALL if claim.name in names]
measured = claims.measure(chosen, jax.random.key(3), precision=2.0)
print(json.dumps([len(jax.devices()), {name: part._asdict() for name, part in measured.items()}]))
"""


def run_process(rank, port):
    scripts = str(Path(check_theorems.__file__).parent)
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    environment |= {"PYTHONPATH": scripts}
    command = [sys.executable, "-c", PROCESS, str(rank), str(port)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_two_processes_find_what_one_does():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    alone = run_process(0, 0)
    pair = [run_process(rank, port) for rank in (0, 1)]
    outputs = []
    for process in (alone, *pair):
        text, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        outputs.append(json.loads(text.splitlines()[-1]))
    assert [devices for devices, _ in outputs] == [1, 2, 2]
    for name, one in outputs[0][1].items():
        for _, both in outputs[1:]:
            np.testing.assert_allclose(jax.tree.leaves(both[name]), jax.tree.leaves(one), rtol=2e-6)


@pytest.mark.slow
def test_the_engine_finds_the_same_over_devices_in_float64(key):
    part = next(claim for claim in ALL if claim.name == GAMMA)
    one, many = (
        claims.measure([part], key, precision=2.0, devices=jax.devices()[:n])["gaussian_rows"]
        for n in (1, 8)
    )
    np.testing.assert_allclose(jax.tree.leaves(one.mean), jax.tree.leaves(many.mean), rtol=2e-6)


def test_the_draws_of_the_quick_claims_exist_and_each_serves_one():
    read = {
        part.function.__name__
        for claim in claim_measures.quick_claims()
        if claim.name not in claim_measures.COMPUTED
        for part in claim.checks
    }
    assert read == claim_measures.QUICK


def rendered(thing, width=200):
    file = io.StringIO()
    Console(width=width, file=file, force_terminal=False).print(thing)
    text = file.getvalue().replace("\xa0", " ")
    return [line.rstrip() for line in text.splitlines()]


def made_up_claim(**changes):
    check = {
        "what": "the mean of $x$",
        "form": "printed",
        "as_recorded": True,
        "side": "≤",
        "estimate": 1.5,
        "stderr": 0.25,
        "draws": 1000,
        "prediction": 2.0,
        "tolerance": 0.0,
        "z": -2.0,
    }
    result = {"ours": "0.91 at $n$", "printed": "0.93", "page": "p. 7"}
    return {
        "paper": "A paper",
        "name": "Theorem 3",
        "verdict": "true",
        "statement": "It is $x$.",
        "reason": "Nothing to draw.",
        "checks": [check, check | {"form": "rejected", "as_recorded": False}],
        "results": [result],
    } | changes


@pytest.mark.parametrize(("against", "expected"), [(None, 2.2), (0.0, 0.0), (3.0, 3.0)])
def test_a_check_is_recorded_with_the_number_that_it_should_reject(against, expected):
    check = next(claim for claim in ALL if claim.name == GAMMA).checks[0]
    found = claim_measures._bounds(replace(check, against=against), 2.0)
    assert found["against"] == pytest.approx(expected)


@pytest.mark.parametrize("printed", [None, False, True])
@pytest.mark.parametrize("corrected", [None, False, True])
def test_what_holds_of_both_forms_is_recorded(printed, corrected):
    claim = next(claim for claim in ALL if claim.name == GAMMA)
    found = claim_measures.result(
        claims.Verdict(claim, (), printed, corrected, True, "the verdict")
    )
    assert (found["printed_holds"], found["corrected_holds"]) == (printed, corrected)
    assert (found["as_recorded"], found["verdict"]) == (True, "the verdict")


def test_a_claim_is_reported_with_a_line_for_each_check_and_each_result():
    title, statement, passed, failed, trained = rendered(check_theorems.report(made_up_claim()))
    assert title == "A paper, Theorem 3: true"
    assert statement == "  It is x."
    found = "1.50 ± 0.25 in 1,000 draws; predicted at most 2, 2.0 standard errors away"
    assert passed.split(maxsplit=1) == ["✓", f"the mean of x: {found}"]
    assert failed.startswith(
        "  ✗ not as recorded  the mean of x (printed form, which must fail): 1.5"
    )
    assert trained.split(maxsplit=1) == ["–", "ours: 0.91 at n; the paper: 0.93 (p. 7)"]


def test_on_a_narrow_screen_a_mark_stays_on_its_line():
    lines = rendered(check_theorems.report(made_up_claim()), width=24)
    assert sum(line.startswith("  ✗ not as recorded") for line in lines) == 1


def test_a_claim_without_checks_is_reported_with_its_reason():
    lines = rendered(check_theorems.report(made_up_claim(checks=[], results=[])))
    assert [line.split() for line in lines[2:]] == [["–", "Nothing", "to", "draw."]]


def test_the_list_has_a_row_of_each_claim_by_the_name_of_its_paper():
    chosen = [PAPERS["cwda"][0], PAPERS["unitization"][-1]]
    table = claim_measures.listing(chosen)
    columns = [list(column.cells) for column in table.columns]
    assert [column.header for column in table.columns] == ["paper", "claim", "recorded"]
    assert columns == [
        ["cwda", "unitization"],
        [claim.name for claim in chosen],
        [claim.standing for claim in chosen],
    ]


def test_a_list_writes_no_errata(tmp_path):
    with pytest.raises(InputError, match=r"^--list writes no errata: omit --list or --errata$"):
        check_theorems.main(list_only=True, errata=tmp_path / "errata.md")
