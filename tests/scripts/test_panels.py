"""The contents of panels and tables of pages, computed by hand from made-up numbers."""

import re
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.measures import analysis, pruned
from experiments.measures.networks import mean as over_seeds
from experiments.pages import (
    analysis as analysis_page,
    compiled as compiled_page,
    filter_settings as settings_page,
    plots,
    prune as prune_page,
    reproduce_criteria as criteria_page,
)
from tests.support.drawn_panels import cells_of, record_panels
from tests.support.made_up_results import PRUNED, made_up_accuracies, pruned_networks


@pytest.fixture
def panels(monkeypatch):
    """The axes of all panels that are drawn in a test, by title."""
    return record_panels(monkeypatch, plots, prune_page, criteria_page, replaced=("draw",))


def heights(axes):
    """The y values of each curve in `axes`; straight horizontal and vertical lines are left out."""
    curves = [np.asarray(line.get_ydata()) for line in axes.get_lines()]
    return [curve for curve in curves if len(set(curve)) > 1 or len(curve) != 2]


def test_bars_of_costs_are_what_is_left_of_them(panels):
    prune_page._cost_panel(pruned_networks())
    axes = panels["pruned / trained"]
    names = [label.get_text() for label in axes.get_yticklabels()]
    shares = dict(zip(names, (bar.get_width() for bar in axes.patches), strict=True))
    # 800 multiply-accumulates become 200, 1 ms becomes 0.5 ms, and the number of parameters remains
    # the same.
    assert shares["multiply-accumulates"] == 25
    assert shares["ms, batch 1"] == 50
    assert shares["parameters"] == 100
    assert not any("images a second" in name for name in names)


def from_top(axes):
    """The labels on the vertical axis of a panel, from top to bottom."""
    heights = axes.transData.transform([(1, y) for y in axes.get_yticks()])[:, 1]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return [labels[i] for i in np.argsort(-heights)]


def test_rows_of_panels_are_in_the_order_of_the_tables(panels, monkeypatch):
    prune_page._cost_panel(pruned_networks())
    _, _, costs = prune_page.cost_table(pruned_networks())
    names = [name for name, *_ in costs if "images a second" not in name]
    assert from_top(panels["pruned / trained"]) == names
    drawn = record_panels(monkeypatch, settings_page)
    part = {"ks": over_seeds([0.5, 0.75])}
    shown_groups = [group for shown in settings_page.PANELS for group in shown]
    groups = {"base": "base"} | {f"{group} {i}": group for group in shown_groups for i in range(2)}
    settings = {n: {"group": group, "before": part, "after": part} for n, group in groups.items()}
    settings_page._figure({"settings": settings})
    assert len(drawn) == len(settings_page.PANELS)
    for shown, axes in drawn.items():
        assert from_top(axes) == [name for name, group in groups.items() if group in shown]


def test_cards_say_how_many_times_fewer_and_the_range_over_criteria():
    page = prune_page._summary(pruned_networks())
    assert "4.0 times fewer" in page
    assert "<dd>50 %</dd>" in page
    # The mean accuracies over networks are 0.51 for l1, 0.597 for l2, 0.55 for Fermat and 0.42 for
    # GM.
    assert "42.0 to 59.7 %" in page


def test_a_run_of_one_network_with_a_budget_is_described_in_words():
    run, times = pruned_networks(), {}
    for size, factor in (("4", 1.0), ("128", 0.25), ("32", 0.5)):
        times[size] = run["cost"]["trained"]["timings"]["1"] | {"milliseconds": factor}
    run["cost"]["trained"] = run["cost"]["trained"] | {"timings": times}
    faster = {size: time | {"milliseconds": 0.2} for size, time in times.items()}
    run["cost"]["pruned"] = run["cost"]["pruned"] | {"timings": faster}
    run["accuracy"] = pruned.accuracies([0.9], made_up_accuracies(PRUNED[:1]))
    run["accuracy"]["by criterion"]["gm"]["pruned"]["mean"] = None
    run["settings"] = {"seeds": 1}
    run["environment"] = {"device": "cpu", "cores": 1}
    run["ratios"] = []  # with a budget, there are no ratios
    run["options"] = {"budget": 250_000.0, "unit": "bytes", "ratio": 0.5, "scope": "globally"}
    run["options"] |= {"repair": "least_squares", "repair_images": 1500}
    summary = prune_page._summary(run)
    cards = dict(zip(*[iter(_cells(summary))] * 2, strict=False))
    # The accuracy of GM is unknown, so it does not count.
    low, high = (100 * limit(PRUNED[0][:3]) for limit in (min, max))
    assert cards["Pruned"] == f"{low:.1f} to {high:.1f} %"
    assert cards["Time of a batch"] == "80 %"  # the card shows the largest batch
    assert "of the time before pruning, 128 images" in summary
    assert "a budget of 250,000 bytes" in summary
    title, _, rows = prune_page.accuracy_table(run)
    assert title == "Test accuracy on digits in %, 1 network (Table 4)"
    assert rows[-1] == ["Friedman's p", "–", "–", "–", "–"]
    text = prune_page._accuracy(run)
    assert "repaired by least squares with at most 1,500 training images" in text
    assert "with 1 core, after" in prune_page._cost(run)
    assert "with 2 cores, after" in prune_page._cost(pruned_networks())
    assert "has 1,234 bytes." in prune_page._cost(pruned_networks())
    assert "repaired" not in prune_page._accuracy(pruned_networks() | {"ratios": [0.5]})
    ratio = {"budget": None, "ratio": 0.125, "scope": "globally"}
    assert prune_page._removed(ratio) == "12.5 % of the channels removed, globally"
    for cost in run["cost"].values():
        cost["timings"] = {}
    assert "Time of a batch" not in prune_page._summary(run)


def test_a_layer_at_a_time_is_drawn_from_dark_to_light_beside_the_first_network(panels):
    scan = {"ratios": [0.1, 0.5], "accuracy": {"a": [0.875, 0.5], "b": [0.75, 0.25]}}
    text = prune_page._sensitivity(pruned_networks() | {"sensitivity": scan})
    (axes,) = panels.values()
    first, last, whole = axes.get_lines()
    np.testing.assert_allclose(np.transpose(first.get_xydata()), [[10, 50], [87.5, 50]])
    np.testing.assert_allclose(np.transpose(last.get_xydata()), [[10, 50], [75, 25]])
    assert (first.get_color(), last.get_color()) == (prune_page.FIRST, prune_page.LAST)
    np.testing.assert_allclose(whole.get_ydata(), 90)
    assert cells_of(text) == [
        ["layer", "10 %", "50 %"],
        ["a", "87.5", "50.0"],
        ["b", "75.0", "25.0"],
    ]


def test_a_layer_without_another_is_drawn_in_the_first_shade(panels):
    scan = {"ratios": [0.1, 0.5], "accuracy": {"a": [0.875, 0.5]}}
    prune_page._sensitivity(pruned_networks() | {"sensitivity": scan})
    (axes,) = panels.values()
    assert axes.get_lines()[0].get_color() == prune_page.FIRST


def test_stages_are_means_over_networks_and_differences_are_from_the_criteria(panels):
    prune_page._stage_panels(pruned_networks()["accuracy"])
    shown, differences = (heights(axes) for axes in panels.values())
    np.testing.assert_allclose([curve[0] for curve in shown], 100 * PRUNED.mean(0))
    by_hand = 100 * (PRUNED - PRUNED.mean(1, keepdims=True)).mean(0)
    np.testing.assert_allclose([curve[0] for curve in differences], by_hand)


def pruning():
    """Made-up results of pruning: both normalizations, two criteria, two ratios and two seeds."""
    values = {"l1": ([0.9, 0.8], [0.5, 0.3]), "l2": ([0.7, 0.8], [0.1, 0.1])}
    masked = {
        name: {
            ratio: {"values": seeds, "mean": float(np.mean(seeds)), "stderr": 0.1}
            for ratio, seeds in zip(("0.2", "0.6"), rows, strict=True)
        }
        for name, rows in values.items()
    }
    network = {"unmasked": {"mean": 0.95, "stderr": 0.01}, "masked": masked}
    network["spearman"] = {"l1-l2": [[0.25, 0.75], [0.35, 0.85]]}  # a row of ρ for each seed
    layers = [{"name": f"layer {i}", "filters": 4 * i, "dims": 9 * i} for i in (1, 2)]
    return {"batch_norm": network, "unitized": network, "pairs": ["l1-l2"], "layers": layers}


def test_differences_after_masking_are_from_the_mean_of_the_criteria(panels):
    criteria_page.masking_plots(pruning())
    accuracy, difference = (
        next(axes for title, axes in panels.items() if part in title)
        for part in ("test accuracy", "differences")
    )
    np.testing.assert_allclose(heights(accuracy), [[85, 40], [75, 10]])
    # Each of the two criteria differs from the mean of both by half of their difference. At the
    # first share, the two seeds have the differences 90 − 70 and 80 − 80, whose mean is 10.
    np.testing.assert_allclose(heights(difference), [[5, 15], [-5, -15]])


def test_the_table_by_layer_has_a_row_of_each_layer_s_own_mean():
    page = criteria_page._layers(pruning())
    first, second = page.split("layer 1")[1].split("layer 2")
    assert "0.300" in first  # the mean ρ of layer 1 is (0.25 + 0.35) / 2
    assert "0.800" in second


@pytest.mark.parametrize(("ks", "count"), [(0.0130, 0), (0.0137, 1)])
def test_layers_are_counted_that_depart_from_gaussian_at_5_percent(ks, count):
    # For 10,000 weights, the critical values of Kolmogorov's test are 0.0136 at 5 % and 0.0122 at
    # 10 %.
    layer: Any = {"layer": "conv", "ks": ks, "weights": 10_000}
    assert f"{count} of 1 layers, the distance exceeds" in criteria_page.histograms_sentence(
        [layer]
    )


def test_each_layer_departs_from_gaussian_by_its_own_number_of_weights():
    """The critical distances for 10,000, 100 and 400 weights are 0.0136, 0.136 and 0.0679."""
    sizes = ((0.0137, 10_000), (0.13, 100), (0.07, 400))
    layers: Any = [{"layer": "conv", "ks": ks, "weights": n} for ks, n in sizes]
    for order in (layers, layers[::-1]):
        assert "2 of 3 layers, the distance exceeds" in criteria_page.histograms_sentence(order)


def layer(name, ks, bound):
    overlap = {pair: 0.25 + i / 10 for i, pair in enumerate(analysis.PAIRS)}
    return {
        "name": name,
        "filters": 4,
        "dims": 9,
        "spearman": dict.fromkeys(analysis.PAIRS, 0.5),
        "overlap": overlap,
        "ks": ks,
        "ks_bound": bound,
        "std_spread": 0.1,
        "dead": 0,
        "fails": [],
    }


def test_the_least_overlap_and_the_farthest_layer_are_shown():
    layers = [layer("near", 0.10, 0.30), layer("far", 0.20, 0.25)]
    assert analysis_page.layer_columns(layers)["overlap"] == ["0.25", "0.25"]
    results: Any = {"layers": layers, "kind": "convolutions", "file": "x", "left_out": {}}
    page = analysis_page._summary(results)
    cards = dict(zip(*[iter(_cells(page))] * 2, strict=False))
    assert len(cards) == len(list(_cells(page))) / 2  # Equal counts share a card.
    # The distances `ks` are compared, not their upper bounds `ks_bound`.
    assert cards["Farthest from Gaussian"] == "0.200"
    assert cards["Nearest to Gaussian"] == "0.100"


@pytest.mark.parametrize(
    ("rhos", "fails", "alike", "gaussian"),
    # The page says that the criteria agree if, for every pair of criteria, ρ is above 0.9 in at
    # least 80 % of the layers, here in four of five layers.
    [
        ([0.95] * 4 + [0.5], [], True, True),
        ([0.95] * 3 + [0.9] * 2, ["normal"], False, False),  # ρ must be above 0.9
        ([0.5] + [0.95] * 4, ["mean"], True, True),
    ],
)
def test_conclusions_follow_the_layers(rhos, fails, alike, gaussian):
    layers: Any = [layer(f"l{i}", 0.1 + i / 8, 0.7) for i in range(5)]
    for row, rho in zip(layers, rhos, strict=True):
        row["spearman"] = row["spearman"] | {"l2-gm": rho, "l1-l2": 0.99}
        row["spearman"] |= {p: 0.99 for p in analysis.PAIRS if p != "l2-gm"}
    layers[2]["fails"] = fails
    results: Any = {"layers": layers, "kind": "dense layers", "file": "f"}
    results["left_out"] = {"x" * 50: "has 2 filters of 9 dims; 4 and 3 are needed"}
    about_choice, about_weights = analysis_page.conclusion(results)
    count = sum(rho > 0.9 for rho in rhos)
    if alike:
        assert "For every pair of criteria" in about_choice
        assert f"in {count} of 5 layers or more" in about_choice
    else:
        assert "For l2 and GM, Spearman's ρ" in about_choice
        assert f"is above 0.9 in only {count} of 5 layers" in about_choice
    assert ("In 1 of 5 layers" not in about_weights) == gaussian
    assert ("at most 0.600" in about_weights) != gaussian
    page = analysis_page._summary(results)
    cards = dict(zip(*[iter(_cells(page))] * 2, strict=False))
    assert cards["Dense layers"] == "5"
    assert cards["l2 and GM"] == f"{count} of 5"
    assert cards["Layers that fail no test"] == f"{5 - bool(fails)} of 5"
    assert re.search("We left out x{17}…x{18}, because the layer has 2 filters", page)
    nothing = results | {"layers": [], "left_out": {}}
    assert list(analysis_page.conclusion(nothing)) == []
    empty = analysis_page._summary(nothing)
    assert list(_cells(empty)) == ["Dense layers", "0"]
    assert "left out" not in empty


def test_table_1_has_every_chosen_layer_however_long_its_name():
    names = [f"encoder.layer.{i}.attention.output.dense.weight" for i in (0, 10, 11)]
    first = {criterion: list(range(8)) for criterion in analysis_page.CRITERIA}
    layers = [{"name": name, "first": first} for name in names]
    text = analysis_page._first({"layers": layers, "chosen": names[::2]})
    rows = [len(re.findall("<tr ", part)) for part in text.split("<details>")]
    assert rows == [2, 3]


def test_compiled_programs_are_counted_by_their_limits():
    """Programs without a limit do not count; if a function does not compile, its error is shown."""
    functions = [{"function": "f", "size": "8", "error": "Error: no"}, {"function": "g"}]
    targets = {
        "v5e": {"layers": [{"holds": True}, {"holds": False}, {"holds": None}, {"holds": True}]},
        "h100": {"functions": functions, "bottleneck": [{"skipped": "tuned on the device"}]},
    }
    assert compiled_page.verdicts({"targets": targets}) == [
        ("TPU v5e", "2 of 3", "programs are within their limits"),
        ("TPU v5e", "0 of 0", "public functions compile"),
        ("NVIDIA H100", "0 of 0", "programs are within their limits"),
        ("NVIDIA H100", "1 of 2", "public functions compile"),
    ]
    table = compiled_page.rows_table("functions", functions[:1])
    assert cells_of(table)[1] == ["f", "8", "", "", "", "Error: no"]
    table = compiled_page.rows_table("bottleneck", targets["h100"]["bottleneck"])
    assert "not compiled: tuned on the device" in table


def _cells(page):
    """Each pair of a term (`<dt>`) and its description (`<dd>`) on a page."""
    for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page):
        yield from (name, value)


def test_the_steps_of_a_schedule_are_means_over_networks(monkeypatch):
    drawn = record_panels(monkeypatch, prune_page)
    rng, results = np.random.default_rng(0), pruned_networks()
    stages, criteria = results["accuracy"]["spread"], prune_page.CRITERIA
    runs = [
        {c: [dict.fromkeys(stages, rng.uniform()) for _ in range(2)] for c in criteria}
        for _ in range(3)
    ]
    prune_page._steps(results | {"accuracy": results["accuracy"] | {"steps": runs}})
    assert list(drawn) == list(stages)
    for stage, axes in drawn.items():
        for line, criterion in zip(axes.get_lines(), criteria, strict=True):
            values = [[100 * row[stage] for row in run[criterion]] for run in runs]
            np.testing.assert_allclose(line.get_ydata(), np.mean(values, 0))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 1000, [1, 10, 100, 1000]), (1, 90, [1, 2, 5, 10, 20, 50]), (0.9, 7, [2, 4, 6])],
)
def test_a_logarithmic_axis_has_few_ticks_and_epochs_are_whole(low, high, ticks):
    """An axis beyond a factor of 100 has one tick in each decade; other axes have more."""
    axes = Figure().add_subplot()
    axes.set_ylim(low, high)
    plots.log_scale(axes)
    shown = [y for y in axes.get_yticks() if low <= y <= high]
    np.testing.assert_allclose(shown, ticks)
    assert [axes.yaxis.get_major_formatter()(y) for y in (0.5, 1000)] == ["0.5", "1000"]
    assert len(axes.get_yticks(minor=True)) == 0
    axes.set_xlim(1, 3)
    plots.whole_numbers(axes)
    assert [x for x in axes.get_xticks() if 1 <= x <= 3] == [1, 2, 3]


def test_the_label_of_a_figure_is_no_html():
    page = plots._inline('<svg viewBox="0 0 1 1"></svg>', name="x", label='<b onload="a">&')
    escaped = "&lt;b onload=&quot;a&quot;&gt;&amp;"
    assert f'aria-label="{escaped}"' in page
    assert f"<title>{escaped}</title>" in page


def test_no_two_panels_share_an_id():
    def paint(axes):
        axes.plot([1, 2], [3, 4], marker="o")

    drawn = [plots.draw(paint, name=n, title="loss", xlabel="epoch") for n in ("a", "b")]
    first, second = (set(re.findall(r'\bid="([^"]*)"', svg)) for svg in drawn)
    assert first
    assert first.isdisjoint(second)
    assert len(first) == len(second)
