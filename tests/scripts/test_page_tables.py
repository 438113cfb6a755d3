"""Tables, sentences and curves of the pages of experiments, from made-up numbers."""

import re
from typing import Any

import numpy as np
import pytest

from experiments.measures.analysis import PAIRS, TESTS
from experiments.measures.filter_tests import SIZES
from experiments.measures.networks import mean as over_seeds
from experiments.pages import (
    atlas as atlas_page,
    filter_models as models_page,
    filter_settings as settings_page,
    geometry as geometry_page,
    geometry_plots,
    language as language_page,
    page,
    reproduce_criteria as criteria_page,
    reproduce_training as training_page,
)
from tests.support.drawn_panels import NBSP, cells_of, ends_of, record_panels, x_of, y_of


@pytest.fixture
def drawn(monkeypatch):
    """The axes of all panels, by the key of the panel."""
    return record_panels(
        monkeypatch,
        *(atlas_page, models_page, settings_page, geometry_plots, criteria_page, training_page),
    )


def atlas_row(**values):
    names = ("accuracy", "test_loss", "first_epoch_loss", "epoch_shift", "step_shift", "floor")
    row: dict[str, Any] = {
        name: {"mean": i + 0.5, "stderr": (i + 1) / 100} for i, name in enumerate(names)
    }
    row["moment_bound"] = {"mean": 2.25, "stderr": None}
    return row | {"certificate": {"mean": None, "stderr": None}} | values


def test_titles_and_cells_of_a_table_are_escaped():
    text = page.table(["name", "a < b"], [["x & y", "1 > 0"]], "c")
    assert '<th scope="row">x &amp; y</th><td data-label="a &lt; b">1 &gt; 0</td>' in text
    text = page.table(["name"], [["x"], ["y"]], "c", row_kinds=["late"])  # row 2 has no kind
    assert re.findall(r'<tr class="(.*?)"><th scope="row">(.)', text) == [("late", "x"), ("", "y")]


def test_only_the_summary_and_bodies_of_a_page_are_html():
    attack = '<b id="x">&'
    results = {"date": "2026-01-02T03:04", "command": f"c{attack}", "environment": {"n": attack}}
    text = page.render(
        results,
        title=f"title{attack}",
        about=f"about{attack}",
        heading=f"heading{attack}",
        summary="<p>summary</p>",
        sections=[("one", f"first{attack}", "<i>1</i>"), ("two", "second", "<i>2</i>")],
        made=page.provenance(results, {"m": attack}),
    )
    escaped = "&lt;b id=&quot;x&quot;&gt;&amp;"
    assert attack not in text
    assert f"<title>title{escaped}</title>" in text
    assert f">jaxnorm · about{escaped} · 2026-01-02 03:04</" in text
    assert f">heading{escaped}</" in text
    assert "<p>summary</p>" in text
    assert f'<a href="#one">first{escaped}</a><a href="#two">second</a><a href="#made">' in text
    assert (
        f'<section id="one"><h2>first{escaped}</h2><i>1</i></section>'
        '<section id="two"><h2>second</h2><i>2</i></section>'
        f'<section id="made"><h2>How it was made</h2><p>Command: <code>c{escaped}</code></p>'
    ) in text
    for name in ("m", "n"):
        assert f'<th scope="row">{name}</th><td data-label="Value">{escaped}</td>' in text
    assert "&lt;b" not in page.details("t", "<b>body</b>")
    assert f"<summary>t{escaped}</summary>" in page.details(f"t{attack}", "")
    figure = page.figure(["<svg></svg>"], f"c{attack}")
    assert f"<svg></svg></div><figcaption>c{escaped}</figcaption>" in figure
    cards = page.cards([tuple(f"{part}{attack}" for part in "nvo")])  # pyright: ignore[reportArgumentType]
    assert cards.count(escaped) == 3
    assert page.paragraphs(attack, "y") == f"<p>{escaped}</p><p>y</p>"


def test_a_row_of_the_atlas_has_its_numbers_and_errors_in_one_unit():
    rows = [
        atlas_row(task="t", normalizer="a", accuracy={"mean": 0.5, "stderr": 0.012}),
        atlas_row(task="u", normalizer="b"),
        atlas_row(task="t", normalizer="c", accuracy={"mean": 0.875, "stderr": None}),
    ]
    found = atlas_page.tables({"findings": {"rows": rows}})
    assert {task: [row[0] for row in rows] for task, rows in found.items()} == {
        "t": ["a", "c"],
        "u": ["b"],
    }
    assert found["t"][0][1:] == [
        "50.0 ± 1.2",
        "1.500 ± 0.020",
        "2.500 ± 0.030",
        "3.500 ± 0.040",
        "4.500 ± 0.050",
        "5.500 ± 0.060",
        "2.2",
        "–",
    ]
    assert found["t"][1][1] == "87.5"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.9, "networks with less shift tend to have a lower loss"),
        (-0.9, -0.01, "networks with less shift tend to have a higher loss"),
        (-0.01, 0.9, "the sign is uncertain"),
    ],
)
def test_a_direction_is_certain_if_its_interval_has_no_zero(low, high, said):
    assert atlas_page.verdict({"low": low, "high": high}) == said
    shown = atlas_page.with_interval({"correlation": (low + high) / 2, "low": low, "high": high})
    assert shown == f"{(low + high) / 2:+.2f} [{low:+.2f}, {high:+.2f}]"


def test_traffic_has_a_column_for_each_chip_and_shape():
    def row(normalizer, shape, traffic):
        return {"normalizer": normalizer, "shape": shape, "traffic": traffic}

    first = [
        row("a", [8, 4], 5.04),
        row("b", [8, 4], 6.0),
        row("a", [2, 3, 4], 7.25),
        row("b", [2, 3, 4], 8.0),
    ]
    targets = {"v5e": first, "h100": [row("b", [8, 4], 2.0), row("a", [8, 4], 1.0)]}
    head, rows = atlas_page.traffic_rows({"targets": targets})
    assert [column.split(", ")[-1] for column in head] == ["normalizer", "8×4", "2×3×4", "8×4"]
    assert rows == [["a", "5.0 n", "7.2 n", "1.0 n"], ["b", "6.0 n", "8.0 n", "2.0 n"]]


def test_points_of_the_atlas_are_the_shift_and_the_last_loss_of_their_task(drawn):
    def run(task, normalizer, shift, loss):
        layer = {"spread": 2.0, "epoch": 2 * shift, "step": 9.0}
        lines = [{"layers": {"a": layer}, "test_loss": value} for value in (50.0, loss)]
        return {"task": task, "normalizer": normalizer, "epochs": lines}

    runs = [run("t", "DyT", 0.5, 3.0), run("u", "DyT", 0.25, 1.0), run("t", "Derf", 4.0, 2.0)]
    atlas_page.figure({"runs": runs})
    places = {
        task: [(x_of(line)[0], y_of(line)[0]) for line in axes.get_lines()]
        for task, axes in drawn.items()
    }
    np.testing.assert_allclose(places["t"], [(0.5, 3.0), (4.0, 2.0)])
    np.testing.assert_allclose(places["u"], [(0.25, 1.0)])


def test_predictions_of_filters_have_their_intervals_and_percents(drawn):
    def part(value):
        return {"spearman": value, "interval": [value - 0.0625, value + 0.03125]}

    models = {name: part(0.25 + i / 8) for i, name in enumerate(models_page.MODELS)}
    layer = {"filters": 16, "dims": 27, "shape": 1.234, "spread": 0.5, "effective_dims": 12.6}
    layers = {"a": layer | {"measured": part(0.5), "predicted": models}}
    (_, row) = cells_of(models_page._layers(layers))
    assert row[:6] == ["a", "16", "27", "1.23", "0.50", "13"]
    assert row[6] == "0.500 (0.438 to 0.531)"
    assert [cell.split()[0] for cell in row[7:]] == ["0.250", "0.375", "0.500", "0.625"]
    block = {
        "networks": 3,
        "points": {"l1-l2": 1.25, "l1-gm": 0.5},
        "correlation": -0.3,
        "explained": 0.09,
        "by_pair": 0.254,
        "p_value": 0.0416,
    }
    (_, row) = cells_of(models_page._accuracies({"Table_4:fine-tuned": block}))
    assert row == [
        "Table 4, fine-tuned",
        "3",
        "l1-l2 1.25, l1-gm 0.50",
        "-0.30",
        "9%",
        "25%",
        "0.042",
    ]
    models_page._figure({"net": {"layers": layers}})
    *shown, diagonal = drawn["net"].get_lines()
    assert [(x_of(line)[0], y_of(line)[0]) for line in shown] == [
        (0.25, 0.5),
        (0.375, 0.5),
        (0.5, 0.5),
    ]
    np.testing.assert_array_equal(x_of(diagonal), y_of(diagonal))
    np.testing.assert_allclose(x_of(diagonal), [0.49, 1])


def test_models_of_filters_are_compared_by_their_errors_and_counts():
    errors = {"gaussian": 0.1, "two": 0.04, "three": 0.03, "logs": 0.02}
    models = {
        name: {"error": error, "stderr": error / 10, "within": i, "layers": 4}
        for i, (name, error) in enumerate(errors.items())
    }
    rows = ((0.3, 0.001), (0.01, 0.2), (0.62, 0.04))
    results = {
        "networks": {"net": {"layers": dict.fromkeys("abcd"), "models": models}},
        "accuracies": {i: {"explained": share, "p_value": p} for i, (share, p) in enumerate(rows)},
    }
    first, second = models_page.findings(results)
    numbers = re.findall(r"\d\.\d+|(?<=over )\d", first)
    assert numbers == ["4", "0.100", "0.040", "0.030", "0.020"]
    assert "explains 1% to 62% of the variance" in second
    assert "significant in 2 of 3 sets of networks (permutation tests at 5%" in second
    cells = re.findall(r"<td[^>]*>(.*?)</td>", models_page._errors(results["networks"]))
    assert cells[:4] == ["0.100 ± 0.010", "0 of 4", "0.040 ± 0.004", "1 of 4"]


def setting(group, ks, fails, layers=4):
    sizes = {name: over_seeds([ks + i, ks + i + 2]) for i, name in enumerate(SIZES)}
    counts = dict.fromkeys(TESTS, 0) | fails
    return {"group": group, "accuracy": over_seeds([0.5, 0.75])} | {
        "before": sizes
        | {"layers": layers, "fails": dict.fromkeys(TESTS, 0), "ks": over_seeds([0.5])},
        "after": sizes | {"layers": layers, "fails": counts},
    }


def test_settings_are_ordered_by_their_distance_and_counted_by_their_tests():
    settings = {
        "base": setting("base", 5.0, {"normal": 4}),
        "x": setting("width", 9.0, {"normal": 4, "spherical": 1}),
        **{f"s{i}": setting("depth", float(i), {}) for i in range(1, 5)},
    }
    results = {"settings": settings}
    first, second, third = settings_page.findings(results)
    assert "are Gaussian rejects in all trained layers of 2 of 6 settings (base, x)" in first
    assert "in no trained layer of 4 settings (s1, s2, s3, s4)" in first
    assert "covariance is c² I rejects in all trained layers of 0 of 6 settings," in second
    order = re.findall(r"“(base|x|s\d)”", third)
    assert order == ["base", "x", "base", "s4", "s3", "s1", "s2", "s3", "s4"]
    row = [cell.replace(NBSP, " ") for cell in settings_page.rows(results, "after")[1]]
    assert row[0] == "width: x"
    assert row[1] == "62.50 ± 12.50"
    assert row[2:8] == [f"{10.0 + i:.1f} ± 1.0" for i in range(6)]
    assert [part.split()[1] for part in re.findall(r"\w \d/\d", row[8])] == ["4/4", "1/4"]
    assert settings_page.rows(results, "before")[0][-1] == "none"


def test_a_value_stands_beside_its_reference():
    assert geometry_page.beside((1.25, 3.0), (0.5, 2.125), ".1f") == ["1.2 (0.5)", "3.0 (2.125)"]
    assert geometry_page.beside((0.25,), (0.5,), ".2f", ".1f") == ["0.25 (0.5)"]


def test_accuracies_of_first_layers_are_in_percent_at_three_epochs(drawn):
    curves = {"he": [[0.1, 0.2, 0.4, 0.5], [0.3, 0.4, 0.8, 0.5]], "point": [[0.5] * 4] * 2}
    results = {"neuron_per_point": curves | {"epochs": 4, "runs": 2, "points": 7}}
    head, first, second = cells_of(geometry_page.per_point(results))
    assert head == ["network", "epoch 1", "epoch 3", "epoch 4"]
    assert first[1:] == ["20.00 ± 10.00", "60.00 ± 20.00", "50.00 ± 0.00"]
    assert second[1:] == ["50.00 ± 0.00"] * 3
    later = drawn[2]
    np.testing.assert_allclose(y_of(later.get_lines()[0]), [60, 50])
    np.testing.assert_array_equal(x_of(later.get_lines()[0]), [3, 4])
    np.testing.assert_allclose(ends_of(later.collections[0]), [(40, 80), (50, 50)])


def test_accuracy_and_rank_are_means_over_runs_of_their_depth(drawn):
    def of(scale):
        return {
            "accuracy": [[0.1 * scale, 0.3 * scale], [0.5, 0.5]],
            "rank": [[10.0 * scale, 20.0 * scale], [128.0, 128.0]],
            "effective_rank": [[1.0, 2.0], [3.0, 5.0]],
        }

    starts = {
        start: of(scale) for start, scale in zip(geometry_plots.STARTS, (1, 2, 3, 1), strict=True)
    }
    measured = starts | {"depths": [0, 4], "data": "made", "steps": 9, "runs": 2}
    rows = [row for row in cells_of(geometry_page.accuracy_and_rank({"figure_2": measured})) if row]
    found = [row for row in rows if row[0].endswith((", 1", ", 5"))]
    assert [row[1] for row in found] == [
        "20.0",
        "50.0",
        "40.0",
        "50.0",
        "60.0",
        "50.0",
        "20.0",
        "50.0",
    ]
    assert [row[2] for row in found[:4]] == ["15.0", "128.0", "30.0", "128.0"]
    assert [row[4] for row in found[:2]] == ["1.50", "4.00"]
    line = drawn["accuracy"].get_lines()[0]
    np.testing.assert_allclose((x_of(line), y_of(line)), [[1, 5], [20, 50]])
    np.testing.assert_allclose(ends_of(drawn["rank"].collections[1]), [(20, 40), (128, 128)])
    varied = measured | {"default": of(1) | {"accuracy": [[0.9, 0.9], [0.2, 0.6]]}}
    table = geometry_page._deepest(varied)
    assert "with 5 hidden layers" in table
    assert cells_of(table)[1][1:] == ["40.0", "20.0", "60.0"]


def test_pairs_of_criteria_are_averaged_over_layers_and_then_over_seeds():
    pairs = PAIRS[:3]
    runs = {
        pairs[0]: [[0.5, 0.7], [0.9, 0.7]],
        pairs[1]: [[0.2, 0.2], [0.3, 0.1]],
        pairs[2]: [[0.4, None], [0.6, 1.0]],
    }
    expected = {pairs[0]: [0.75, 0.75], pairs[1]: [0.25, 0.75], pairs[2]: [0.6, 0.6]}
    pruning = {
        "pairs": pairs,
        "batch_norm": {"spearman": runs, "overlap": runs},
        "expected_spearman": expected,
        "overlap_ratio": 0.25,
    }
    means = criteria_page.pair_means(pruning, "spearman", "batch_norm")
    assert means[pairs[0]]["values"] == pytest.approx([0.6, 0.8])
    # The layer whose ρ is unknown does not count.
    assert means[pairs[2]]["values"] == pytest.approx([0.4, 0.8])
    said = criteria_page.spearman_sentence(pruning).replace(NBSP, " ")
    labels = [criteria_page.pair_label(pair) for pair in pairs]
    assert f"smallest for {labels[1]} (0.2000 ± <0.0001)" in said
    assert f"largest for {labels[0]} (0.7000 ± 0.1000)" in said
    assert "differs by at most 0.3 from the ρ that theory predicts for Gaussian filters" in said
    assert f"The difference is largest for {labels[1]}, whose predicted ρ is 0.5." in said
    assert "remove the 25 % of the filters" in criteria_page.overlap_sentence(pruning)


def test_distances_around_a_drop_are_of_three_epochs_on_either_side():
    """The shares average two seeds, without epochs whose distance was not measured."""
    runs = [[9.0, 2.0, 4.0, 6.0, 1.0, 1.0, 4.0, 99.0], [9.0, 4.0, None, 4.0, 2.0, 2.0, 2.0, 99.0]]
    assert training_page._share_left(runs, 5) == pytest.approx((12 / 6) / (20 / 5))
    assert training_page._share_left([run[1:] for run in runs], 2) == pytest.approx(
        ((4 + 6 + 1 + 4 + 2) / 5) / 3
    )
    assert training_page._share_left([[None, 1.0]], 2) is None
    results = {
        "training": {"learning_rate": [0.4] * 4 + [0.1] * 4, "drops": [5]},
        "distances": {"batch_norm": runs, "unitized": [[1.0] * 4 + [0.75] * 4] * 2},
    }
    said = training_page.distances_sentence(results)
    assert (
        "is divided by 4. The distance after the drop is 0.5 times the distance before the" in said
    )
    assert "drop with batch norm, and 0.75 times with unitized batch norm" in said
    assert said.endswith("With both normalizations, the distance falls by more than a fifth.")


def test_distances_that_do_not_follow_a_drop_are_said():
    rates = {"learning_rate": [0.4] * 3 + [0.1] * 3, "drops": [4]}
    halved = [[2.0] * 3 + [1.0] * 3]
    for later, verdict in ((1.5, "falls by more than a fifth"), (1.6, "does not fall by more")):
        distances = {"batch_norm": halved, "unitized": [[2.0] * 3 + [later] * 3]}
        said = training_page.distances_sentence({"training": rates, "distances": distances})
        assert verdict in said
    unknown = {"batch_norm": halved, "unitized": [[None] * 6]}
    said = training_page.distances_sentence({"training": rates, "distances": unknown})
    assert said.startswith("The distances around the first drop of the learning rate are not fini")
    for drops in ([], [1], [7]):  # drops at a run's start or after its end do not count
        results = {"training": rates | {"drops": drops}, "distances": {}}
        assert training_page.distances_sentence(results).startswith("The learning rate never fell")
    last = {"learning_rate": [0.4] * 5 + [0.1], "drops": [6]}
    results = {"training": last, "distances": {"batch_norm": halved, "unitized": halved}}
    assert "divided by 4" in training_page.distances_sentence(results)


def test_layers_without_a_ranking_have_no_extremes():
    pairs = PAIRS[:2]
    nothing = {pair: [[None, None], [None, None]] for pair in pairs}
    pruning = {
        "pairs": pairs,
        "batch_norm": {"spearman": nothing, "overlap": nothing},
        "expected_spearman": {pair: [0.5, 0.5] for pair in pairs},
        "overlap_ratio": 0.125,
    }
    said = criteria_page.spearman_sentence(pruning)
    assert said == "With batch norm, no layer has a ranking to compare."
    assert "remove the 12.5 % of the filters" in criteria_page.overlap_sentence(pruning)
    known = nothing | {pairs[1]: [[0.75, 0.5], [0.75, 1.0]]}
    pruning["batch_norm"]["spearman"] = known
    pruning["expected_spearman"] = {pair: [None, None] for pair in pairs}
    said = criteria_page.spearman_sentence(pruning).replace(NBSP, " ")
    label = criteria_page.pair_label(pairs[1])
    assert f"for {label} (0.7500 ± 0.1250) and largest for {label} (0.7500 ± 0.1250)." in said


def made_training():
    return {
        "batch_norm": {
            "accuracy": over_seeds([0.5, 0.7]),
            "test_accuracy": [[0.1, 0.3, 0.5], [0.3, 0.5, 0.7]],
            "train_loss": [[3.0, 2.0, 1.0], [3.0, 2.0, 2.0]],
        },
        "unitized": {
            "accuracy": over_seeds([0.6, 0.9]),
            "test_accuracy": [[0.2, 0.4, 0.6], [0.4, 0.4, 0.9]],
            "train_loss": [[3.0, 2.0, 1.0], [3.0, 1.0, 1.0]],
            "alpha": {"min": -0.51, "max": 1.234, "outside": 0.12345},
        },
        "difference": over_seeds([0.1, 0.2]),
        "learning_rate": [0.1, 0.1, 0.02],
        "drops": [3],
    }


def test_accuracies_of_a_report_are_in_percent_by_seed_and_paired(monkeypatch):
    drawn = record_panels(monkeypatch, training_page, replaced=("draw",))
    results = {"training": made_training(), "data": {"test": 250}}
    rows = cells_of(training_page.accuracy(results))
    assert rows[1:] == [
        ["seed 1", "50.00", "60.00", "10.00"],
        ["seed 2", "70.00", "90.00", "20.00"],
        ["mean", "60.00 ± 10.00", "75.00 ± 15.00", "15.00 ± 5.00"],
    ]
    said = training_page.accuracy_sentence(results).replace(NBSP, " ")
    assert "classifies 60.00 ± 10.00 % of the test" in said
    assert "unitized batch norm 75.00 ± 15.00 %." in said
    assert "unitized batch norm minus batch norm, is +15.00 ± 5.00 percentage points" in said
    assert "One of the 250 test images is 0.4 points." in said
    whole, later = drawn["test accuracy, %"], drawn["the same, later half, %"]
    np.testing.assert_allclose(y_of(whole.get_lines()[0]), [20, 40, 60])
    np.testing.assert_allclose(ends_of(whole.collections[0]), [(10, 30), (30, 50), (50, 70)])
    np.testing.assert_array_equal(x_of(later.get_lines()[1]), [2, 3])
    np.testing.assert_allclose(y_of(later.get_lines()[1]), [40, 75])
    losses = drawn["training loss, nats"].get_lines()
    np.testing.assert_allclose([y_of(line) for line in losses[:2]], [[3, 2, 1.5], [3, 1.5, 1]])
    alpha = training_page.alpha_sentence(made_training())
    assert "between −0.51 and 1.23." in alpha
    assert "12.3 % of the values are outside this range." in alpha


def test_the_changes_of_moments_are_steadier_or_less():
    def change(batch_norm, unitized):
        return {
            "batch_norm": over_seeds(batch_norm),
            "unitized": over_seeds(unitized),
            "difference": over_seeds(np.subtract(unitized, batch_norm)),
        }

    moments = {
        "skewness": change([0.5, 0.5, 0.6], [0.2, 0.21, 0.3]),
        "kurtosis": change([1.0, 1.0, 1.1], [2.0, 2.01, 2.11]),
    }
    said = training_page.moments_sentence({"moments": {"change": moments}}).replace(NBSP, " ")
    skewness, kurtosis = said.split(" change of kurtosis")
    assert "skewness in an epoch is 0.533 ± 0.033 with batch norm and 0.237 ± 0.032" in skewness
    assert "significantly smaller" in skewness
    assert "significantly larger" in kurtosis


def test_quartiles_of_moments_are_drawn_from_the_untrained_network_on(drawn):
    part = {"low": [1.0, 2.0, 3.0], "median": [2.0, 3.0, 5.0], "high": [4.0, 4.0, 9.0]}
    moments = {
        name: dict.fromkeys(training_page.MOMENTS, part) for name in ("batch_norm", "unitized")
    }
    training_page.moment_plots({"training": made_training(), "moments": moments})
    axes = drawn["kurtosis"]
    median = axes.get_lines()[0]
    np.testing.assert_array_equal((x_of(median), y_of(median)), [[0, 1, 2], [2, 3, 5]])
    assert ends_of(axes.collections[0]) == [(1, 4), (2, 4), (3, 9)]


def test_a_pruned_language_model_has_shares_and_errors():
    results: dict[str, Any] = {
        "parameters": {"whole": 2000, "pruned": 1250},
        "perplexity": {
            "whole": {"value": 12.3456, "stderr": 0.5},
            "cut": {"value": 20.0, "stderr": float("nan")},
        },
        "peak_gib": 1.234,
        "counts": {
            "whole": {"layers": 4, "groups": 2, "experts": 1},
            "pruned": {"layers": 3, "groups": 1, "experts": 1},
        },
        "heads": {"whole": 8, "pruned": 4},
        "remaining": {"layers": [0, 2], "groups": [[0, 1], [1], [0]], "experts": [[0]] * 3},
        "influences": [0.25, 0.00004, 0.5],
    }
    assert language_page.headline(results, 0.625)[0] == ("parameters", "1,250", "62.5 %")
    assert language_page.headline(results, 0.625)[1][:2] == ("perplexity, whole", "12.346")
    _, whole, cut = cells_of(language_page.perplexities(results))
    assert (whole[1:], cut[1:]) == (["12.346", "0.500"], ["20.000", "unknown"])
    rows = cells_of(language_page.counts(results))[1:]
    assert rows == [
        ["layers", "4", "3"],
        ["groups", "2", "1"],
        ["queries", "8", "4"],
        ["parameters", "2,000", "1,250"],
    ]
    layers = cells_of(language_page.layers(results))[1:]
    assert layers == [["0", "0, 1", "0.2500"], ["1", "removed", "0.0000"], ["2", "0", "0.5000"]]


def test_a_layer_of_a_mixture_that_is_removed_has_a_word_in_every_column():
    results = {
        "remaining": {"layers": [0], "groups": [[0, 2], [1]], "experts": [[3], [0, 5]]},
        "influences": [0.25, 0.125],
        "counts": {"whole": {"experts": 8}},
    }
    assert cells_of(language_page.layers(results))[1:] == [
        ["0", "0, 2", "3", "0.2500"],
        ["1", "removed", "removed", "0.1250"],
    ]


def test_distances_and_rates_are_drawn_from_the_first_epoch(drawn):
    rates = [0.5, 0.5, 0.05]
    curves = [[3.0, 2.0, 1.0], [3.5, 2.5, 0.5]]
    distances = {"batch_norm": curves, "unitized": curves}
    training_page.distance_plots(
        {"training": {"learning_rate": rates, "drops": [3]}, "distances": distances}
    )
    lines = [line for axes in drawn.values() for line in axes.get_lines() if len(x_of(line)) == 3]
    assert len(lines) == 3
    for line in lines:
        np.testing.assert_array_equal(x_of(line), [1, 2, 3])
