"""Load hostile weight files in processes with limited memory and time, and measure each load.

    python -m tools.bounded_loads --mutated 2000 --seed 0

A load is allowed one second of processor time, and memory of 64 MiB plus four times the size of the
file. The loader must load the file or refuse the file with one sentence. The tool prints a line for
each load that breaks a rule, then one JSON object, and exits with 1 if any load breaks a rule. Each
file is loaded in a fork of the same process, so Python, JAX and h5py are imported only once.
"""

import argparse
import ctypes
import gc
import json
import os
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from pruning.weights import WeightsError, load
from tests.support.crafted_files import crafted
from tests.support.mutated_files import mutated, originals

SECONDS, MEMORY, TIMES = 1.0, 64 * 2**20, 4


class Outcome(NamedTuple):
    name: str
    size: int
    seconds: float
    memory: int
    said: str  # the message of the loader; empty if the file was loaded

    def fault(self) -> str:
        """The rule that the load breaks, or an empty text if the load breaks no rule."""
        if self.seconds > SECONDS:
            return "too slow"
        if self.memory > MEMORY + TIMES * self.size or "MemoryError" in self.said:
            return "too large"
        sentence = "must" in self.said and "\n" not in self.said and len(self.said) < 600
        return "" if not self.said or sentence else "no sentence"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutated", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the names of the files to load")
    parser.add_argument("--all", action="store_true", help="print a line for every file")
    options = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        # The valid files are loaded first, without a measurement, because the first loads import
        # modules.
        for name, content in originals().items():
            load(written(folder, name, content), dense=True)
        gc.collect()
        gc.freeze()  # the garbage collector skips these objects, so forks can share their memory
        for files in (crafted(), mutated(options.mutated, options.seed)):
            for name, content in files:
                if options.only in name:
                    path = written(folder, name, content)
                    size = len(content)
                    del content
                    outcomes.append(measure(path, size))
                    path.unlink()
                    report(outcomes[-1], options.all)
    print(json.dumps(summary(outcomes)))
    return any(outcome.fault() for outcome in outcomes)


def written(folder: str, name: str, content: bytes) -> Path:
    path = Path(folder) / name
    path.write_bytes(content)
    return path


def measure(path: Path, size: int) -> Outcome:
    """Load one file in its own process, which the kernel ends after five seconds of CPU time."""
    # Freed memory is returned to the system, so that the peak memory is the memory of the measured
    # load alone.
    ctypes.CDLL(None).malloc_trim(0)
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns that its threads do not survive a fork
        child = os.fork()
    if not child:
        os.write(sender, json.dumps(attempted(path, size)).encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    if not found:
        killed = f"killed by signal {os.waitstatus_to_exitcode(status)}"
        return Outcome(path.name, size, 99.0, 0, killed)
    return Outcome(path.name, size, *json.loads(found))


def attempted(path: Path, size: int) -> tuple[float, int, str]:
    """Load a file in this process, and return the CPU seconds, the bytes and the error message.

    The limits of this process are higher than the limits for a load, so that a load that exceeds
    its limits is still measured.
    """
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    space = memory("VmSize") + 2 * (MEMORY + TIMES * size)
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    Path("/proc/self/clear_refs").write_text("5")  # this resets the peak to the current memory
    before, start, said = memory("VmRSS"), time.process_time(), ""
    try:
        weights = load(path, dense=True, vectors=True)
        assert all(array.size for array in weights.values())
    except WeightsError as error:
        said = str(error)
    except BaseException as error:
        said = f"{type(error).__name__}\n{error}"
    return time.process_time() - start, memory("VmHWM") - before, said


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def report(outcome: Outcome, every: bool) -> None:
    if every or outcome.fault():
        print(
            f"{outcome.fault() or 'ok':12}{outcome.name:45}{outcome.size / 1e6:9.3f} MB"
            f"{outcome.seconds:8.3f} s{outcome.memory / 2**20:8.1f} MiB  {outcome.said[:150]!r}",
            flush=True,
        )


def summary(outcomes: list[Outcome]) -> dict:
    slowest = max(outcomes, key=lambda o: o.seconds)
    largest = max(outcomes, key=lambda o: o.memory - TIMES * o.size)
    return {
        "files": len(outcomes),
        "crafted": sum(not o.name[0].isdigit() for o in outcomes),
        "loaded": sum(not o.said for o in outcomes),
        "faults": [f"{o.name}: {o.fault()}" for o in outcomes if o.fault()],
        "slowest": {"file": slowest.name, "seconds": round(slowest.seconds, 3)},
        "largest": {
            "file": largest.name,
            "MiB beyond 4 times the file": round(
                (largest.memory - TIMES * largest.size) / 2**20, 1
            ),
        },
    }


if __name__ == "__main__":
    sys.exit(main())
