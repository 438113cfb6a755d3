"""`make results-long` plans only commands that exist, and ends and resumes cleanly."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from claims.unitization import tables
from experiments import files
from experiments.recipes import PRESETS
from experiments.signals import Interruption
from tests.support.small_runs import without_times
from tools import long_plan, results_long
from tools.long_plan import Job, Network
from tools.results import ROOT
from tools.results_long import Workspace

JOBS = long_plan.jobs(accelerated=False)
NETWORKS = list(dict.fromkeys(job.network for job in JOBS))


def printed(pattern):
    """The first printed number of each network whose name matches the pattern."""
    fitting = [network for network in NETWORKS if re.fullmatch(pattern, network.name)]
    return [float(network.printed.split()[0]) for network in fitting]


def test_printed_numbers_are_those_of_the_claims():
    depths = printed(r"cifar10-resnet\d+-(batch_norm|unitized)")
    assert depths == tables.CIFAR_10[:2].ravel().tolist()
    assert printed("cifar10-resnet110-micro-[gc].*") == tables.GROUP_NORM.tolist()
    others = printed("cifar10-resnet110-micro-(batch_norm|unitized)")
    assert others == [tables.BATCH_NORM, tables.UNITIZED]


def test_commands_of_the_plan_exist_and_every_network_gets_all_of_its_seeds():
    assert len({network.name for network in NETWORKS}) == len(NETWORKS)
    for network in NETWORKS:
        script, first, *_ = network.command.split()
        assert (ROOT / "scripts" / script).is_file()
        if script == "train.py":
            assert PRESETS[first][1].dataset == network.dataset
        seeds = [job.seeds for job in JOBS if job.network == network]
        assert seeds == sorted(seeds)
        assert seeds[-1] == network.runs


def test_a_cpu_trains_what_it_can_and_a_network_is_pruned_after_it_was_trained(tmp_path):
    for network in NETWORKS:
        (tmp_path / network.dataset).mkdir(exist_ok=True)
    cpu, gpu = (Workspace(tmp_path, tmp_path / "out", on) for on in (False, True))
    able = [job.network.name for job in JOBS if results_long.refusal(job, cpu) is None]
    assert able[:2] == ["mnist-moments", "depth"]
    assert set(able[2:]) == {"cifar10-resnet20-batch_norm", "cifar10-resnet20-unitized"}
    assert {*long_plan.jobs(accelerated=True)} == {*JOBS}
    assert long_plan.jobs(accelerated=True)[0].network.name == "cifar10-resnet20-batch_norm"
    refused = {results_long.refusal(job, gpu) for job in JOBS}
    assert refused == {None, *(f"after {n.after}" for n in NETWORKS if n.after)}
    (tmp_path / "cifar100").rmdir()
    assert "cifar100 is not in --data-dir" in {results_long.refusal(job, gpu) for job in JOBS}


def accuracy(results):
    return f"{results['accuracy']} %"


def network(name, **changes):
    return Network(name, f"Table {name}", "none.py", "99 %", accuracy, "", hours=1.0, **changes)


@pytest.fixture
def made_up(monkeypatch):
    """The programs that replace the commands of networks, by the name of the network."""
    programs = {}

    def command(job, workspace):
        folder = str(workspace.out / job.network.name)
        return [sys.executable, "-c", programs[job.network.name], folder, str(job.seeds)]

    monkeypatch.setattr(results_long, "command", command)
    monkeypatch.setattr(results_long, "TICK", 0.01)
    return programs


WRITES = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
result = {"accuracy": 7, "seeds": [[]] * int(sys.argv[2]), "note": "made up"}
(folder / "part").write_text(json.dumps(result))
(folder / "part").rename(folder / "results.json")
"""
WAITS = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(*_):
    (folder / "saved").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, save)
folder.mkdir()
(folder / "ready").touch()
time.sleep(600)
"""


def test_networks_are_run_once_a_failure_is_named_and_the_others_go_on(made_up, tmp_path):
    workspace = Workspace(tmp_path, tmp_path / "out", accelerated=False)
    made_up |= {"a": WRITES, "b": "import sys; print('x'); sys.exit('error: no b')", "c": WRITES}
    networks = {name: network(name, runs=2) for name in "abc"}
    jobs = [Job(networks[name], seeds) for seeds in (1, 2) for name in "abc"]
    failed = results_long.run_all(jobs, workspace, 600.0, Interruption())
    assert failed == {"b": "failed with status 1; error: no b"}
    # A new run would fail, but finished jobs do not run again.
    made_up["a"] = made_up["c"] = "1 / 0"
    assert results_long.run_all(jobs, workspace, 600.0, Interruption()) == failed
    rows = results_long.write([*networks.values()], workspace, failed)
    assert rows[0] == ["Table a", "99 %", "7 %", "made up", "0 of 2 seeds"]
    assert rows[1] == ["Table b", "99 %", "not run", "", "failed with status 1; error: no b"]
    found = json.loads((workspace.out / "c.json").read_text())
    assert (found["ours"], found["printed"], found["accuracy"]) == ("7 %", "99 %", 7)
    assert len((workspace.out / "index.md").read_text().splitlines()) == 5


def test_when_time_is_over_the_command_saves_and_nothing_else_is_begun(made_up, tmp_path):
    workspace = Workspace(tmp_path, tmp_path, accelerated=False)
    made_up |= {"a": WAITS, "b": WRITES}
    ready = tmp_path / "a" / "ready"
    assert results_long.run(Job(network("a"), 0), workspace, ready.exists) is None
    assert (tmp_path / "a" / "saved").exists()
    assert results_long.run_all([Job(network("b"), 0)], workspace, 0.0, Interruption()) == {}
    assert not (tmp_path / "b").exists()
    interrupted = Interruption()
    interrupted.handle(signal.SIGTERM, None)
    assert results_long.run_all([Job(network("b"), 0)], workspace, 600.0, interrupted) == {}
    assert not (tmp_path / "b").exists()


KILLED = """
import sys
from pathlib import Path
from tools import results_long
from tests.tools.test_results_long import WAITS, Job, Workspace, network
results_long.command = lambda job, workspace: [sys.executable, "-c", WAITS, sys.argv[1] + "/a"]
results_long.run(Job(network("a"), 0), Workspace(Path(), Path(sys.argv[1]), False), lambda: False)
"""

# `os.fork` warns if JAX is loaded. The command does not load JAX, but other tests can load it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork")


def test_a_command_saves_and_ends_when_its_parent_is_killed(tmp_path):
    path = os.pathsep.join([*sys.path, str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=environment) as parent:
        wait_for(tmp_path / "a" / "ready")
        parent.kill()
    wait_for(tmp_path / "a" / "saved")


def wait_for(path):
    start = time.monotonic()
    while not path.exists():
        assert time.monotonic() < start + 60, f"{path.name} did not come"
        time.sleep(0.01)


def test_a_folder_that_is_still_in_use_is_waited_for(made_up, tmp_path):
    """The folder is locked, as by a command that outlives its killed parent."""
    workspace = Workspace(tmp_path, tmp_path, accelerated=False)
    made_up["a"] = WRITES
    with files.in_use(tmp_path / "a"):
        over = iter([False, False, False, True])
        assert results_long.run(Job(network("a"), 1), workspace, over.__next__) is None
        assert list(over) == []
        assert not (tmp_path / "a" / "results.json").exists()
    assert results_long.run(Job(network("a"), 1), workspace, lambda: False) is None
    assert (tmp_path / "a" / "results.json").exists()


def test_a_network_in_training_is_shown_by_its_epochs_and_estimated_by_their_time(tmp_path):
    workspace, job = Workspace(tmp_path, tmp_path, accelerated=True), Job(network("a", runs=5), 3)
    assert results_long.compare(job.network, workspace)["status"] == "not run"
    assert results_long.hours_left(job, workspace) is None
    assert results_long.hours_left(job, workspace._replace(accelerated=False)) == 3.0
    (tmp_path / "a" / "seed-0").mkdir(parents=True)
    (tmp_path / "a" / "recipe.json").write_text('{"epochs": 10}')
    lines = [{"accuracy": k / 10, "seconds": 36.0 * k} for k in (1, 2, 3)]
    lines.append({"accuracy": 0.4, "seconds": 5.0})  # after a restart, `seconds` begins at 0
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "a" / "seed-0" / "metrics.jsonl").write_text(text)
    found = results_long.compare(job.network, workspace)
    assert found["status"] == "seed 0, 4 of 10 epochs"
    assert (found["ours"], found["differs"]) == ("40.00 %", "4 of 10 epochs of one seed")
    assert results_long.hours_left(job, workspace) == pytest.approx(26 * 0.01)


@pytest.mark.slow
def test_a_network_that_is_interrupted_resumes_and_ends_with_the_same_numbers(tmp_path):
    small = Network("a", "", "train.py digits-mlp --epochs 12 --drops", "", accuracy, "", runs=1)
    job, folders = Job(small, 1), (tmp_path / "whole", tmp_path / "parts")
    whole, parts = (Workspace(tmp_path, folder, accelerated=True) for folder in folders)
    assert results_long.run(job, whole, lambda: False) is None
    metrics = parts.out / "a" / "seed-0" / "metrics.jsonl"
    assert results_long.run(job, parts, metrics.exists) is None
    assert not results_long.is_done(job, parts.out)
    assert results_long.status(small, parts).startswith("seed 0, ")
    assert results_long.run_all([job], parts, 600.0, Interruption()) == {}
    assert results_long.is_done(job, parts.out)
    expected, found = (
        results_long.results_of(small, workspace.out) for workspace in (whole, parts)
    )
    assert expected
    assert found
    assert without_times(found["seeds"][0]) == without_times(expected["seeds"][0])
