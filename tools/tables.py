"""Write the documentation's tables and measured numbers, from the files of docs/results.

    python -m tools.tables               # tables and numbers from JSON files: seconds
    python -m tools.tables --computed    # also tables of architectures, which are pruned: minutes

Each generated text on a page stands between two marks, `<!-- KIND: ARGUMENT -->` and `<!-- end of
KIND -->`. KIND is a key of `WRITERS` or `COMPUTED`. A number has the mark `<!-- number: FILE PATH
FORMAT -->`, such as `<!-- number: train/a/results.json seeds/0/-1/accuracy .2% -->`.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import shift_estimators
from experiments.measures.repair import of_images, of_networks
from experiments.pages import atlas
from tools import (
    accuracy_table,
    bench_tables,
    language_table,
    repair_tables,
    scale_table,
    training_table,
)

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"
RESULTS = DOCS / "results"
OPENING = r"<!-- (?!end of)([a-z]+):? ?([^>]*?) -->"
MARK = re.compile(rf"({OPENING})((?:(?!<!-- \2).)*?)(?=<!-- end of \2 -->)", re.DOTALL)


def estimators(_: str) -> str:
    """The table of four estimates of the earth mover distance."""
    head = "| distributions | W₁ | W₁ of samples | slices | trained lower bound | Algorithm 3 |"
    pairs = load_result("shift/estimators.json")["pairs"]
    rows = (f"| {' | '.join(shift_estimators.row(pair))} |" for pair in pairs)
    return table(f"{head}\n| --- | --- | --- | --- | --- | --- |\n", list(rows))


def drops(_: str) -> str:
    """The table of ratios: distances after a drop of the learning rate over distances before."""
    statistics = {"whole set": "whole training set", "running": "running averages"}
    found = load_result("shift/results.json")["findings"]["drops"]
    cells: dict[tuple[str, str], list[str]] = {}
    for one in (one for one in found if one["kind"] in statistics):
        name = f"{one['normalization'].replace('_', ' ')}, {one['order']}"
        ratio = f"{one['ratio']['mean']:.2f} ± {one['ratio']['stderr']:.2f}"
        cells.setdefault((name, statistics[one["kind"]]), []).append(ratio)
    epochs = " | ".join(f"from epoch {epoch} on" for epoch in sorted({o["epoch"] for o in found}))
    header = f"| networks | statistics | {epochs} |\n| --- | --- | --- | --- | --- |\n"
    return table(header, [f"| {' | '.join((*key, *row))} |" for key, row in cells.items()])


def scale(_: str) -> str:
    """The table that compares training on one device with several devices and processes."""
    return table(scale_table.HEADER, scale_table.table(load_result("scale.json")["rows"]))


def training(_: str) -> str:
    """The table of training steps that are compiled for TPU pods."""
    return table(training_table.HEADER, training_table.rows())


def accuracies(preset: str) -> str:
    """The table of the accuracies of a preset's networks, with a row for each normalization."""
    files = {name: f"train/{preset}-{name}/results.json" for name in accuracy_table.NAMES}
    found = {name: load_result(f) for name, f in files.items() if (RESULTS / f).exists()}
    return "\n\n" + "\n".join(accuracy_table.lines(found)) + "\n\n"


def bench(argument: str) -> str:
    """The benchmark tables of a subject, or only the tables whose titles begin with a text."""
    subject, _, titles = argument.partition(", ")
    return "\n\n" + bench_tables.tables(load_result(f"bench/{subject}.json"), subject, titles)


def language(_: str) -> str:
    """The table of pruned language models."""
    results = load_result("language/compare.json")
    return "\n\n" + "\n".join(language_table.lines(results)) + "\n\n"


def repair(network: str) -> str:
    """The table of a network's repairs."""
    values = of_networks(load_result("repair/digits.json"))
    values |= of_images(load_result("repair/resnet20.json"))
    return "\n\n" + "\n".join(repair_tables.lines(values, network)) + "\n\n"


def architectures(_: str) -> str:
    """The table of architectures. To make the table, each architecture is pruned."""
    from tools import architecture_table

    return table(architecture_table.HEADER, architecture_table.rows())


def streams(_: str) -> str:
    """The table of residual streams. To make the table, each network is pruned."""
    from tools import stream_table

    return table(stream_table.HEADER, stream_table.rows())


def primitives(_: str) -> str:
    """The table of primitives that pruning supports."""
    from tools import primitive_table

    return table(primitive_table.HEADER, primitive_table.rows())


def verdicts(_: str) -> str:
    """A text with the number of claims that have each verdict."""
    claims = load_result("theorems/results.json")["claims"]
    count = Counter(claim["standing"] for claim in claims)
    return (
        f"of {len(claims)} statements of the papers {count['true']} are true, "
        f"{count['misprint']} misprinted, {count['false in a case']} false in a case, "
        f"{count['false']} false and {count['not tested']} not tested"
    )


def normalizers(_: str) -> str:
    """The table of the memory traffic of eight normalizers."""
    head, rows = atlas.traffic_rows(load_result("compiled/normalizers.json"))
    header = f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n"
    return table(header, [f"| {' | '.join(row)} |" for row in rows])


def number(argument: str) -> str:
    """A number in a JSON file as text; the argument gives the file, the path and the format."""
    file, path, form = argument.split(" ")
    value: Any = load_result(file)
    for step in path.split("/"):
        value = value[int(step) if isinstance(value, list) else step]
    return format(value, form).replace("%", " %")


WRITERS: dict[str, Callable[[str], str]] = {
    "accuracies": accuracies,
    "bench": bench,
    "drops": drops,
    "estimators": estimators,
    "language": language,
    "normalizers": normalizers,
    "number": number,
    "primitives": primitives,
    "repair": repair,
    "scale": scale,
    "training": training,
    "verdicts": verdicts,
}
COMPUTED: dict[str, Callable[[str], str]] = {"architectures": architectures, "streams": streams}


def write_marks(page: str, writers: dict[str, Callable[[str], str]]) -> str:
    """The text of a page after the texts between its marks are written again by `writers`."""

    def replaced(found: re.Match[str]) -> str:
        mark, kind, argument, before = found.groups()
        return mark + (writers[kind](argument) if kind in writers else before)

    written, count = MARK.subn(replaced, page)
    if count != len(re.findall(OPENING, page)):
        ended = {found[1] for found in MARK.finditer(page)}
        open_ones = [found[0] for found in re.finditer(OPENING, page) if found[0] not in ended]
        raise ValueError(f"every mark needs its end; {open_ones[0]!r} has no '<!-- end of ... -->'")
    return written


def pages() -> list[Path]:
    """The paths of the README and the documentation pages, if they contain marks."""
    every = [README, *DOCS.glob("*.md"), RESULTS / "README.md"]
    return [page for page in every if MARK.search(page.read_text(encoding="utf-8"))]


@cache
def load_result(file: str) -> Any:
    """The contents of a file in docs/results."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def table(header: str, rows: Sequence[str]) -> str:
    """A table with its header, as the text to insert between two marks."""
    return "\n\n" + header + "\n".join(rows) + "\n\n"


def table_of(page: Path, header: str) -> list[str]:
    """The lines of a table on a page, without the table's header."""
    return page.read_text(encoding="utf-8").split(header)[1].split("\n\n")[0].splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--computed", action="store_true", help="also write tables of architectures (minutes)"
    )
    writers = WRITERS | (COMPUTED if parser.parse_args().computed else {})
    if "architectures" in writers:
        import jax

        jax.config.update("jax_enable_x64", True)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(write_marks(text, writers), encoding="utf-8")


if __name__ == "__main__":
    main()
