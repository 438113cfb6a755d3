"""The page of moments and shift: its findings, panels, tables and sentences."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from experiments.pages import shift as shift_page
from experiments.pages.series import NORMALIZATIONS
from tests.support.drawn_panels import NBSP
from tests.support.made_up_results import SHIFT_EPOCHS as EPOCHS, made_up_shift


@pytest.fixture(scope="module")
def results():
    return made_up_shift()


GROUP = {"normalization": "unitized", "order": "ReLU first", "schedule": "drops"}


def exact_of(run, kind, what="exact"):
    layers = run["shift"][kind]
    return (np.array(layers["a"][what]) + np.array(layers["b"][what])) / 2


def runs_of(results, **where):
    return [r for r in results["runs"] if where.items() <= r.items()]


def only(records, **where):
    (record,) = (r for r in records if where.items() <= r.items())
    return record


@pytest.mark.parametrize("kind", shift_page.KINDS)
def test_a_drop_has_the_distance_of_three_epochs_over_that_of_the_three_before(results, kind):
    found = only(results["findings"]["drops"], kind=kind, epoch=5, **GROUP)["ratio"]
    exact = [exact_of(run, kind) for run in runs_of(results, **GROUP)]
    expected = [d[4:7].mean() / d[1:4].mean() for d in exact]
    np.testing.assert_allclose(found["values"], expected)
    np.testing.assert_allclose(found["stderr"], stats.sem(expected))


def test_a_floor_is_a_share_of_the_distance_once_the_network_has_settled(results):
    found = only(results["findings"]["floor"], kind="running", phase=[4, 8], **GROUP)["share"]
    runs = runs_of(results, **GROUP)
    floor, exact = (
        [exact_of(r, "running", w)[6:].mean() for r in runs] for w in ("floor", "exact")
    )
    np.testing.assert_allclose(found["values"], np.divide(floor, exact))


def test_shift_per_rate_is_of_the_whole_set(results):
    for phase, epochs, rate in (([0, 4], slice(2, 4), 0.1), ([4, 8], slice(6, 8), 0.02)):
        found = only(results["findings"]["per_rate"], phase=phase, **GROUP)["shift"]
        expected = [
            exact_of(r, "whole set")[epochs].mean() / rate for r in runs_of(results, **GROUP)
        ]
        np.testing.assert_allclose(found["values"], expected)
    # At a constant learning rate, the shift divided by the rate adds no information to the shift.
    assert {record["schedule"] for record in results["findings"]["per_rate"]} == {"drops"}


def test_movements_are_compared_by_paired_tests_that_count_each_other(results):
    records = results["findings"]["movement"]
    whole = [r for r in records if r["kind"] == "whole set"]
    for record in whole:
        pair = {
            norm: [
                np.mean(run["movement"]["whole set"][record["moment"]][EPOCHS // 4 :])
                for run in runs_of(
                    results, normalization=norm, order=record["order"], schedule=record["schedule"]
                )
            ]
            for norm in NORMALIZATIONS
        }
        expected: Any = stats.ttest_rel(pair["unitized"], pair["batch_norm"])
        np.testing.assert_allclose(record["p"], expected.pvalue, rtol=1e-6)
    p = np.sort([r["p"] for r in whole])
    holm = np.minimum(1, np.maximum.accumulate(p * np.arange(len(p), 0, -1)))
    np.testing.assert_allclose(np.sort([r["holm"] for r in whole]), holm, rtol=1e-5)
    assert len(whole) == 8
    assert not any("holm" in r for r in records if r["kind"] != "whole set")


def test_movements_stand_beside_those_with_frozen_weights(results):
    record = only(
        results["findings"]["movement"],
        kind="batch",
        moment="kurtosis",
        order=GROUP["order"],
        schedule=GROUP["schedule"],
    )
    expected = [np.mean(r["floor"]["batch"]["kurtosis"][2:]) for r in runs_of(results, **GROUP)]
    np.testing.assert_allclose(record["floor"]["unitized"]["values"], expected)
    shown = shift_page.value_with_error(float(np.mean(expected)), stats.sem(expected), digits=3)
    assert shown in shift_page.render(results)
    assert not any(
        "floor" in r for r in results["findings"]["movement"] if r["kind"] == "whole set"
    )


def test_accuracies_are_those_of_the_last_epoch(results):
    found = only(results["findings"]["accuracy"], **GROUP)["accuracy"]
    last = [run["accuracy"][-1] for run in runs_of(results, **GROUP)]
    np.testing.assert_allclose(found["values"], last)


def test_one_seed_has_no_test_and_no_standard_error():
    alone = made_up_shift(seeds=1)
    found = alone["findings"]
    assert all(record["p"] is None for record in found["movement"])
    assert all(record["ratio"]["stderr"] is None for record in found["drops"])
    said = list(shift_page.sentences(alone))
    assert not any("standard error" in sentence for sentence in said)
    assert any("(one seed: no test)" in sentence for sentence in said)
    assert "band is one standard error" not in shift_page.render(alone)


def test_panels_show_every_kind_of_statistics_and_its_floor(results, monkeypatch):
    axes = {}

    def panels(paint, titles, *, name, xlabel, size):
        for key in titles:
            axes[name, key] = Figure().add_subplot()
            paint(axes[name, key], key)
        return [f"{len(titles)} panels of {name}"]

    monkeypatch.setattr(shift_page, "panels", panels)
    text = shift_page.render(results)
    for count, name in ((8, "shift"), (4, "bounds"), (8, "moments")):
        assert f"{count} panels of {name}" in text
    panel = axes["shift", "unitized, ReLU first, drops"]
    shown = [
        np.asarray(line.get_ydata()) for line in panel.lines if len(line.get_xdata()) == EPOCHS
    ]
    runs = runs_of(results, **GROUP)
    expected = [
        np.mean([exact_of(run, kind, what) for run in runs], 0)
        for kind in shift_page.KINDS
        for what in ("exact", "floor")
        if (kind, what) != ("whole set", "floor")
    ]
    for values, line in zip(expected, shown, strict=True):
        np.testing.assert_allclose(line, values)
    dotted = [line for line in panel.lines if line.get_linestyle() == ":"]
    assert [set(line.get_xdata()) for line in dotted] == [{4.5}]
    moment = axes["moments", ("kurtosis", "unitized")]
    first = runs_of(results, normalization="unitized", seed=0)[0]["moments"]["kurtosis"]
    np.testing.assert_array_equal([line.get_ydata() for line in moment.lines[:8]], first)


def test_the_page_says_what_was_run_and_that_the_floor_is_noise(results):
    text = shift_page.render(results)
    assert "1,437 training images" in text
    assert "8 epochs and 3 seeds." in text
    assert "The data set has the note “A note.”" in text
    assert "for 360 test images" in text  # the data set has fewer images than the requested 400
    assert "the distance with frozen weights" in text
    assert ">nan" not in text
    assert text.count("<table") == 5
    # the summary is only about networks whose learning rate drops
    cards = shift_page._summary(results).split("<dl")[1].split("</dl>")[0]
    assert "rate with drops" in cards
    assert "constant rate" not in cards


def test_each_drop_has_a_row_of_its_own_ratios(results):
    earlier = results["findings"]["drops"]
    later = [d | {"epoch": 7, "ratio": d["ratio"] | {"mean": 3 + k}} for k, d in enumerate(earlier)]
    page = shift_page._shift(
        results | {"findings": results["findings"] | {"drops": [*earlier, *later]}}
    )
    table = page.split("<table")[1].split("</table>")[0]
    rows = {tuple(re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)) for row in table.split("<tr")}
    for drops, epoch in ((earlier, "5"), (later, "7")):
        of_groups = {row[0]: row[2:] for row in rows if row[1:2] == (epoch,)}
        for kind, place in zip(shift_page.KINDS, itertools.count()):
            for drop in (d for d in drops if d["kind"] == kind):
                shown = of_groups[shift_page._group(drop)][place]
                assert shown == shift_page._measured(drop["ratio"])


def test_a_sentence_of_each_drop_is_of_the_whole_set_and_rates_are_those_of_phases(results):
    drops = [line for line in shift_page.sentences(results) if "distance between epochs" in line]
    whole = [d for d in results["findings"]["drops"] if d["kind"] == "whole set"]
    assert [shift_page._measured(d["ratio"]) in line for d, line in zip(whole, drops, strict=True)]
    rates = [0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.004, 0.002]
    page = shift_page._rate(results | {"learning_rate": rates})
    phases = dict.fromkeys(tuple(r["phase"]) for r in results["findings"]["per_rate"])
    shown = re.findall(r"rate ([0-9.]+)", page.split("<table")[1].split("</tr>")[0])
    assert list(map(float, shown)) == [rates[first] for first, _ in phases]


def test_the_page_counts_the_significant_changes_of_moments(results):
    """Only tests with Holm's correction count, and only at the 5 % level."""
    known = [(0.04, 2.0), (0.049, -1.0), (0.01, 0.5), (0.06, -3.0)]
    records = [{"holm": p, "difference": {"mean": mean}} for p, mean in known]
    records.append({"difference": {"mean": -4.0}})
    found = results["findings"] | {"movement": records}
    *_, said = shift_page._done(results | {"findings": found})
    assert "significantly larger in 2 of 4 comparisons and significantly smaller in 1 (" in said
    assert "Holm's correction for 4 tests" in said
    alone = made_up_shift(seeds=1)
    assert not any("significantly" in sentence for sentence in shift_page._done(alone))


def test_the_factors_of_drops_are_those_of_the_whole_set_and_of_dropping_rates(results):
    whole = {"kind": "whole set", "order": "ReLU first", "schedule": "drops"}
    drops = [
        whole | {"ratio": {"mean": 0.5, "stderr": 0.125}},
        whole | {"ratio": {"mean": 0.25, "stderr": 0.0625}},
        whole | {"ratio": {"mean": 0.4, "stderr": 0.01}},
        whole | {"kind": "batch", "ratio": {"mean": 9.0, "stderr": 0.01}},
        whole | {"schedule": "constant", "ratio": {"mean": 0.1, "stderr": 0.01}},
    ]
    found = results["findings"] | {"drops": drops}
    _, said, _ = shift_page._done(results | {"findings": found})
    assert "is between 0.250 ± 0.062 and 0.50 ± 0.12 times" in said.replace(NBSP, " ")
