"""Prune random networks of many kinds, and compare each pruned network with a masked network.

    python -m tools.random_networks --count 10000 --seed 0 [--transformers]

Both networks must have equal outputs, or the library must refuse the network with an error message.
The tool prints how many networks were equal, how many had nothing to prune, and how many were
refused with each message. The tool also describes each network whose outputs were wrong, and
each network whose outputs differed only by rounding errors.
"""

import argparse
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"

import jax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments import cli, files
from tests.support.random_networks import (
    WRONG,
    Outcome,
    outcome,
    random_network,
    random_transformer,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="number of networks (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first network (default 0)")
    parser.add_argument(
        "--transformers",
        action="store_true",
        help="draw transformers, whose norms sum over channels",
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the outcomes")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    draw = random_transformer if options.transformers else random_network
    start, outcomes, kinds = time.time(), [], Counter()
    seeds = range(options.seed, options.seed + options.count)
    for seed in track(seeds, "cutting", console=Console(stderr=True)):
        network = draw(seed)
        outcomes.append(outcome(network, seed, resize=options.transformers))
        kinds.update(network.kinds)
        if outcomes[-1].kind in (*WRONG, "rounding"):
            print(f"seed {seed}: {', '.join(network.kinds)}: {outcomes[-1]}", flush=True)
    rows = _rows(outcomes)
    table = Table(*rows[0], title="Random networks")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    print(f"{len(kinds)} kinds of block; {time.time() - start:.0f} s")
    if options.out:
        header = cli.provenance(__file__) | {"seconds": time.time() - start, "seed": options.seed}
        found = {"kinds of block": len(kinds), "networks": options.count, "outcomes": rows}
        files.write_results(options.out, header | found)
    sys.exit(any(found.kind in WRONG for found in outcomes))


def _rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """For each outcome and message, a row with the number of networks and the largest error."""
    counts = Counter((found.kind, _sentence(found.said)) for found in outcomes)
    rows = []
    for (kind, said), count in sorted(counts.items(), key=lambda row: (row[0][0], -row[1])):
        errors = [x.error for x in outcomes if (x.kind, _sentence(x.said)) == (kind, said)]
        worst = float(f"{max(errors):.1e}")
        row = {"outcome": kind, "sentence": said, "networks": count, "worst error": worst}
        rows.append(row)
    return rows


def _sentence(said: str) -> str:
    """A shortened error message, in which "…" replaces each number and each place in the code."""
    changes = said.partition(": change apply")[0]
    changes = changes.removeprefix("apply must compute the same function with ")
    return re.sub(r" at \S+\.py:\S+ \(\S+\)|[-.\d]*\d\S*", "…", changes)


if __name__ == "__main__":
    main()
