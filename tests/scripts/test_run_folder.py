"""The files of a run are neither deleted nor mixed with files of another run."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import covariate_shift
import reproduce
from experiments import cli, files
from experiments.cli import InputError
from experiments.measures import report, shift
from experiments.pages import page
from experiments.recipes import replace
from experiments.training import (
    checkpoints,
    checks,
    finite,
    loop,
    processes,
    run as training_run,
    run_folder,
    trainer,
)
from jaxnorm import internal
from tests.support.small_runs import SMALL, View, compiled, train_one, without_times

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module")
def half(one, tmp_path_factory):
    """The folder of a run interrupted after two checkpoints, and the lines of a complete run."""
    folder = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "BETWEEN_CHECKPOINTS", 0)
        with pytest.raises(cli.StoppedError):
            train_one(one, folder / "half", View(interrupt_after=10))
        return folder / "half", train_one(one, folder / "whole")


@pytest.fixture
def run(half, tmp_path):
    return shutil.copytree(half[0], tmp_path / "run")


def steps(folder):
    return sorted(path.name for path in (folder / "checkpoints-0").iterdir())


def test_the_newest_whole_checkpoint_resumes_and_the_damaged_one_is_renamed(one, half, run):
    assert steps(run) == ["10", "9"]
    (run / "checkpoints-0" / "10" / "state" / "manifest.ocdbt").write_bytes(b"")
    view = View()
    assert without_times(train_one(one, run, view)) == without_times(half[1])
    assert view.steps[:2] == [9, 10]
    line, _ = view.lines
    assert "checkpoint 10 is damaged (" in line
    assert f"manifest.ocdbt differs from the file that was written): renamed to {run}" in line
    assert "10.damaged" in steps(run)


@pytest.mark.parametrize("earlier", [["10.damaged"], ["10.damaged", "10.damaged-2"]])
def test_each_damaged_checkpoint_of_a_step_has_a_name_of_its_own(earlier, one, run):
    folder = run / "checkpoints-0"
    for name in earlier:
        (folder / name).mkdir()
    (folder / "10" / "state" / "manifest.ocdbt").write_bytes(b"")
    train_one(one, run)
    assert {*earlier, f"10.damaged-{len(earlier) + 1}"} <= set(steps(run))
    assert [list((folder / name).iterdir()) for name in earlier] == [[] for _ in earlier]


def test_a_checkpoint_that_only_cannot_be_read_is_not_touched(one, run, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("PERMISSION_DENIED: Error opening local file\nsecond line")

    before = steps(run)
    monkeypatch.setattr(internal.checkpoints, "restore", refuse)
    with pytest.raises(InputError, match=r"-0/10 must be read; ValueError: PERM.* file$"):
        train_one(one, run)
    assert steps(run) == before


@pytest.mark.parametrize("change", [{"normalization": "unitized"}, {"optimizer": "adam"}])
def test_a_checkpoint_of_another_state_is_not_touched(change, images, run):
    """The checkpoint is for another network or optimizer state, as after a library's update."""
    before = steps(run)
    other = compiled(replace(SMALL, **change), images)
    with pytest.raises(InputError, match="checkpoints-0/10 must be read"):
        train_one(other, run)
    assert steps(run) == before


@pytest.mark.parametrize("array", [0, -1])
def test_a_checkpoint_whose_arrays_changed_in_memory_is_renamed(array, one, run):
    """The files of the checkpoint have the listed hashes, but one array has another checksum."""
    newest = run / "checkpoints-0" / "10"
    written = json.loads((newest / "checksums" / "metadata").read_text())
    written["mixed"][array] ^= 1
    (newest / "checksums" / "metadata").write_text(json.dumps(written))
    checkpoints.list_files(newest)
    view = View()
    train_one(one, run, view)
    assert (
        "checkpoint 10 is damaged (its arrays differ from the arrays that were written)"
        in view.lines[0]
    )


def test_what_is_listed_is_on_the_disk_before_the_list(run, monkeypatch):
    synced, written, newest = [], [], run / "checkpoints-0" / "10"
    monkeypatch.setattr(checkpoints.files, "sync", synced.append)
    monkeypatch.setattr(checkpoints.files, "write", lambda *_: written.append(list(synced)))
    checkpoints.list_files(newest)
    (before,) = written
    assert {newest, newest / "state", newest / "state" / "manifest.ocdbt"} <= set(before)
    inside = {path for path in newest.rglob("*") if path.suffix != ".__lock"}
    assert set(before) == {newest, *inside}


def test_checkpoints_are_listed_as_sha256sum_reads_it(run):
    for step in ("9", "10"):
        folder = run / "checkpoints-0" / step
        subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", "files.sha256"], cwd=folder, check=True
        )
        listed = {
            line.split("  ")[1] for line in (folder / "files.sha256").read_text().splitlines()
        }
        assert {"checksums/metadata", "state/manifest.ocdbt"} <= listed


def test_checksums_see_changed_signs_of_all_elements_and_of_pairs():
    x = jnp.asarray(np.random.default_rng(0).standard_normal(64), jnp.float32)
    changed = (-x, x.at[:2].multiply(-1), x.at[jnp.array([0, 32])].multiply(-1), x[::-1], x + 0.5)
    sums = [checkpoints.sums_of([array])[0] for array in (x, *changed)]
    assert len(set(sums)) == len(sums)
    over_devices = NamedSharding(trainer.mesh_of(8), PartitionSpec("data"))
    np.testing.assert_array_equal(
        checkpoints.checksums([jax.device_put(x, over_devices)]), checkpoints.checksums([x])
    )


@pytest.mark.parametrize("damage", [None, b"", b'{"epoch": 1, "los', b"\xff\xfe\n", b"1\n2\n"])
def test_lines_of_metrics_that_are_lost_come_from_the_checkpoint(damage, one, half, run):
    path = run / "seed-0" / "metrics.jsonl"
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    view = View()
    assert without_times(train_one(one, run, view)) == without_times(half[1])
    assert without_times(run_folder.read_lines(path)) == without_times(half[1])
    resumed, line = view.lines
    assert resumed == "seed 0: resumed after 2 of 3 epochs"
    assert "metrics.jsonl was incomplete; the file is written again from the checkpoint" in line


def test_lines_behind_a_damaged_line_are_not_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    assert run_folder.read_lines(tmp_path / "metrics.jsonl") == [{"epoch": 1}]


def test_a_finished_run_gets_its_metrics_back(one, half, tmp_path):
    finished = shutil.copytree(half[0].parent / "whole", tmp_path / "run")
    shutil.rmtree(finished / "seed-0")
    assert train_one(one, finished) == half[1]
    assert run_folder.read_lines(finished / "seed-0" / "metrics.jsonl") == half[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": 5}, "has classes 2, not 5"),
        ({"version": "2.0.0"}, r"has version , not 2\.0\.0"),
        ({"y_train": np.zeros(70, np.int32)}, "has labels [0-9a-f]{64}, not"),
        ({"x_train": np.zeros((70, 4, 5, 1), np.float32)}, r"has shape \[4, 4, 1\], not \[4, 5, 1"),
        ({"x_test": np.zeros(3), "y_test": np.zeros(3, np.int32)}, "has test 15, not 3"),
    ],
)
def test_other_data_are_refused_by_what_differs(changes, sentence, images, run):
    (run.parent / "new").mkdir()
    run_folder.prepare(run.parent / "new", SMALL, images, vmapped_seeds=1)
    shutil.copy(run.parent / "new" / "recipe.json", run)
    run_folder.prepare(run, SMALL, images, vmapped_seeds=1)
    other = images._replace(**changes)
    with pytest.raises(InputError, match=sentence):
        run_folder.prepare(run, SMALL, other, vmapped_seeds=1)
    with pytest.raises(InputError, match=r"has seeds in one program \(--vmap-seeds\) 1, not 3$"):
        run_folder.prepare(run, SMALL, images, vmapped_seeds=3)
    run_folder.same_data(run, images)
    run_folder.same_data(run, images)
    run_folder.same_data(run, images._replace(name="another"))
    with pytest.raises(InputError, match=sentence):
        run_folder.same_data(run, other)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (reproduce.main, {"epochs": 1, "seeds": 1, "depth": 8}),
        (covariate_shift.main, {"epochs": 2, "seeds": 1, "exact": 2}),
    ],
)
def test_networks_of_other_data_are_refused(command, options, images, tmp_path, monkeypatch):
    """The command reads a data set `digits` whose images differ from the folder's record."""
    for module, name in ((report, "train"), (shift, "train_all")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("networks are trained"))
    run_folder.same_data(tmp_path, images._replace(name="digits"))
    with pytest.raises(InputError, match=r"train 70, not 1437; .* classes 2, not 10;"):
        command(**options, out=tmp_path)
    assert not list(tmp_path.rglob("results.json"))


def test_evaluating_alone_does_not_need_the_run_that_gave_the_weights(one, images, tmp_path):
    run_folder.prepare(tmp_path, one.recipe, images, vmapped_seeds=1, init_from="abc")
    (tmp_path / "checkpoints-0" / "4").mkdir(parents=True)
    given: Any = one, images, [(0,)], tmp_path, None
    training_run.prepare(*given, evaluate_only=True)
    with pytest.raises(InputError, match="--init-from must name the run whose weights started"):
        training_run.prepare(*given)


def test_all_settings_that_differ_are_named_at_once(images, run):
    (run.parent / "new").mkdir()
    run_folder.prepare(run.parent / "new", SMALL, images, vmapped_seeds=1)
    shutil.copy(run.parent / "new" / "recipe.json", run)
    other = replace(SMALL, momentum=0.5, learning_rate=0.25)
    said = (
        f" has learning_rate {SMALL.learning_rate}, not 0.25; momentum {SMALL.momentum}, not 0.5; "
        r"classes 2, not 5$"
    )
    with pytest.raises(InputError, match=said):
        run_folder.prepare(run, other, images._replace(classes=5), vmapped_seeds=1)


@pytest.mark.parametrize(
    ("names", "trained"),
    [
        (["checkpoints-0/8", "checkpoints-0/9.damaged"], "checkpoints-0/8"),
        (["checkpoints-0/8.damaged", "checkpoints-1/9"], "checkpoints-1/9"),
        (["checkpoints-0/9.damaged", "checkpoints-0/10.orbax-checkpoint-tmp", "seed-0"], None),
        (["results.json", "seed-0"], "results.json"),
    ],
)
def test_a_folder_with_whole_checkpoints_or_results_has_a_recipe(names, trained, images, tmp_path):
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    if trained:
        said = rf"recipe\.json must exist, because .*/{re.escape(trained)} exists; without"
        with pytest.raises(InputError, match=said):
            run_folder.prepare(tmp_path, SMALL, images, vmapped_seeds=1)
    else:
        run_folder.prepare(tmp_path, SMALL, images, vmapped_seeds=1)
    assert (tmp_path / "recipe.json").exists() == (not trained)


def test_a_recipe_of_another_program_is_not_replaced(images, tmp_path):
    (tmp_path / "recipe.json").write_text('{"flour": "500 g"}')
    with pytest.raises(InputError, match=r"^--out must .*recipe\.json is not the recipe of a run$"):
        run_folder.prepare(tmp_path, SMALL, images, vmapped_seeds=1)
    assert (tmp_path / "recipe.json").read_text() == '{"flour": "500 g"}'


def test_after_a_divergence_a_lower_rate_starts_in_the_same_folder(images, tmp_path):
    steep = replace(SMALL, learning_rate=1e30, normalization="none")
    run_folder.prepare(tmp_path, steep, images, vmapped_seeds=1)
    with pytest.raises(
        InputError, match=r"by step \d+ it had .*: no checkpoint is kept; lower --learning-rate$"
    ):
        train_one(compiled(steep, images), tmp_path)
    assert not run_folder.read_lines(tmp_path / "seed-0" / "metrics.jsonl")
    run_folder.prepare(tmp_path, SMALL, images, vmapped_seeds=1)
    assert json.loads((tmp_path / "recipe.json").read_text())["learning_rate"] == 0.05


def test_after_a_checkpoint_a_divergence_asks_for_another_folder(run):
    with (
        checkpoints.Checkpoints(run / "checkpoints-0") as saved,
        pytest.raises(InputError, match="is of step 10; lower --learning-rate, with another --out"),
    ):
        finite.check_finite("loss", np.array([np.nan]), 11, saved)


def test_a_folder_that_is_replaced_ends_the_run(one, run):
    class Replaces(View):
        def update(self, steps, description, numbers):
            super().update(steps, description, numbers)
            shutil.rmtree(run, ignore_errors=True)
            (run / "checkpoints-0").mkdir(parents=True, exist_ok=True)

    with pytest.raises((InputError, FileNotFoundError), match="run"):
        train_one(one, run, Replaces())
    assert not list((run / "checkpoints-0").iterdir())


def test_a_folder_in_use_is_refused_by_the_process_that_uses_it(tmp_path):
    with files.in_use(tmp_path / "run") as check:
        with (
            pytest.raises(InputError, match=f"not be in use; process {os.getpid()} on .* uses"),
            files.in_use(tmp_path / "run"),
        ):
            pass
        check()
        shutil.rmtree(tmp_path / "run")
        for _ in range(2):
            with pytest.raises(
                InputError, match=r"--out must not be removed during a run; .*run was re"
            ):
                check()
            # This simulates another run that creates the folder.
            (tmp_path / "run").mkdir(exist_ok=True)
            (tmp_path / "run" / files.LOCK).touch()
    with files.in_use(tmp_path / "run"):
        pass


@pytest.mark.parametrize("put", [files.write, files.append])
def test_a_folder_that_was_moved_is_named(put, tmp_path):
    with pytest.raises(InputError, match=r"run must remain while a run uses it; it was moved or"):
        put(tmp_path / "run" / "metrics.jsonl", "")


def test_a_killed_process_frees_its_folder(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from experiments import files\n"
        "with files.in_use(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"process {process.pid} on"), files.in_use(tmp_path):
            pass
        process.kill()
    with files.in_use(tmp_path):
        pass


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_write_that_fails_leaves_the_old_file(error, tmp_path, monkeypatch):
    path = tmp_path / "some.json"
    files.write(path, "old")

    def failing(*_):
        raise error

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(type(error)):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["some.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen, fsync = tmp_path / "some.json", [], os.fsync

    def watched(descriptor):
        name, size = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size
        seen.append((name, path.exists(), size == len("text")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    files.write(path, "text")
    written, folder = seen
    assert written == (str(tmp_path / ".some.json.part"), False, True)
    assert folder[:2] == (str(tmp_path), True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "must be JSON in UTF-8; Expecting property name"),
        (b"", "must be JSON in UTF-8; Expecting value: .*: restore the file from a copy$"),
        (b"\xff\xfe{", "must be JSON in UTF-8"),
        (b"[" * 100_000, "must be JSON in UTF-8"),
        (b"[]", "must hold a JSON dict; its type is list"),
        (b"1", "must hold a JSON dict; its type is int"),
    ],
)
def test_json_that_is_none_is_one_sentence(content, sentence, tmp_path):
    (tmp_path / "some.json").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        files.read_json(tmp_path / "some.json", dict)
    assert files.read_json(tmp_path / "none.json", dict) is None
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path)


def test_a_checkpoint_has_the_notes_of_its_step(tmp_path, monkeypatch):
    """The notes are written in the background, perhaps only after more notes were added."""
    going_on = threading.Event()
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda x: going_on.wait(60) and dumps(x))
    lines = [{"epoch": 1}]
    with checkpoints.Checkpoints(tmp_path) as saved:
        saved.save(1, [jnp.zeros(2)], [lines])
        lines.append({"epoch": 2})
        going_on.set()
        saved.manager.wait_until_finished()
        _, notes = saved.restore([jnp.ones(2)], pytest.fail)
    assert notes == [[{"epoch": 1}]]


def test_a_checkpoint_shares_no_buffer_with_the_state(tmp_path, monkeypatch):
    """The next training step may overwrite the state before the checkpoint is written."""
    state, written = [jnp.arange(5.0), jnp.zeros((2, 3))], []
    with checkpoints.Checkpoints(tmp_path) as saved:
        monkeypatch.setattr(saved.manager, "save", lambda _, args: written.extend(args.state.item))
        saved.save(1, state)
    for ours, theirs in zip(written, state, strict=True):
        assert ours.unsafe_buffer_pointer() != theirs.unsafe_buffer_pointer()
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("several", [True, False])
def test_a_collective_that_fails_in_a_save_is_one_sentence(several, tmp_path, monkeypatch):
    def save(*_, **__):
        raise ValueError("Gloo AllGather failed: [external/gloo/pair.cc:538] Read error: closed\nx")

    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: several)
    ended = "all processes must run to the end; another process seems to have ended"
    failed = f"the checkpoint {tmp_path} must be written" + r"; ValueError"
    with checkpoints.Checkpoints(tmp_path) as saved:
        monkeypatch.setattr(saved.manager, "save", save)
        with (
            pytest.raises(InputError, match=f"^{ended if several else failed}.* failed: .*closed$"),
            processes.together(),
        ):
            saved.save(1, [jnp.zeros(2)])


@pytest.mark.parametrize(("is_new", "has_results"), [(True, False), (True, True), (False, False)])
def test_a_refused_command_leaves_no_empty_folder_that_it_made(is_new, has_results, tmp_path):
    out = tmp_path / "run"

    def refuse():
        with files.in_use(out):
            (out / ("results.json" if has_results else files.LOCK)).touch()
            raise InputError("no")

    if not is_new:
        out.mkdir()
    with pytest.raises(InputError, match="no"):
        refuse()
    assert out.exists() == (has_results or not is_new)
    assert len(list(out.glob("*.json"))) == has_results


def test_a_page_shows_the_rounded_numbers_of_its_file(tmp_path):
    written = page.write({"a": np.float64(1 / 3), "b": [2 / 3]}, repr, tmp_path)
    assert written == {"a": 0.333333333, "b": [0.666666667]}
    assert json.loads((tmp_path / "results.json").read_text()) == written
    assert (tmp_path / "index.html").read_text() == repr(written)


def test_what_a_killed_command_left_beside_its_page_is_removed(tmp_path):
    (tmp_path / ".report-x").mkdir()
    (tmp_path / ".report-x" / "index.html").touch()
    page.write({"a": 1}, str, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "results.json"}


@pytest.mark.parametrize(
    ("said", "short"),
    [
        (
            "INTERNAL: Error dispatching computation: " * 9 + "lost",
            "INTERNAL: Error dispatching .*",
        ),
        ("a: b: a: b: ", "a: b"),
        ("", "RuntimeError"),
        ("[external/xla/pjrt/cpu.cc:12] UNAVAILABLE: x\nmore", "UNAVAILABLE: x"),
    ],
)
def test_repeated_prefixes_of_xla_are_said_once(said, short):
    found = processes.first_line(RuntimeError(said))
    assert re.fullmatch(short, found)
    parts = found.split(": ")
    assert len(parts) == len(set(parts))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("nonsense", 2, 1), "--coordinator must be HOST:PORT or auto; got nonsense"),
        ((":80", 2, 1), "--coordinator must be HOST:PORT or auto; got :80"),
        (("a:b", 2, 1), "--coordinator must be HOST:PORT or auto; got a:b"),
        (("a:80", 2, 2), "--process must be from 0 to 1; got 2"),
        (("a:80", 2, None), "--coordinator HOST:PORT needs --processes and --process"),
        (("auto", 2, None), "--processes and --process need --coordinator HOST:PORT"),
        ((None, None, 0), "--processes and --process need --coordinator HOST:PORT"),
    ],
)
def test_processes_that_cannot_meet_are_refused_at_once(options, said):
    with pytest.raises(InputError, match=said):
        checks.check_processes(*options)
    for fine in ((None, None, None), ("auto", None, None), ("a.b:1234", 2, 1), ("[::1]:80", 1, 0)):
        checks.check_processes(*fine)
