"""The report: its sentences follow from the results, and an earlier report is never lost."""

import copy
import json
import os
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from experiments import files
from experiments.measures.networks import mean as over_seeds
from experiments.pages import (
    reproduce as reproduce_page,
    reproduce_claims,
    reproduce_criteria,
    reproduce_training,
    sentences,
)
from experiments.pages.page import write
from experiments.pages.papers import papers
from experiments.pages.series import MOMENTS, NORMALIZATIONS, criterion_series
from tests.support.made_up_results import EPOCHS, made_up

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Checks that tags are nested correctly, and collects ids and links."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.links = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                self.links.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def render(results):
    """The report's page for `results`, after these are converted to the types of JSON."""
    return reproduce_page.render(files.plain(results))


@pytest.fixture(scope="module")
def results():
    return made_up()


@pytest.mark.parametrize(
    ("by_layer", "expected"), [([0.0, 0.0], "0"), ([None, None], "no exact theory")]
)
def test_an_expected_correlation_may_be_zero(by_layer, expected):
    assert reproduce_criteria._expected(by_layer) == expected


@pytest.fixture(scope="module")
def page(results):
    return render(results)


@pytest.fixture
def pruning_alone(monkeypatch):
    """Leave only the sections on pruning in the report, because each figure takes a second."""
    sections = [s for s in reproduce_page.SECTIONS if s[0] in ("criteria", "filters")]
    monkeypatch.setattr(reproduce_page, "SECTIONS", sections)


def test_the_page_is_well_formed_and_its_ids_are_unique(page):
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    inside = {link[1:] for link in outline.links if link.startswith("#")}
    inside |= set(re.findall(r"url\(#([^)]*)\)", page))
    assert inside <= set(outline.ids)


def test_the_page_asks_nothing_of_anyone(page):
    outside = [link for link in Outline(page).links if not link.startswith("#")]
    cited = [paper.url for paper in papers()]
    assert sorted(outside) == sorted(["data:,", "results.json", *cited])
    # All links that leave the page are citations, so the page loads nothing.
    assert page.count("http") == len(cited)
    assert "@import" not in page
    assert "<script" not in page


def test_the_first_link_leads_past_the_navigation(page):
    before, _, after = page.partition('<main id="content">')
    assert re.findall('<a [^>]*href="([^"]*)"', page)[0] == "#content"
    assert "<nav " in before
    assert after.count("<section ") == page.count("<section ") > 0


def test_every_figure_takes_its_colours_from_the_page(page):
    panels = re.findall(r'<svg role="img".*?</svg>', page, re.DOTALL)
    assert len(panels) >= 3 + 4 + 2 + 6 + 6 + 4 + 3 + 3
    for panel in panels:
        assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", panel)) <= {
            "none",
            "currentColor",
            *("var(--muted)", "var(--grid)", "var(--paper)"),
            *(f"var(--series-{i})" for i in range(1, 7)),
        }
        assert "font-family" not in panel


@pytest.mark.parametrize(
    "text",
    [
        "360 test images of shape",
        "The images were recompressed as JPEG.",
        "48.3 % of the values",
        "stage 3, block 3, norm 2",
        "rate is divided by 5",
        "Overlap by layer, at 50 %",
        "n 36,864",
        "7.76",
        "Theorem 14, &lt;item&gt; 2</b>\n",
        "neither &amp; nor",
        "in 20,000 draws; predicted 0.111",
        "5 of 6 confirmed",
        "13.8",
        "0.12.1",
        "&#x27;&lt;here&gt;&#x27;",
        "2 min 51 s",
    ],
)
def test_each_section_says_its_results(page, text):
    assert text in page


def test_accuracies_carry_their_standard_error(results, page):
    training = results["training"]
    for mean in (training["batch_norm"]["accuracy"], training["difference"]):
        values = 100 * np.array(mean["values"])
        stderr = values.std(ddof=1) / len(values) ** 0.5
        value = f"{values.mean():.2f}".replace("-0.00", "0.00").replace("-", "−")
        assert f"{value} ± {stderr:.2f}".replace(" ", "\N{NO-BREAK SPACE}") in page


def test_one_seed_is_said_and_draws_no_band():
    page = render(made_up(seeds=1))
    Outline(page)
    assert "There was only one seed" in page
    assert "(one seed)" in page
    assert "±" not in page.split("<main")[0]


def test_one_epoch_is_enough(results):
    short = copy.deepcopy(results)
    training = short["training"]
    training |= {"learning_rate": [0.1], "drops": []}
    for name in NORMALIZATIONS:
        for runs in (training[name], short["distances"]):
            runs |= {k: np.array(v)[:, :1] for k, v in runs.items() if np.ndim(v) == 2}
        for moment in MOMENTS:
            moments = short["moments"][name][moment]
            short["moments"][name][moment] = {key: line[:2] for key, line in moments.items()}
    for change in short["moments"]["change"].values():
        change |= {
            key: {"mean": np.nan, "stderr": np.nan, "values": [np.nan] * 3} for key in change
        }
    page = render(short)
    assert "The learning rate never fell" in page
    assert "there is nothing to compare" in page


def test_masking_is_said_where_criteria_differ_most():
    def over(mean):
        return {"mean": mean, "stderr": 0.01, "values": [mean, mean]}

    kept = {"l1": (0.7, 0.2, 0.1), "l2": (0.8, 0.5, 0.1)}
    masked = {
        criterion: {ratio: over(m) for ratio, m in zip(("0.1", "0.2", "0.5"), means, strict=True)}
        for criterion, means in kept.items()
    }
    pruning = {"batch_norm": {"unmasked": over(0.9), "masked": masked}}
    said = reproduce_criteria.masking_sentence(pruning, "batch_norm").replace("\xa0", " ")
    assert (
        "after masking 20 % of the filters, where the accuracy is between 20.00 ± 1.00 % (l1)"
        in said
    )
    assert "and 50.00 ± 1.00 % (l2)." in said
    assert said.endswith(
        " It is 10.00 ± 1.00 % by every criterion after masking 50 % of the filters."
    )
    masked["l1"] = masked["l2"]
    said = reproduce_criteria.masking_sentence(pruning, "batch_norm").replace("\xa0", " ")
    assert "It is 80.00 ± 1.00 % by every criterion after masking 10 %" in said


@pytest.mark.usefixtures("pruning_alone")
def test_a_fifth_criterion_has_no_exact_theory_and_its_own_series(results):
    other = copy.deepcopy(results)
    pruning = other["pruning"]
    pruning["pairs"].append("gm-novel")
    pruning["expected_spearman"]["gm-novel"] = [None] * len(pruning["layers"])
    for name in NORMALIZATIONS:
        for quantity in ("spearman", "overlap"):
            pruning[name][quantity]["gm-novel"] = pruning[name][quantity]["l1-l2"]
        pruning[name]["masked"]["novel"] = pruning[name]["masked"]["gm"]
    page = render(other)
    assert "GM and novel" in page
    assert "no exact theory" in page
    series = criterion_series(pruning["batch_norm"]["masked"]).values()
    assert len({(one.colour, one.marker) for one in series}) == 5


@pytest.mark.usefixtures("pruning_alone")
def test_a_layer_without_a_ranking_is_a_gap(results):
    flawed = copy.deepcopy(results)
    for runs in flawed["pruning"]["batch_norm"]["spearman"].values():
        for run in runs:
            run[4] = float("nan")
    page = render(flawed)
    assert ">–</td>" in page
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).lower()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([0.011, 0.010, 0.012], "significantly higher"),
        ([-0.011, -0.010, -0.012], "significantly lower"),
        ([0.02, 0.0, 0.01], "higher, but not significantly"),
        ([0.02, -0.02, 0.005], "equal to within one standard error"),
        ([0.0, 0.0, 0.0], "exactly equal in every seed"),
        ([0.01], "higher in the only seed"),
        ([-0.01], "lower in the only seed"),
    ],
)
def test_a_difference_is_judged_by_its_standard_error(results, values, sentence):
    other = copy.deepcopy(results)
    other["training"]["difference"] = over_seeds(values)
    assert sentences.judge(over_seeds(values)).startswith(sentence)
    assert sentence in reproduce_training.accuracy_sentence(other)


def test_sentences_follow_the_results(results):
    other = copy.deepcopy(results)
    other["distances"]["unitized"] = np.ones((3, EPOCHS))
    assert "falls by more than a fifth" in reproduce_training.distances_sentence(results)
    assert "does not fall by more than a fifth" in reproduce_training.distances_sentence(other)
    other["training"] |= {"learning_rate": [1.0, 1.0, 0.2, 0.2, 0.02], "drops": [3, 5]}
    assert "rate is divided by 5." in reproduce_training.distances_sentence(other)
    other["odd_point"]["network"]["is_odd"] = False
    other["odd_point"]["tree"]["angle_ends_degrees"] = 71.4
    assert "no point has become odd" in reproduce_claims.odd_point_sentence(other["odd_point"])
    assert "which is not the right angle" in reproduce_claims.odd_point_sentence(other["odd_point"])
    other["training"]["unitized"]["alpha"] = {"min": 0.0, "max": 0.4, "outside": 0.0}
    assert "inside [0, 1]" in reproduce_training.alpha_sentence(other["training"])


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ([True] * 3, "3 of these 3 "),
        ([False, True, False], "1 of these 3 "),
        ([False], "0 of these 1 "),
    ],
)
def test_claims_are_counted_as_recorded_or_not(recorded, said):
    claims = [{"as_recorded": each} for each in recorded]
    assert reproduce_claims.claims_sentence(claims).startswith(f"{said}claims have the recorded")


def test_the_odd_points_have_the_numbers_of_their_own_network_and_tree(results):
    other = copy.deepcopy(results)
    other["odd_point"]["network"] |= {"points": 31, "depth": 1200, "width": 32, "index": 0}
    other["odd_point"]["network"] |= {"projection": np.ones((31, 2)), "norm_ratio": np.full(5, 29)}
    other["odd_point"]["network"] |= {"angle_degrees": 88.0, "spread_degrees": 11.0}
    other["odd_point"]["tree"] |= {"points": 33, "depth": 3400, "index": 1, "norm_ratio": 27.0}
    other["odd_point"]["tree"] |= {"norms": np.ones(33), "inputs": np.arange(33.0)}
    other["odd_point"]["tree"] |= {"angle_ends_degrees": 71.0}
    said = re.sub(r"<svg.*?</svg>|<[^>]*>", " ", reproduce_claims.odd_point(other), flags=re.S)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", unescape(said))]
    of_legend = 31 - 1
    of_sentence = [1200, 29, 88, 11, 27, 71, 11]  # the last 11 is from "Theorem 11"
    of_definition = [1, 2, 1, 80, 45]
    assert numbers == [31, 1200, 32, 33, 3400, *of_definition, *of_sentence, of_legend]


def quick(results):
    """A stand-in for the page of a report, for tests that look only at files."""
    return str(results["settings"])


def test_json_is_strict_and_keeps_every_value(results, tmp_path):
    odd = copy.deepcopy(results)
    odd["pruning"]["batch_norm"]["spearman"]["l1-l2"][0][0] = float("nan")
    odd["claims"][0]["stderr"] = np.float32(0.5)
    write(odd, quick, tmp_path)

    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    assert read["pruning"]["batch_norm"]["spearman"]["l1-l2"][0][0] is None
    assert read["claims"][0]["stderr"] == 0.5
    for part, name in (("training", "learning_rate"), ("distances", "unitized")):
        curves = read[part][name], results[part][name]
        np.testing.assert_allclose(*curves, rtol=5e-6, atol=0)  # curves have six digits


def full_disk(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_an_earlier_report_survives_a_full_disk(results, tmp_path, monkeypatch, broken):
    write(results, quick, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, broken, full_disk)
    with pytest.raises(OSError, match="No space"):
        write(made_up(seeds=2), quick, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_report_is_on_the_disk_before_it_has_its_name(results, tmp_path, monkeypatch):
    sizes, fsync = [], os.fsync

    def watched(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        assert not list(tmp_path.glob("*.html"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write(results, quick, tmp_path)
    written = [tmp_path / name for name in ("results.json", "index.html")]
    assert sizes == [path.stat().st_size for path in written]


def test_an_earlier_report_survives_results_that_cannot_be_shown(results, tmp_path):
    earlier = tmp_path / "index.html"
    earlier.write_text("earlier")
    without_training = {key: results[key] for key in results if key != "training"}
    with pytest.raises(KeyError):
        write(without_training, reproduce_page.render, tmp_path)
    assert list(tmp_path.iterdir()) == [earlier]
    assert earlier.read_text() == "earlier"


def test_the_json_makes_the_page_again(results, page):
    assert reproduce_page.render(json.loads(json.dumps(files.plain(results)))) == page
