"""Runs and data in buckets (gs:// and s3://, simulated in memory) and at file://."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import train
from experiments import cli, files, storage
from experiments.cli import InputError
from experiments.data import datasets
from experiments.pages import page
from experiments.training import loop
from experiments.training.run_folder import read_lines
from experiments.training.trained import load_network
from tests.support import bucket, made_imagenet
from tests.support.small_runs import SMALL, View, train_one, without_times

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module")
def objects():
    """The objects stored in simulated buckets, by path."""
    with pytest.MonkeyPatch.context() as patch, bucket.served(patch) as found:
        yield found


def test_a_path_is_local_or_of_a_bucket(tmp_path):
    assert storage.location("out/a") == Path("out/a")
    assert storage.location(f"{tmp_path.as_uri()}/a%20b") == tmp_path / "a b"
    assert storage.location("file:///runs/a?b#1") == Path("/runs/a?b#1")
    assert str(storage.location("gs://mine/a/../b")) == "gs://mine/a/../b"
    assert not storage.is_remote(Path("gs"))
    with pytest.raises(InputError, match="this option must be local; got s3://mine/a"):
        storage.local("s3://mine/a")
    with pytest.raises(InputError, match="a path must not be empty"):
        storage.local("")  # `--out "$OUT"` gives this if OUT is not set


def test_only_a_local_path_becomes_absolute_without_links(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert storage.absolute(Path("link/b")) == tmp_path.resolve() / "a" / "b"
    assert str(storage.absolute(storage.location("gs://mine/a/../b"))) == "gs://mine/a/../b"


@pytest.mark.parametrize("text", ["ftp://mine/a", "gs://", "gs:///a", "file://host/a", "://a"])
def test_other_schemes_are_one_sentence_and_status_2(text, capfd):
    with pytest.raises(SystemExit) as end, cli.ending():
        storage.location(text)
    assert end.value.code == 2
    said = capfd.readouterr().err
    assert said == (
        "error: a path must be local or begin with file:///, gs://BUCKET or s3://BUCKET; "
        f"got {text}\n"
    )


def test_a_page_and_its_numbers_are_written_to_a_bucket(objects):
    folder = storage.location("gs://mine/page")
    written = page.write({"a": np.float64(1 / 3)}, str, folder)
    assert written == {"a": 0.333333333}
    assert json.loads((folder / "results.json").read_text()) == written
    assert (folder / "index.html").read_text() == str(written)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_bucket_that_cannot_be_reached_is_one_sentence(objects, scheme):
    folder = storage.location(f"{scheme}://missing/run")
    with (
        pytest.raises(InputError, match=f"^{folder}/.in-use must be reachable; FileNotFound"),
        files.in_use(folder),
    ):
        pass
    with pytest.raises(InputError, match=f"^--data-dir must be a folder; {folder} does not exist"):
        datasets.load("mnist", folder)
    with pytest.raises(InputError, match=r"must be a folder that scripts/train\.py made"):
        load_network(f"{scheme}://mine/nothing")


def test_without_a_client_a_sentence_names_it():
    """The process of this command can neither import gcsfs nor use the simulated buckets."""
    code = (
        "from experiments import cli, files, storage\n"
        "with cli.ending(), files.in_use(storage.location('gs://mine/run')): pass"
    )
    hidden = "import sys; sys.modules['gcsfs'] = None\n"
    command = [sys.executable, "-c", hidden + code]
    scripts = os.environ | {"PYTHONPATH": str(Path(train.__file__).parent)}
    ended = subprocess.run(command, capture_output=True, text=True, env=scripts, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "gs://mine/run/.in-use must be reachable; ImportError: " in ended.stderr
    assert "gcsfs" in ended.stderr


def test_a_run_in_a_bucket_resumes_and_ends_with_the_numbers_of_a_local_one(
    one, objects, tmp_path, monkeypatch
):
    out = storage.location("gs://mine/run")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "BETWEEN_CHECKPOINTS", 0)
        with pytest.raises(cli.StoppedError):
            train_one(one, out, View(interrupt_after=6))
    assert {key.split("/")[4] for key in objects if "/checkpoints-0/" in key} == {"5", "6"}
    view = View()
    lines = train_one(one, out, view)
    assert view.steps[:2] == [6, 7]
    assert view.lines == ["seed 0: resumed after 1 of 3 epochs"]
    assert without_times(lines) == without_times(train_one(one, tmp_path))
    assert read_lines(out / "seed-0" / "metrics.jsonl") == lines
    events = [objects[key].getvalue() for key in objects if "/seed-0/events/" in key]
    assert len(events) == 2
    assert all(b"accuracy" in content for content in events)


def test_a_damaged_checkpoint_of_a_bucket_is_set_aside(one, objects):
    out = storage.location("gs://mine/damaged")
    lines = train_one(one, out)
    (step,) = {key.split("/")[4] for key in objects if key.startswith("/mine/damaged/checkpoints")}
    name = f"/mine/damaged/checkpoints-0/{step}/checksums/metadata"
    written = json.loads(objects[name].getvalue())
    written["mixed"][0] ^= 1
    files.write(storage.location(f"gs:/{name}"), json.dumps(written))
    view = View()
    assert without_times(train_one(one, out, view)) == without_times(lines)
    assert f"renamed to gs://mine/damaged/checkpoints-0/{step}.damaged" in view.lines[0]


@pytest.mark.slow
def test_the_command_writes_all_to_a_bucket_and_a_network_is_loaded_from_it(objects, capfd):
    out = storage.location("gs://mine/command")
    recipe = dataclasses.replace(SMALL, epochs=1, batch_size=128)
    options = train.Options(devices=1, out=out, log_every=4)
    train.main(recipe, options)
    assert "Open gs://mine/command/index.html" in capfd.readouterr().out
    results = json.loads(objects["/mine/command/results.json"].getvalue())
    lines = read_lines(out / "seed-0" / "metrics.jsonl")
    assert files.rounded(lines) == results["seeds"][0]
    steps = read_lines(out / "seed-0" / "steps.jsonl")
    assert [line["step"] for line in steps] == [4, 8, 11]
    images = datasets.load("digits")
    right = (
        np.argmax(load_network("gs://mine/command")(jnp.asarray(images.x_test)), 1) == images.y_test
    )
    assert right.mean() == pytest.approx(results["accuracy"]["mean"], abs=1e-6)
    with pytest.raises(InputError, match=r"has batch.size 128, not 64"):
        train.main(dataclasses.replace(recipe, batch_size=64), options)


def test_checkpoints_at_s3_are_refused(one, objects):
    with pytest.raises(
        InputError, match=r"in a local folder or at gs://, because Orbax.*; got s3://mine/"
    ):
        train_one(one, storage.location("s3://mine/run"))


def test_a_second_run_in_the_folder_of_a_bucket_is_noticed(objects):
    folder = storage.location("s3://mine/shared")
    with files.in_use(folder) as check:
        check()
        with files.in_use(folder) as other:
            other()
        with pytest.raises(
            InputError, match=r"must be used by one run at a time; process .* run in s3:/"
        ):
            check()


def test_a_copy_of_another_size_is_renewed(objects, tmp_path):
    remote = storage.location("s3://mine/folder")
    (remote / "whole").write_bytes(b"whole")
    local = storage.copy_local(remote, tmp_path)
    for content in (b"part", b"", b"a longer part"):
        (local / "whole").write_bytes(content)
        assert storage.copy_local(remote, tmp_path) == local
        assert [(path.name, path.read_bytes()) for path in local.iterdir()] == [("whole", b"whole")]


def test_text_is_added_to_an_object(objects):
    path = storage.location("s3://mine/some.jsonl")
    files.append(path, "α\n")
    files.append(path, "2\n")
    assert objects["/mine/some.jsonl"].getvalue() == "α\n2\n".encode()


def uploaded(folder, name):
    """Copy a folder's files to a bucket, and return the folder in the bucket."""
    remote = storage.location(name)
    for path in folder.rglob("*"):
        if path.is_file():
            (remote / path.relative_to(folder)).write_bytes(path.read_bytes())
    return remote


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_images_of_a_bucket_are_copied_once(scheme, objects, tmp_path, monkeypatch):
    local = datasets.load("digits")
    remote = uploaded(datasets.cache_folder() / "digits", f"{scheme}://mine/data/digits").parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = datasets.load("digits", remote)
    assert found.x_train.tobytes() == local.x_train.tobytes()
    copies = {path: path.stat().st_ctime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert len(copies) == len(list((remote / "digits" / "1.0.0").iterdir()))
    assert all(scheme in path.parts for path in copies)  # gs and s3 can both have a bucket `mine`
    for content in (b"cut short", bytes(10**6)):
        next(iter(copies)).write_bytes(content)
        assert datasets.load("digits", remote).y_test.tobytes() == local.y_test.tobytes()
    assert sum(path.stat().st_ctime_ns == at for path, at in copies.items()) == len(copies) - 1


@pytest.mark.slow
def test_imagenet_is_read_from_google_cloud_storage_and_not_from_s3(objects, tmp_path):
    made_imagenet.make(tmp_path)
    local = datasets.records("imagenet2012", tmp_path)
    remote = datasets.records("imagenet2012", uploaded(tmp_path, "gs://mine/tfds"))
    assert datasets.identity(remote) == datasets.identity(local)
    assert remote.train[7]["image"] == local.train[7]["image"]
    with pytest.raises(
        InputError, match=r"imagenet2012 must be in a local folder or at gs://.*; mount s3:"
    ):
        datasets.records("imagenet2012", uploaded(tmp_path, "s3://mine/tfds"))
