"""Select and measure the claims of three papers, and record the results, for scripts."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

import geometry
from claims import ALL, OWN, PAPERS
from experiments.cli import InputError
from experiments.measures.finished import Finished
from experiments.progress import progress_bar
from geometry import claims
from geometry.claims import Claim, Measurement, Verdict

ROOT = Path(geometry.__file__).parents[1]
# names of the functions whose random draws are compiled and computed within seconds
QUICK = {"three_filters", "next_layers", "lemma_3", "norm_ratios", "gaussian_rows"}
# claims whose checks are computed in milliseconds
COMPUTED = {"Section 5, the bound of the trained algorithm"}
QUICK_PRECISION = 1.5


def quick_results(seed: int) -> list[dict[str, Any]]:
    """Check the claims that `quick_claims` returns, and return their results."""
    verdicts = claims.check_all(quick_claims(), jax.random.key(seed), precision=QUICK_PRECISION)
    return [result(verdict) for verdict in verdicts]


def quick_claims() -> list[Claim]:
    """The claims that a quick check rejects as printed, after their other checks are removed."""
    trimmed = (
        replace(
            claim,
            checks=[
                part
                for part in claim.checks
                if part.function.__name__ in QUICK or claim.name in COMPUTED
            ],
        )
        for claim in ALL
    )
    return [claim for claim in trimmed if any(part.form == "rejected" for part in claim.checks)]


def select(paper: str | None, pattern: str | None) -> tuple[Claim, ...]:
    """The claims of a paper that match `pattern`, such as "Theorem 1" or a part of a name."""
    papers = PAPERS | OWN
    if paper is not None and paper not in papers:
        raise InputError(f"--paper must be one of {', '.join(papers)}; got {paper}")
    candidates = ALL if paper is None else papers[paper]
    try:
        return claims.about(candidates, pattern or "")
    except ValueError as error:
        message = str(error).replace("text must", "--claim must")
        raise InputError(f"{message}; --list shows all names") from error


def listing(selected: Sequence[Claim]) -> Table:
    """A table with a row for each claim, which shows the claim's recorded verdict."""
    rows = Table(title="What three papers claim")
    for column in ("paper", "claim", "recorded"):
        rows.add_column(column, overflow="fold")
    keys = {members[0].paper: key for key, members in (PAPERS | OWN).items()}
    for claim in selected:
        rows.add_row(keys[claim.paper], claim.name, claim.standing)
    return rows


def first_devices(count: int | None) -> Sequence[Any]:
    """The first `count` devices; all devices if `count` is None.

    If JAX has not started a device yet, the CPU is split into `count` devices.
    """
    # With too few threads, CPU programs that call LAPACK would wait for each other forever.
    os.environ.setdefault("NPROC", str(2 * max(count or 1, 4, os.cpu_count() or 1)))
    if count is not None:
        # if the devices exist already, their number cannot be changed
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices()
    if count is not None and count > len(devices):
        raise InputError(
            f"--devices must be at most {len(devices)}, the number of available devices; got "
            f"{count}"
        )
    return devices[:count]


def measure(
    selected: Sequence[Claim], precision: float, seed: int, devices: Sequence[Any], path: Path
) -> dict[str, Measurement]:
    """Measure all numbers that the claims need; numbers of an earlier run are read from `path`."""
    finished = Finished(path, [precision, seed])
    measured = {name: Measurement(**fields) for name, fields in finished.parts.items()}
    missing = claims.sources(selected).keys() - measured.keys()
    with progress_bar() as progress:
        task = progress.add_task("measuring", total=len(missing))

        def save(name: str, measurement: Measurement) -> None:
            progress.update(task, advance=1, description=name.replace("_", " "))
            with writing(path.parent, f"{path.name} has the earlier measurements"):
                path.parent.mkdir(parents=True, exist_ok=True)
                finished.add(name, measurement._asdict())

        return claims.measure(
            selected,
            jax.random.key(seed),
            precision=precision,
            devices=devices,
            threads=min(4, os.cpu_count() or 1) if len(devices) == 1 else 1,
            measured_before=measured,
            on_done=save,
        )


@contextmanager
def writing(out: Path, remains: str) -> Iterator[None]:
    """A context that turns an `OSError` into an `InputError`; its message ends with `remains`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{out} must be writable for the results; {error.strerror or error}: {remains}"
        ) from error


def result(verdict: Verdict) -> dict[str, Any]:
    """A claim and its findings, in the format of results.json."""
    claim = verdict.claim
    return {
        "paper": claim.paper,
        "name": claim.name,
        "statement": claim.statement,
        "printed": claim.printed,
        "corrected": claim.corrected,
        "standing": claim.standing,
        "fault": claim.fault,
        "covers": claim.covers,
        "objects": claims.objects(claim),
        "remark": claim.remark and claim.remark._asdict(),
        "why": claim.why,
        "results": [sentence_of(result) for result in claim.results],
        "reason": claim.reason,
        "printed_holds": verdict.printed_holds,
        "corrected_holds": verdict.corrected_holds,
        "as_recorded": verdict.as_recorded,
        "verdict": verdict.text,
        "checks": [_check_result(finding) for finding in verdict.findings],
    }


def sentence_of(result: claims.Result) -> dict[str, str]:
    """Our result on trained networks, the result in the paper, and the file of our result.

    If `result.ours` is a function, the function gets the contents of the file and returns our
    result.
    """
    ours = result.ours
    if callable(ours):
        ours = ours(json.loads((ROOT / result.page).read_text(encoding="utf-8")))
    return {"ours": ours, "printed": result.printed, "page": result.page}


def _check_result(finding: claims.Finding) -> dict[str, Any]:
    measured = finding._asdict()
    check, prediction = measured.pop("check"), measured.pop("predicted")
    return {
        "what": check.what,
        "form": check.form,
        "kind": check.kind,
        "source": _file(check.function),
        "prediction": prediction,
        "as_recorded": finding.as_recorded,
        **_bounds(check, prediction),
        **measured,
    }


def _file(function: Callable) -> str:
    """The file in the repository that defines a function."""
    return f"scripts/{function.__module__.replace('.', '/')}.py"


def _bounds(check: claims.Check, prediction: float) -> dict[str, Any]:
    """The relation, the tolerance, the side and the bound with which a check compares its number.

    If the check compares computed values, `side` and `against` are None.
    """
    if isinstance(check, claims.Computed):
        computed = {"relation": check.relation, "tolerance": check.tolerance}
        return computed | {"side": None, "against": None}
    against = 1.1 * prediction if check.against is None else claims.number(check.against)
    tolerance = claims.number(check.within)
    return {"relation": "moment", "tolerance": tolerance, "side": check.side, "against": against}
