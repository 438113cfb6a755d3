"""Numbers, errors, units and curves on the pages, compared with values computed by hand."""

import re
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.measures.networks import OverSeeds, mean as over_seeds
from experiments.measures.repair import Mean, mean_of
from experiments.pages import (
    page,
    plots,
    repair as repair_page,
    sentences,
    shift as shift_page,
    train,
)
from experiments.pages.plots import SERIES, Series
from tests.support.drawn_panels import NBSP, ends_of, record_panels, x_of, y_of

STYLE = Series("a", SERIES[3], "s")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1234567.0, 4, "1.235 × 10⁶"),
        (-0.00001234, 2, "−1.2 × 10⁻⁵"),
        (-0.125, 4, "−0.125"),
        (12.3456, 3, "12.3"),
        (None, 4, "–"),
        (float("nan"), 4, "–"),
        (float("inf"), 4, "–"),
    ],
)
def test_a_number_has_its_significant_digits(value, digits, text):
    assert sentences.number(value, digits).replace(NBSP, " ") == text


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (12345.6, 230.0, "12346 ± 230"),
        (0.87123, 0.0017, "0.8712 ± 0.0017"),
        (-12.3456, 1.2, "−12.3 ± 1.2"),
        (3.0, 0.0, "3 ± 0"),
        (None, None, "–"),
        (0.25, None, "0.25"),
        (0.5, 3.0, "0.5 ± 3.0"),
        (4.0e7, 2.0e6, "(4.00 ± 0.20) × 10⁷"),
        (-4.0e-7, 2.0e-5, "(−0.0 ± 2.0) × 10⁻⁵"),
        (1.5, float("inf"), "1.5"),
        (1.5, float("nan"), "1.5"),
    ],
)
def test_an_error_and_its_value_have_one_power_of_ten(value, stderr, text):
    assert sentences.value_with_error(value, stderr).replace(NBSP, " ") == text


def test_fewer_digits_are_those_of_a_value_without_an_error():
    assert sentences.value_with_error(12.3456, None, digits=3) == "12.3"
    assert sentences.mean(over_seeds([12.3456]), digits=2) == "12 (one seed)"
    assert sentences.mean(over_seeds([0.5]), scale=10) == "5 (one seed)"
    found = sentences.mean(over_seeds([0.49, 0.51]), scale=100).replace(NBSP, " ")
    assert found == "50.0 ± 1.0"
    assert sentences.mean({"mean": None, "stderr": None, "values": []}) == "– (one seed)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.26, "0.3 s"), (59.4, "59.4 s"), (59.7, "1 min 0 s"), (125.4, "2 min 5 s")],
)
def test_a_duration_has_minutes_and_seconds(seconds, text):
    assert sentences.duration(seconds) == text


def of(mean, stderr, values=()) -> OverSeeds:
    return {"mean": mean, "stderr": stderr, "values": list(values)}


def test_shares_are_in_percent_and_differences_have_a_sign():
    assert sentences.percent(of(0.123456, None)) == "12.35 (one seed)"
    assert sentences.percent(of(0.0123, 0.0045), sign="+").replace(NBSP, " ") == "+1.23 ± 0.45"
    assert sentences.percent(of(-0.0123, 0.0045)).replace(NBSP, " ") == "−1.23 ± 0.45"
    assert sentences.percent(of(None, None)) == "–"
    assert [sentences.hundredths(x, "+") for x in (-0.00004, 0.5, -0.25)] == [
        "0.00",
        "+50.00",
        "−25.00",
    ]
    shown = [of(-0.25, 0.003), of(0.99999, 4e-5), of(0.5, None), of(None, None)]
    texts = [sentences.likeness(result).replace(NBSP, " ") for result in shown]
    assert texts == ["−0.2500 ± 0.0030", "1.0000 ± <0.0001", "0.5000 (one seed)", "–"]


def test_an_average_is_of_the_values_that_are_known():
    assert sentences.average([1.0, None, float("nan"), 4.0]) == 2.5
    assert sentences.average([None, float("inf")]) is None


@pytest.mark.parametrize(
    ("ratio", "seeds", "said"),
    [  # Student's t at 97.5 % is 4.303 for two degrees of freedom, 2.262 for nine, 12.7 for one
        (4.2, 3, "less, but not significantly (paired t test at the 5 % level, 3 seeds)"),
        (4.4, 3, "significantly less (paired t test at the 5 % level, 3 seeds)"),
        (2.2, 10, "less, but not significantly (paired t test at the 5 % level, 10 seeds)"),
        (2.3, 10, "significantly less (paired t test at the 5 % level, 10 seeds)"),
        (12.5, 2, "less, but not significantly (paired t test at the 5 % level, 2 seeds)"),
        (0.9, 10, "equal to within one standard error"),
    ],
)
def test_a_difference_is_judged_by_student_s_t(ratio, seeds, said):
    difference = of(-0.1 * ratio, 0.1, [1.0] * seeds)
    assert sentences.judge(difference, more="more", less="less") == said
    other = of(0.1 * ratio, 0.1, [1.0] * seeds)
    assert sentences.judge(other, more="more", less="less") == said.replace("less", "more")
    assert sentences.judge(of(None, None)) == "unknown, because there is nothing to compare"


RUNS = np.array([[1.0, 8.0, 3.0], [2.0, 4.0, 3.0], [6.0, 3.0, 3.0]])
STDERR = np.array([7.0, 7.0, 0.0]) ** 0.5 / 3**0.5  # the variances over three seeds are 7, 7, 0
ENDS = np.transpose(RUNS.mean(0) + np.outer([-1, 1], STDERR))


def test_the_band_of_a_curve_is_one_standard_error_of_the_mean_over_seeds():
    axes = Figure().add_subplot()
    plots.curve(axes, np.array([2, 4, 6]), RUNS, STYLE)
    (line,) = axes.get_lines()
    np.testing.assert_allclose(y_of(line), [3, 5, 3])
    np.testing.assert_allclose(ends_of(axes.collections[0]), ENDS)
    alone = Figure().add_subplot()
    plots.curve(alone, np.array([2, 4, 6]), RUNS[:1], STYLE)
    assert not alone.collections


def test_bars_are_one_standard_error_of_the_mean_over_seeds():
    axes = Figure().add_subplot()
    plots.bars(axes, [0.0, 1.0, 2.0], RUNS, STYLE)
    (drawn,) = axes.containers
    ends = np.array([segment[:, 1] for segment in drawn[2][0].get_segments()])
    np.testing.assert_allclose(ends, ENDS)
    alone = Figure().add_subplot()
    plots.bars(alone, [0.0, 1.0, 2.0], RUNS[:1], STYLE)
    assert not alone.containers[0][2]


def test_a_drop_is_marked_before_its_epoch_with_its_factor():
    axes = Figure().add_subplot()
    plots.mark_drops(axes, [0.3, 0.3, 0.06, 0.06, 0.006], [3, 5])
    assert [x_of(line)[0] for line in axes.get_lines()] == [2.5, 4.5]
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [
        ("÷5", 2.5),
        ("÷10", 4.5),
    ]
    later = Figure().add_subplot()
    plots.mark_drops(later, [0.3, 0.3, 0.06, 0.06, 0.006], [3, 5], start=2)
    assert [x_of(line)[0] for line in later.get_lines()] == [4.5]


def test_missing_numbers_are_gaps():
    np.testing.assert_array_equal(plots.floats([1, None, 2.5]), [1, np.nan, 2.5])


def shift_run(seed, scale, **group):
    layers = {
        name: {
            "exact": [scale * k * (1 + e) for e in range(4)],
            "lower": [0.5 * scale * k] * 4,
            "upper": [3 * scale * k] * 4,
            "baseline": [0.25 * scale * k] * 4,
        }
        for name, k in (("norms.4", 1), ("norms.10", 3))
    }
    return {"seed": seed, "shift": {"whole set": layers}, **group}


def test_bounds_are_means_over_layers_and_seeds(monkeypatch):
    """The bounds average 2, 4, 6, 8 over layers for one seed, and 6, 12, 18, 24 for the other."""
    drawn = record_panels(monkeypatch, shift_page)
    group = {"normalization": "unitized", "order": "norm first", "schedule": "drops"}
    runs = [shift_run(seed, scale, **group) for seed, scale in ((0, 1.0), (1, 3.0))]
    results = {
        "runs": [*runs, shift_run(0, 9.0, **group | {"schedule": "constant"})],
        "findings": {"drops": []},
        "learning_rate": [0.1] * 4,
    }
    shift_page._bound_panels(results)
    (axes,) = drawn.values()  # only runs with drops of the learning rate have a panel
    base, exact = (y_of(line) for line in axes.get_lines())
    np.testing.assert_allclose(exact, [4, 8, 12, 16])
    np.testing.assert_allclose(base, [1] * 4)
    np.testing.assert_allclose(ends_of(axes.collections[0]), [(2, 12)] * 4)


def of_repairs():
    """Made-up accuracies of repaired networks for four criteria, of which `random` is the worst."""
    rows = {
        "l1": [0.5, 0.7, 0.6],
        "l2": [0.6, 0.9, 0.6],
        "gm": [0.4, 0.8, 0.3],
        "random": [0.1, 0.2, 0.3],
    }
    cells = {name: np.array([values]) for name, values in rows.items()}
    other = {name: values[::-1] / 2 for name, values in cells.items()}
    return {
        ("digits", 0.3, "recalibrated"): cells,
        ("digits", 0.5, "recalibrated"): other,
        ("digits", 0.5, "merged, clusters"): {"none": np.array([[0.25, 0.75, 0.5]])},
    }


def test_a_line_of_repairs_is_averaged_over_criteria_without_the_control():
    spent = {("digits", "recalibrated"): [1234.0, 12.0]}
    spent[("digits", "merged, clusters")] = [2.0, np.nan]
    first, second, third = repair_page.lines(of_repairs(), spent)
    assert first[:4] == ["digits, 30%", "recalibrated", "60.0 ± 10.0", "20.0 ± 5.8"]
    # Friedman's statistic of the ranks 2 3 1, 1 3 2 and 2½ 2½ 1 is 3.8182, so p is exp(−1.9091).
    assert first[4] == "0.15"
    assert first[6:] == ["1,234", "12"]
    assert second[:4] == ["digits, 50%", "recalibrated", "30.0 ± 5.0", "10.0 ± 2.9"]
    # Here, clusters choose the channels, so there are no criteria to compare.
    assert third == ["digits, 50%", "merged, clusters", "50.0 ± 14.4", "–", "–", "–", "2", "–"]


def test_a_margin_in_a_line_is_in_points():
    """The 95 % quantile of Student's t with 2 degrees of freedom is 2.920.

    Over three networks, the difference of two criteria has mean and standard deviation 0.5 points.
    """
    values = np.array([[0.010, 0.0, 0.005]])
    cells = {"l1": 0.5 + values, "l2": 0.5 + 0 * values, "random": 0 * values}
    (line,) = repair_page.lines({("x", 0.1, "folded"): cells}, {("x", "folded"): [1.0, 2.0]})
    stderr = 0.5 / 3**0.5
    assert line[5] == f"{0.5 + 2.920 * stderr:.1f}"
    assert line[4] == "–"  # Friedman's test needs three criteria


def test_seconds_and_memory_are_medians_by_network_and_repair():
    rows = [
        {"repair": "scaled", "seconds": s, "megabytes": m}
        for s, m in ((1.0, 30.0), (9.0, 10.0), (2.0, 20.0))
    ]
    rows.append({"repair": "scaled", "network": "perceptron", "seconds": 5.0})
    found = repair_page.took(rows)
    assert found["ResNet-20", "scaled"] == [2.0, 20.0]
    assert found["perceptron", "scaled"][0] == 5.0
    assert np.isnan(found["perceptron", "scaled"][1])


def test_accuracies_of_whole_networks_are_means_over_seeds_and_draws():
    digits = {
        "whole": [
            {"network": name, "seed": seed, "accuracy": value}
            for name, seed, value in (("a", 0, 0.5), ("b", 0, 0.9), ("a", 1, 0.7))
        ]
    }
    # The first 3 bits of e0, 80 and a0 are 111, 100 and 101.
    texts = {"whole": "e0", "whole, recalibrated": ["80", "a0"]}
    found = repair_page.whole(digits, {"settings": {"test": 3}, **texts})
    expected = {"digits, a": 0.6, "digits, b": 0.9}
    expected |= {"ResNet-20": 1.0, "ResNet-20, recalibrated": 0.5}
    assert found == pytest.approx(expected)


def test_probabilities_and_errors_of_repairs_have_their_units():
    assert [repair_page.probability(p) for p in (0.347, 0.005, 0.0049)] == ["0.35", "0.01", "5e-03"]
    assert repair_page.percent(Mean(0.1234, 0.0256, 3.0)) == "12.3 ± 2.6"
    assert repair_page.percent(Mean(0.1234, float("nan"), 3.0)) == "12.3"


def test_curves_of_repairs_are_in_percent_with_a_band_of_one_error():
    axes = Figure().add_subplot()
    repair_page.curve(axes, {0.1: Mean(0.5, 0.02, 1), 0.3: Mean(0.25, 0.01, 1)}, STYLE)
    (line,) = axes.get_lines()
    np.testing.assert_allclose(x_of(line), [10, 30])
    np.testing.assert_allclose(y_of(line), [50, 25])
    np.testing.assert_allclose(ends_of(axes.collections[0]), [(48, 52), (24, 26)])


def test_curves_have_the_points_of_a_run_that_is_not_finished(monkeypatch):
    """At ratio 0.3, two repairs are measured; at 0.5, one repair, and that for one criterion."""
    cells = of_repairs()["digits", 0.3, "recalibrated"]
    table = {
        ("ResNet-20", 0.3, "folded"): cells,
        ("ResNet-20", 0.3, "recalibrated"): cells,
        ("ResNet-20", 0.5, "recalibrated"): {"l2": cells["l2"] / 2},
        ("digits", 0.4, "recalibrated"): cells,
    }
    drawn = record_panels(monkeypatch, repair_page)
    repair_page.by_criterion(table)
    assert drawn.keys() == {"folded", "recalibrated"}
    means = {name: 100 * values.mean() for name, values in cells.items()}
    for repair, axes in drawn.items():
        found = {
            (line.get_color(), line.get_marker()): [*zip(x_of(line), y_of(line), strict=True)]
            for line in axes.get_lines()
            if len(x_of(line))
        }
        for name, mean in means.items():
            style = repair_page.CONTROLLED[name]
            points = found.pop((style.colour, style.marker))
            expected: Any = [(30, mean)]
            if (repair, name) == ("recalibrated", "l2"):
                expected.append((50, mean / 2))
            np.testing.assert_allclose(points, expected)
        assert not found
    drawn.clear()
    repair_page.by_repair(table)
    assert drawn.keys() == {"ResNet-20", "digits"}
    criteria = np.mean([means[name] for name in ("l1", "l2", "gm")])
    both: Any = [[(30, criteria)], [(30, criteria), (50, means["l2"] / 2)]]
    for network, expected in (("ResNet-20", both), ("digits", [[(40, criteria)]])):
        lines = [[*zip(x_of(k), y_of(k), strict=True)] for k in drawn[network].get_lines()]
        assert len(lines) == len(expected)
        for line, points in zip(lines, expected, strict=True):
            np.testing.assert_allclose(line, points)


def test_the_answer_is_of_the_largest_ratio():
    table = of_repairs()
    cells = table["digits", 0.5, "recalibrated"]
    said = repair_page.answer(table)  # The table has no results of least squares.
    # The margin of a pair of criteria is the smallest difference that the equivalence test can
    # exclude. The answer names the largest margin.
    limits = []
    for a, b in (("l1", "l2"), ("l1", "gm"), ("l2", "gm")):
        d = (cells[a] - cells[b])[0]
        limits.append(abs(d.mean()) + 2.919986 * d.std(ddof=1) / 3**0.5)
    assert f"(digits), the margin is {100 * max(limits):.1f} points after recal" in said
    table["digits", 0.5, "least squares"] = {"l1": cells["l1"], "l2": cells["l1"]}
    said = repair_page.answer(table)
    assert "points after recalibration and 0.0 points after least squares." in said
    alone = {("digits", 0.5, "recalibrated"): {"l1": cells["l1"]}}
    said = repair_page.answer(alone)
    assert "If 50 % of the channels are removed (digits), one criterion was measured." in said


def test_the_degrees_of_freedom_are_by_welch_and_satterthwaite():
    """The means of the three columns have variance 4, and the means of the two rows variance 8."""
    values = np.array([[0.0, 2.0, 4.0], [4.0, 6.0, 8.0]])
    found = mean_of(values)
    a, b = 4 / 3, 8 / 2
    assert found.mean == 4.0
    assert found.stderr == pytest.approx((a + b) ** 0.5)
    assert found.dof == pytest.approx((a + b) ** 2 / (a**2 / 2 + b**2 / 1))


def lines_of(accuracies, losses):
    return [
        {
            "epoch": e + 1,
            "loss": loss,
            "accuracy": accuracy,
            "learning_rate": rate,
            "images_per_second": 100.0 * (e + 1),
        }
        for e, (accuracy, loss, rate) in enumerate(
            zip(accuracies, losses, (0.1, 0.1, 0.02), strict=True)
        )
    ]


def test_the_page_of_a_training_has_means_over_seeds_in_percent(monkeypatch):
    drawn = record_panels(monkeypatch, train, replaced=("draw",))
    seeds = [lines_of((0.2, 0.4, 0.6), (3, 2, 1)), lines_of((0.4, 0.4, 0.9), (5, 2, 2))]
    results = {"seeds": seeds, "recipe": {"schedule": "drops"}}
    text = train._curves(results)
    for title, means in (("test accuracy, %", [30, 40, 75]), ("training loss, nats", [4, 2, 1.5])):
        curve, *drops = drawn[title].get_lines()
        np.testing.assert_allclose(y_of(curve), means)
        np.testing.assert_array_equal(x_of(curve), [1, 2, 3])
        assert [x_of(drop)[0] for drop in drops] == [2.5]
    (band,) = drawn["test accuracy, %"].collections
    np.testing.assert_allclose(ends_of(band)[2], [60, 90])
    assert "one standard error" in text
    train._curves(results | {"recipe": {"schedule": "cosine"}})
    assert len(drawn["training loss, nats"].get_lines()) == 1  # a cosine schedule has no drops


def test_the_table_of_seeds_has_the_last_epoch_of_each():
    seeds = [lines_of((0.2, 0.4, 0.6), (3, 2, 1)), lines_of((0.4, 0.4, 0.9), (5, 2, 2))]
    recipe = {"model": "m", "normalization": "unitized", "dataset": "imagenet2012"}
    views = [{"crops": {"accuracy": 0.25, "top_5": 0.5}}, {"crops": {"accuracy": 0.75, "top_5": 1}}]
    _, head, rows = train.seed_table({"recipe": recipe, "seeds": seeds, "evaluations": views})
    assert list(head) == [
        "seed", "last loss", "images/s", "top-1, %", "crops: top-1, %", "crops: top-5, %",
    ]  # fmt: skip
    assert rows == [
        ["0", "1.0000", "200", "60.00", "25.00", "50.00"],
        ["1", "2.0000", "200", "90.00", "75.00", "100.00"],
    ]
    accuracy = {**over_seeds([0.6, 0.9]), "median": 0.75}
    said = train.accuracy_sentence({"accuracy": accuracy}).replace(NBSP, " ")
    assert said == (
        "The test accuracies of the seeds have the median 75.00 % and the mean 75.00 ± 15.00 %."
    )
    alone = {**over_seeds([0.6]), "median": 0.6}
    assert (
        train.accuracy_sentence({"accuracy": alone}) == "The test accuracy is 60.00 % (one seed)."
    )


RECIPE = {"model": "m", "dataset": "digits", "normalization": "batch_norm", "epochs": 3}
RECIPE |= {"schedule": "drops", "test_scales": [224, 256]}
VIEWS = {"whole": {"accuracy": 0.25}}


def training_results(accuracies, **changes) -> dict[str, Any]:
    """Made-up results of a training on four devices, with one seed for each of `accuracies`."""
    accuracy = {**over_seeds(accuracies), "median": 0.625}
    return {
        "seeds": [lines_of((0.2, 0.4, a), (3, 2, 1)) for a in accuracies],
        "recipe": RECIPE,
        "accuracy": accuracy,
        "evaluations": [{}] * len(accuracies),
        "seconds": 125.0,
        "note": "",
        "command": "train",
        "date": "2026-01-02T03:04",
        "environment": {"cores": 2},
        "mesh": {"shape": {"data": 4}, "device": "TPU v4"},
        "vmapped seeds": 1,
    } | changes


def test_cards_of_a_training_are_of_one_network_or_of_several():
    alone = train._summary(training_results([0.5]))
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", alone) == [
        ("Test accuracy", "50.00 %"),
        ("Speed", "200 images/s"),
        ("Time", "2 min 5 s"),
    ]
    assert "<dd>1 network</dd>" in alone
    assert "3 epochs" in alone
    several = training_results([0.5, 0.75, 1.0], note="A note.")
    # The medians of the three seeds are 200, 300 and 200 images per second.
    several["seeds"][1][1]["images_per_second"] = 900.0
    several = train._summary(several).replace(NBSP, " ")
    assert ("Median test accuracy", "62.50 %") in re.findall(
        "<dt>(.*?)</dt><dd>(.*?)</dd>", several
    )
    assert "mean of 3 networks ± one standard error" in several
    assert "233 images/s" in several
    assert "<p>The data set has the note “A note.”</p>" in several
    assert "the note" not in alone
    assert "multiplies" not in alone
    for name, factor in (("unitized", "by α/‖x̂‖ + 1"), ("bounded", "by 1/(α‖x̂‖ + 1")):
        recipe = RECIPE | {"normalization": name}
        assert factor in train._summary(training_results([0.5], recipe=recipe))


def test_the_title_of_a_training_has_its_normalization_and_warm_up():
    names = {"none": "no normalization", "group_norm": "group norm"}
    names |= {"bounded": "unitized batch norm, α in [0, 1]"}
    for normalization, said in (names | {"unitized": "unitized batch norm"}).items():
        assert train._normalization({"normalization": normalization}) == said
    recipe = RECIPE | {"normalization": "none", "warmup": 0.0}
    results = training_results([0.5], recipe=recipe, date="2026-11-21T00:00:00")
    assert "<title>m on digits, no normalization</title>" in train.render(results)
    results["recipe"] = recipe | {"warmup": 0.25}
    assert "m on digits with warm-up, trained with no normali" in train.render(results)


def test_captions_and_settings_of_a_training_are_of_what_was_run():
    alone, several = training_results([0.5]), training_results([0.5, 0.75])
    several |= {"vmapped seeds": 2, "evaluations": [VIEWS, VIEWS]}
    assert "one standard error" not in train._curves(alone)
    assert "Dotted lines mark drops of the learning rate." in train._curves(alone)
    constant = training_results([0.5], recipe=RECIPE | {"schedule": "cosine"})
    assert "Dotted" not in train._curves(constant)
    assert "several seeds" not in train._accuracy(alone)
    assert "the logits are averaged" not in train._accuracy(alone)
    said = train._accuracy(several)
    assert "If one program trains several seeds" in said
    assert "averaged over the whole image, after" in said
    assert "resized to shorter sides of 224, 256 pixels" in said
    assert "Top-5" not in said
    assert "crops" not in said
    for results, seeds in ((alone, "1"), (several, "2, 2 as one program")):
        made = train.render(results).split('id="made"')[-1]
        found = dict(re.findall("<th scope=.row.>(.*?)</th><td.*?>(.*?)</td>", made))
        assert (found["devices"], found["seeds"]) == ("4 × TPU v4", seeds)
        assert found["learning rate at the end"] == "0.02"
        assert found["cores"] == "2"


def test_settings_are_shown_that_have_an_effect():
    entries = {"dataset": "digits", "normalization": "batch_norm", "drops": [0.5, 0.75]}
    entries |= {"crop": 224, "norm_groups": 4, "augment": True, "remat": False, "budget": None}
    entries |= {"exclude": []}

    def shown(**changes):
        text = page.settings(entries | changes)
        return dict(re.findall("<th scope=.row.>(.*?)</th><td.*?>(.*?)</td>", text))

    assert shown() == {
        "dataset": "digits",
        "normalization": "batch_norm",
        "drops": "0.5, 0.75",
        "augment": "yes",
        "remat": "no",
        "budget": "none",
        "exclude": "none",
    }
    assert shown(dataset="imagenet2012").keys() == shown().keys() | {"crop"}
    assert shown(normalization="group_norm").keys() == shown().keys() | {"norm groups"}


def test_cells_of_a_table_of_floors_are_of_their_own_network_and_phase():
    groups = [
        {"normalization": norm, "order": "norm first", "schedule": "drops"}
        for norm in ("batch_norm", "unitized")
    ]
    records = [
        group | {"kind": kind, "phase": phase, "share": of(share, None)}
        for i, group in enumerate(groups)
        for j, kind in enumerate(("running", "batch"))
        for share, phase in ((100 + 10 * i + j, [0, 4]), (200 + 10 * i + j, [4, 8]))
    ]
    head, rows = shift_page._floor_rows({"floor": records})
    assert head[2:] == ["epochs 1 to 4", "epochs 5 to 8"]
    numbers = [[re.sub(r"\D", "", cell) for cell in row[2:]] for row in rows]
    assert numbers == [["100", "200"], ["101", "201"], ["110", "210"], ["111", "211"]]
    assert [row[0].split(",")[0] for row in rows] == ["batch norm"] * 2 + [
        "unitized batch norm"
    ] * 2


def test_a_drop_early_in_a_run_has_the_epochs_that_there_are_before_it():
    """Before a drop at the third epoch, there are only two distances to average: 2 and 4."""
    layer = {"exact": [2.0, 4.0, 12.0, 12.0, 12.0]}
    run = {"shift": {"running": {"a": layer, "b": layer}}}
    assert shift_page._ratio([run], "running", 2)["mean"] == pytest.approx(4)
    assert shift_page._ratio([run], "running", 1)["mean"] == pytest.approx(28 / 3 / 2)


def test_movements_are_means_over_settled_epochs_by_normalization_and_seed():
    def run(seed, norm, values):
        moved = {kind: {"skewness": values, "kurtosis": values} for kind in shift_page.KINDS}
        group = {"order": "norm first", "schedule": "drops", "normalization": norm, "seed": seed}
        return group | {"movement": moved, "floor": moved}

    runs = [
        run(0, "batch_norm", [9.0, 1.0, 3.0]),
        run(0, "unitized", [9.0, 2.0, 2.0]),
        run(1, "batch_norm", [9.0, 4.0, 4.0]),
        run(1, "unitized", [9.0, 7.0, 5.0]),
    ]
    record = shift_page._movements(runs, 1)[0]
    assert record["batch_norm"]["values"] == [2, 4]
    assert record["unitized"]["values"] == [2, 6]
    assert record["difference"]["values"] == [0, 2]
    # The differences 0 and 2 give Student's t = 1 with one degree of freedom, so p is the
    # probability that a Cauchy variable is beyond ±1.
    assert record["p"] == pytest.approx(0.5)
    assert record["holm"] == 1.0
