"""The page of moments and shift: what its panels, its table and its sentences show."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from experiments.pages import page
from experiments.pages import shift as shift_page
from experiments.pages.plots import MUTED
from experiments.pages.sentences import measured
from experiments.pages.series import MOMENTS, NORMALIZATIONS

EPOCHS, SEEDS = 8, 3
RATES = [0.1, 0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02]  # falls before epoch 5


def made_up(seeds=SEEDS):
    rng = np.random.default_rng(0)

    def layer():
        exact = rng.uniform(2, 3)
        return {"exact": exact, "lower": exact / 2, "upper": 2 * exact, "baseline": exact / 4}

    def line(epoch):
        return {
            "accuracy": 0.5 + epoch / 100 + rng.uniform(0, 0.01),
            "moments": {name: rng.normal(i, 1, 8).tolist() for i, name in enumerate(MOMENTS)},
            "shift": {"a": layer(), "b": layer()},
            "tracker_seconds": 10.0 * epoch,
        }

    results: dict[str, Any] = {
        "command": "python scripts/covariate_shift.py",
        "date": "2026-11-23T10:00:00",
        "environment": {"device": "TPU v5e", "jax": "0.10.2"},
        "settings": {"dataset": "digits", "epochs": EPOCHS, "seeds": seeds, "exact": 400},
        "data": {"name": "digits", "train": 1437, "probe": 360, "note": "A note."},
        "seconds": 125.0,
        "learning_rate": {"drops": RATES, "constant": EPOCHS * [0.1]},
        "runs": {
            norm: {s: [[line(e) for e in range(EPOCHS)] for _ in range(seeds)] for s in SCHEDULES}
            for norm in NORMALIZATIONS
        },
    }
    results["findings"] = page.plain(shift_page.findings(results))
    return results


SCHEDULES = ("drops", "constant")


@pytest.fixture(scope="module")
def results():
    return made_up()


@pytest.fixture
def drawn(results, monkeypatch):
    """The axes of every panel by its title, and the page without them."""
    axes = {}

    def panels(paint, titles, *, name, xlabel, size):
        assert xlabel == "epoch"
        assert size[0] > size[1]
        for key, title in titles.items():
            axes[title] = Figure().add_subplot()
            paint(axes[title], key)
        return [f"{len(titles)} panels of {name}"]

    monkeypatch.setattr(shift_page, "panels", panels)
    return axes, shift_page.render(results)


def of_layers(results, norm, schedule, what):
    """Of every seed and epoch, the mean over layers."""
    runs = results["runs"][norm][schedule]
    return np.array(
        [[(e["shift"]["a"][what] + e["shift"]["b"][what]) / 2 for e in run] for run in runs]
    )


def lines(axes):
    return [line for line in axes.lines if line.get_linestyle() != ":"]


def marks_the_drop(axes):
    """A dotted line before epoch 5, with the factor of the rate."""
    (dotted,) = (line for line in axes.lines if line.get_linestyle() == ":")
    return set(dotted.get_xdata()) == {4.5} and [t.get_text() for t in axes.texts] == ["÷5"]


def test_moments_are_eight_lines_on_one_scale_for_both(drawn, results):
    axes, _ = drawn
    for name, label in MOMENTS.items():
        both = [
            [e["moments"][name] for e in results["runs"][norm]["drops"][0]]
            for norm in NORMALIZATIONS
        ]
        margin = 0.05 * np.ptp(both)
        for values, series in zip(both, NORMALIZATIONS.values(), strict=True):
            panel = axes[f"{label}, {series.label}"]
            assert len(lines(panel)) == 8
            for unit, line in zip(np.transpose(values), lines(panel), strict=True):
                np.testing.assert_array_equal(line.get_xdata(), np.arange(1, EPOCHS + 1))
                np.testing.assert_array_equal(line.get_ydata(), unit)
            expected = np.min(both) - margin, np.max(both) + margin
            np.testing.assert_allclose(panel.get_ylim(), expected)
            assert marks_the_drop(panel)
    styles = {(unit.colour, unit.marker, unit.filled) for unit in shift_page.UNITS}
    assert len(styles) == len(shift_page.UNITS) == 8
    assert [unit.label for unit in shift_page.UNITS] == [f"unit {i}" for i in range(1, 9)]


def test_distances_and_accuracies_are_means_over_seeds(drawn, results):
    axes, _ = drawn
    for schedule, rate in (("drops", "rate with drops"), ("constant", "constant rate")):
        distance = axes[f"distance, outputs' unit; {rate}"]
        accuracy = axes[f"test accuracy, %; {rate}"]
        assert distance.get_yscale() == "log"
        assert accuracy.get_yscale() == "linear"
        for i, norm in enumerate(NORMALIZATIONS):
            runs = results["runs"][norm][schedule]
            shown = of_layers(results, norm, schedule, "exact")
            percent = 100 * np.array([[e["accuracy"] for e in run] for run in runs])
            for panel, values in ((distance, shown), (accuracy, percent)):
                line = lines(panel)[i]
                np.testing.assert_array_equal(line.get_xdata(), np.arange(1, EPOCHS + 1))
                np.testing.assert_allclose(line.get_ydata(), values.mean(0))
                assert to_hex(line.get_color()) == NORMALIZATIONS[norm].colour
        for panel in (distance, accuracy):
            if schedule == "drops":
                assert marks_the_drop(panel)
            else:
                assert len(panel.lines) == 2


def test_bounds_are_a_band_about_the_distance_and_a_dashed_base(drawn, results):
    axes, _ = drawn
    for norm, series in NORMALIZATIONS.items():
        panel = axes[f"distance, outputs' unit; {series.label}"]
        low, high, base, exact = (
            of_layers(results, norm, "drops", what).mean(0)
            for what in ("lower", "upper", "baseline", "exact")
        )
        (band,) = panel.collections
        corners = {tuple(np.round(point, 9)) for point in band.get_paths()[0].vertices}
        epochs = np.arange(1, EPOCHS + 1)
        for edge in (low, high):
            assert {tuple(np.round(p, 9)) for p in zip(epochs, edge, strict=True)} <= corners
        dashed, line = lines(panel)
        np.testing.assert_allclose(dashed.get_ydata(), base)
        np.testing.assert_allclose(line.get_ydata(), exact)
        for drawn_line in (dashed, line):
            np.testing.assert_array_equal(drawn_line.get_xdata(), epochs)
        assert (to_hex(dashed.get_color()), to_hex(line.get_color())) == (MUTED, series.colour)
        assert dashed.is_dashed()
        assert panel.get_yscale() == "log"
        assert marks_the_drop(panel)


def over_seeds(values):
    stderr = np.std(values, ddof=1) / len(values) ** 0.5
    return measured(np.mean(values), stderr, digits=3)


def test_the_table_and_the_sentences_have_the_ratio_about_each_drop(drawn, results):
    _, text = drawn
    cells = re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", text[text.index("3 epochs after") :])
    found = {}
    for norm in NORMALIZATIONS:
        for schedule in SCHEDULES:
            exact = of_layers(results, norm, schedule, "exact")
            # Three epochs from the fifth on, over the three before it.
            found[norm, schedule] = over_seeds(exact[:, 4:7].mean(1) / exact[:, 1:4].mean(1))
    labels = [f"{series.label}, {s}" for series in NORMALIZATIONS.values() for s in SCHEDULES]
    assert cells[: 2 * 5] == ["drop before epoch", *labels, "5", *found.values()]
    sentence = (
        "When the rate falls before epoch 5, the exact distance is multiplied by: batch norm "
        f"{found['batch_norm', 'drops']} (at a constant rate {found['batch_norm', 'constant']}); "
        f"unitized batch norm {found['unitized', 'drops']} "
        f"(at a constant rate {found['unitized', 'constant']})."
    )
    assert sentence in list(shift_page.sentences(results))


def test_moments_are_said_to_move_by_what_they_change_from_epoch_to_epoch(drawn, results):
    _, text = drawn
    assert results["findings"]["settled"] == EPOCHS // 4
    said = list(shift_page.sentences(results))
    assert said[-1] == "± is one standard error over 3 seeds."
    for moment, sentence in zip(("skewness", "kurtosis"), said, strict=False):
        movement = {}
        for norm in NORMALIZATIONS:
            runs = results["runs"][norm]["drops"]
            values = np.array([[e["moments"][moment] for e in run[2:]] for run in runs])
            movement[norm] = np.abs(np.diff(values, axis=1)).mean((1, 2))
        for norm in NORMALIZATIONS:
            values = movement[norm]
            text_of = measured(values.mean(), values.std(ddof=1) / SEEDS**0.5)
            assert f"by {text_of}" in sentence
        difference = over_seeds(movement["unitized"] - movement["batch_norm"])
        assert f"Movement of {moment}" in text
        assert difference in text
        assert sentence.startswith(f"{moment.capitalize()} of the 8 units moves by ")
        assert "after epoch 2;" in sentence
        assert sentence in text


def test_the_page_says_what_was_run(drawn, results):
    _, text = drawn
    assert "<h1>Moments and covariate shift through training on digits</h1>" in text
    assert "2026-11-23 10:00:00" in text
    assert "1,437 training images" in text
    assert "this run 8, 3 seeds. A note." in text
    assert "for 360 test images" in text  # fewer than the 400 that are asked for
    assert "the tracker took 1 min 10 s of a network" in text  # at the end of the last epoch
    assert "2 min 5 s" in text
    assert "TPU v5e, since the last start" in text
    assert "<p>The paper reads a fall of the distance, " in text
    assert "the band is one standard error over 3 seeds." in text
    for norm, series in NORMALIZATIONS.items():
        last = [100 * run[-1]["accuracy"] for run in results["runs"][norm]["drops"]]
        stderr = np.std(last, ddof=1) / SEEDS**0.5
        assert f"{np.mean(last):.2f} ± {stderr:.2f} %" in text.replace("\xa0", " ")
        assert series.label.capitalize() in text
    for count, name in ((8, "moments"), (4, "shift"), (2, "bounds")):
        assert f"{count} panels of {name}" in text
    for heading in ("(Figure 2)", "(Figure 3)", "How it was made"):
        assert heading in text


def test_one_seed_has_no_band_and_no_standard_error():
    alone = made_up(seeds=1)
    assert shift_page._band(alone) == "."
    assert not any("standard error over" in sentence for sentence in shift_page.sentences(alone))
    found = shift_page.findings(alone)
    assert found["accuracy"]["unitized"]["drops"]["stderr"] is None
    assert not [leaf for leaf in jax.tree.leaves(found) if np.isnan(leaf).any()]


def test_drops_near_the_ends_of_a_run_have_fewer_epochs(results):
    rates = [0.1, 0.02, *6 * [0.02]]
    early = results | {"learning_rate": {"drops": rates, "constant": EPOCHS * [0.1]}}
    found = shift_page.findings(early)["drops"]
    assert found.keys() == {"2"}
    exact = of_layers(results, "unitized", "drops", "exact")
    expected = (exact[:, 1:4].mean(1) / exact[:, 0]).mean()
    np.testing.assert_allclose(found["2"]["unitized"]["drops"]["mean"], expected)
