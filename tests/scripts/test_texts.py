"""Names from files cannot control a terminal or a page in any command."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import train
from experiments import cli, files, texts
from experiments.pages import (
    analysis as analysis_page,
    compiled as compiled_page,
    geometry as geometry_page,
    prune as prune_page,
    reproduce as reproduce_page,
    shift as shift_page,
    theorems as theorem_page,
    train as train_page,
)
from experiments.progress import print_above, progress_bar
from tests.support.made_up_results import made_up, made_up_shift, made_up_theorems, pruned_networks

SCRIPTS = Path(train.__file__).parent
HOSTILE = "[bold]x[/red]:smile: a\x1b]0;owned\x07 b\u202egnp\u2028 <script>c</script> $\\frac{"
CHOICES = (
    "pairs",
    "paper",
    "standing",
    "form",
    "kind",
    "source",
    "relation",
    "page",
    "side",
    "fails",
)
# A shorter text than HOSTILE, without a formula.
ATTACK = "\x1b]0;owned\x07 b\u202egnp\u2028 <script>"
SHOWN = "[bold]x[/red]:smile: a\\x1b]0;owned\\x07 b\\u202egnp\\u2028 <script>c</script> $\\frac{"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f\u2028\u202e]")


def hostile(value: Any, attack: str = HOSTILE) -> Any:
    """Append `attack` to all texts in results, except those that select what a page shows."""
    if isinstance(value, str):
        return value + attack
    if isinstance(value, dict):
        return {k: v if k in CHOICES else hostile(v, attack) for k, v in value.items()}
    return [hostile(item, attack) for item in value] if isinstance(value, list) else value


def train_results():
    line = {"epoch": 1, "loss": 0.5, "accuracy": 0.9, "learning_rate": 0.1}
    return {
        "recipe": {"model": "mlp", "dataset": "digits", "normalization": "none"}
        | {"drops": [], "schedule": "drops", "epochs": 1, "test_scales": [1]},
        "seeds": [[line | {"seconds": 1.0, "images_per_second": 9.0}]],
        "accuracy": {"median": 0.9, "mean": 0.9, "stderr": None},
        "evaluations": [{}],
        "mesh": {"shape": {"data": 1}, "device": "cpu"},
        "environment": {"device": "cpu"},
        "vmapped seeds": 1,
        "command": "python scripts/train.py",
        "date": "2026-11-21",
        "note": "A note.",
        "seconds": 1.0,
    }


def committed(name):
    """The committed results of a command, from docs/results."""
    return json.loads((SCRIPTS.parent / "docs/results" / name / "results.json").read_text())


PAGES = {
    "analyze": lambda: analysis_page.render(hostile(committed("resnet20"), ATTACK)),
    "compiled": lambda: compiled_page.render(hostile(committed("compiled"), ATTACK)),
    "geometry": lambda: geometry_page.render(hostile(committed("geometry"), ATTACK)),
    "shift": lambda: shift_page.render(
        made_up_shift()
        | {k: hostile(made_up_shift()[k], ATTACK) for k in ("command", "environment", "data")}
    ),
    "train": lambda: train_page.render(hostile(train_results())),
    "prune": lambda: prune_page.render(hostile({**pruned_networks(), "ratios": [0.5]})),
    "reproduce": lambda: reproduce_page.render(hostile(files.plain(made_up()), ATTACK)),
    "theorems": lambda: theorem_page.render(hostile(made_up_theorems(), ATTACK), SCRIPTS),
}


@pytest.mark.parametrize("name", PAGES)
def test_no_text_of_results_controls_a_page(name):
    text = PAGES[name]()
    assert not CONTROLS.search(text)
    assert "<script" not in text
    assert "\\x1b]0;owned\\x07 b\\u202egnp\\u2028 &lt;script&gt;" in text


@pytest.mark.parametrize("length", [39, 10_000])
def test_a_long_name_breaks_neither_figures_nor_the_page(length):
    """If a title leaves no room for the axes, matplotlib warns, and the test fails."""
    results = committed("resnet20")
    long = {layer["name"]: layer["name"] + length * "x" for layer in results["layers"]}
    text = json.dumps(results)
    for name, longer in long.items():
        text = text.replace(f'"{name}"', f'"{longer}"')
    page = analysis_page.render(json.loads(text))
    assert 49 * "x" not in page
    assert "xxxx" in page


@pytest.mark.parametrize("left", [(), ("layer",)])
@pytest.mark.parametrize("length", [9, 39, 200])
def test_a_table_prints_every_name_whole(length, left, capsys):
    """Names of layers often differ only in their last characters."""
    names = [length * "x" + end for end in ("conv1", "conv2")]
    cli.show_table(
        "", ["layer", *"abcdefgh"], [[name, *8 * ("0.123",)] for name in names], left=left
    )
    lines = capsys.readouterr().out.splitlines()
    column = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert column == "".join(names)


@pytest.mark.parametrize("length", range(6))
def test_a_shortened_name_has_its_ends(length):
    name = "layer10.conv"[: 3 * length]
    short = texts.shorten(name, 8)
    assert len(short) == min(len(name), 8)
    assert short == name or (short[0], short[-1], short[3]) == (name[0], name[-1], "…")


def test_no_text_controls_a_terminal(capsys):
    cli.say(HOSTILE)
    cli.show_table(HOSTILE, ["layer", HOSTILE], [[HOSTILE, HOSTILE]], min_width=300)
    cli.console(min_width=300).print(HOSTILE.replace("\x1b", "").replace("\x07", ""))
    with progress_bar("numbers") as progress:
        progress.add_task("[bold]x[/red]:smile:", total=1, numbers="[/]")
        print_above(progress, HOSTILE)
    said = capsys.readouterr()
    assert said.out.count(SHOWN) == 5
    assert said.err.count("[bold]x[/red]:smile:") == 2
    assert not CONTROLS.search(said.out.replace("\u2028", "").replace("\u202e", ""))


def test_printable_texts_stay_as_they_are():
    text = "layer1.0.conv/kernel · σ² ≤ 3 – 漢字"
    assert texts.printable(text) == text
    assert texts.html("a < b\n& c") == "a &lt; b\n&amp; c"


# Only these modules are allowed to print or escape texts.
HOMES = ("cli.py", "progress.py", "texts.py")


def uses(tree):
    """The places where a module prints or escapes texts itself, instead of by `cli`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name in ("Console", "Progress", "TextColumn") or ast.unparse(function) == "print":
                yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.ImportFrom) and node.module == "html":
            yield f"{node.lineno}: html"


def test_only_their_homes_print_and_escape():
    paths = [path for path in SCRIPTS.rglob("*.py") if path.name not in HOMES]
    found = {path.name: [*uses(ast.parse(path.read_text()))] for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(list(uses(ast.parse("print(1)\nfrom html import escape\nrich.Console()")))) == 3
