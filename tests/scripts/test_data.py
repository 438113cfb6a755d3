"""Damaged or unusual data sets end a command with one sentence; a run records its data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

import train
from experiments.cli import InputError
from experiments.data import datasets
from experiments.recipes import IN_MEMORY, STREAMED


def make(folder, name="digits", *, dtype=np.uint8, classes=10, change=lambda x: x, train=40):
    """Write a data set of small images in the format of tensorflow-datasets."""

    class Made(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = None

        def _info(self):
            features = {
                "image": tfds.features.Tensor(shape=(4, 4, 1), dtype=dtype),
                "label": tfds.features.ClassLabel(num_classes=classes),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self.rows(train), "test": self.rows(20)}

        def _generate_examples(self):
            """Do nothing, because `_split_generators` returns the examples."""

        def rows(self, count):
            x = np.random.default_rng(0).integers(0, 255, (count, 4, 4, 1)).astype(dtype)
            return ((i, {"image": change(x)[i], "label": i % classes}) for i in range(count))

    Made.name = name
    Made(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def constant(x):
    return 0 * x


def not_a_number(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 3, np.nan, x).astype(x.dtype)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"change": constant}, r"training images of .* must vary; all pixels of channels \[0\]"),
        (
            {"change": not_a_number, "dtype": np.float32},
            "images of .* must be finite; train has NaN or inf",
        ),
    ],
)
def test_images_that_cannot_be_standardized_are_named(options, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        datasets.load("digits", make(tmp_path, **options))


@pytest.mark.parametrize(
    ("read", "names", "others"),
    [(datasets.load, IN_MEMORY, STREAMED), (datasets.records, STREAMED, IN_MEMORY)],
)
def test_a_data_set_for_another_function_is_refused_before_its_folder(read, names, others):
    for name in (*others, "unknown"):
        known = f"must be one of {', '.join(names)}; got '{name}'"
        with pytest.raises(InputError, match=known):
            read(name, Path("missing"))


def test_reading_many_images_is_announced(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    capsys.readouterr()  # discards the output of tensorflow-datasets
    for limit, said in ((61, ""), (60, "reading 60 images of digits\n")):
        monkeypatch.setattr(datasets, "LARGE", limit)
        datasets.load("digits", tmp_path)
        assert capsys.readouterr().out == said


def test_the_newest_version_is_by_number(tmp_path):
    make(tmp_path, "mnist")
    versions = tmp_path / "mnist"
    (versions / "1.0.0").rename(versions / "9.2.0")
    make(tmp_path, "mnist", train=38)
    (versions / "1.0.0").rename(versions / "10.0.0")
    for name in ("9.2.0", "10.0.0"):
        info = versions / name / "dataset_info.json"
        info.write_text(info.read_text().replace("1.0.0", name))
    images = datasets.load("mnist", tmp_path)
    assert (images.version, len(images.x_train)) == ("10.0.0", 38)


def test_tensors_of_any_name_are_read_beside_folders_that_are_no_versions(tmp_path):
    folder = make(tmp_path, "mnist")
    for odd in ("1.0.1.incompleteABC_1.0.1", "1.0.x", "2.0", "9.9.9"):
        (folder / "mnist" / odd).mkdir()
    (folder / "mnist" / "1.0.x" / "dataset_info.json").write_text("{}")
    (folder / "mnist" / "1.0.1.incompleteABC_1.0.1" / "dataset_info.json").write_text("{}")
    images = datasets.load("mnist", folder)
    assert (len(images.x_train), images.note, images.version) == (40, "", "1.0.0")


@pytest.mark.parametrize("count", [20, 60])
def test_counts_that_disagree_with_the_records_are_refused(count, tmp_path):
    folder = make(tmp_path)
    path = folder / "digits" / "1.0.0" / "dataset_info.json"
    info = json.loads(path.read_text())
    for split in info["splits"]:
        if split["name"] == "train":
            split["shardLengths"] = [str(count)]
    path.write_text(json.dumps(info))
    with pytest.raises(
        InputError, match=rf"-train.* must hold the {count} records that .* lists; it holds 40"
    ):
        datasets.load("digits", folder)


def test_data_sets_are_told_apart(tmp_path):
    first = datasets.identity(datasets.load("digits", make(tmp_path / "a")))
    again = datasets.identity(datasets.load("digits", make(tmp_path / "b")))
    fewer = datasets.identity(datasets.load("digits", make(tmp_path / "c", train=38)))
    other = datasets.identity(datasets.load("digits", make(tmp_path / "d", classes=5)))
    assert first == again
    brighter = datasets.identity(
        datasets.load("digits", make(tmp_path / "e", change=lambda pixels: pixels // 2))
    )
    assert {n for n in first if first[n] != fewer[n]} == {"train", "labels", "pixels"}
    assert {"classes", "labels"} <= {n for n in first if first[n] != other[n]}
    assert {n for n in first if first[n] != brighter[n]} == {"pixels"}
    for_tests = datasets.identity(
        datasets.load(
            "digits", make(tmp_path / "f", change=lambda x: x // (2 if len(x) == 20 else 1))
        )
    )
    assert {n for n in first if first[n] != for_tests[n]} == {"pixels"}
    images = datasets.load("digits", tmp_path / "a")
    for name in ("y_train", "y_test"):
        swapped = datasets.identity(images._replace(**{name: getattr(images, name)[::-1]}))
        assert {n for n in first if first[n] != swapped[n]} == {"labels"}


@pytest.mark.parametrize(
    ("split", "change", "sentence"),
    [
        ("train", {"y": [0, -1]}, r"labels of v must lie in \[0, 3\); train has others"),
        ("test", {"y": [3, 0]}, r"labels of v must lie in \[0, 3\); test has others"),
        ("test", {"x": [1.0, np.nan]}, "images of v must be finite; test has NaN or inf"),
        ("train", {"x": [-np.inf, 0.0]}, "images of v must be finite; train has NaN or inf"),
        ("both", {"deviation": [1.0, 0.0, np.nan]}, r"pixels of channels \[1, 2\] have one value"),
    ],
)
def test_values_that_are_none_of_a_split_are_refused(split, change, sentence):
    def check(name=None, **changes):
        parts = {"x": [0.0, 5.0], "y": [2, 0]}
        train, test = (parts | (changes if name == own else {}) for own in ("train", "test"))
        train, test = ((np.array(part["x"]), np.array(part["y"])) for part in (train, test))
        deviation = np.array(changes.get("deviation", [1.0, 2.0, 3.0]))
        datasets._check_values(Path("v"), 3, train, test, deviation)

    check()
    with pytest.raises(InputError, match=sentence):
        check(split, **change)


def test_images_are_standardized_by_given_moments_of_their_channels(tmp_path):
    plain = datasets.load("digits", make(tmp_path))
    moved = datasets.load("digits", tmp_path, ((0.25,), (0.5,)))
    pixels = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1))
    # Images are compared in sorted order, because tensorflow-datasets shuffles them.
    read = plain.x_train * pixels.std() + pixels.mean()
    np.testing.assert_allclose(np.sort(read, None), np.sort(pixels, None), atol=1e-3)
    np.testing.assert_allclose(moved.x_train, (read - 0.25 * 255) / (0.5 * 255), atol=1e-5)
    assert moved.pixels == plain.pixels
    with pytest.raises(InputError, match=r"must have 3 channels, like the network; .* have 1$"):
        datasets.load("digits", tmp_path, ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5)))


GOOD = {"image": np.zeros((4, 4, 1), np.uint8), "label": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"label": None},
        {"label": 2**31},
        {"image": None},
        {"image": np.zeros((4, 5, 1), np.uint8)},
        {"image": np.zeros((0, 4, 1), np.uint8)},
        {"image": np.zeros((4, 4, 3), np.uint8)},
    ],
)
def test_a_record_unlike_the_others_is_named_by_split_and_number(changes):
    source = [GOOD, GOOD, GOOD | changes, GOOD]
    with pytest.raises(InputError, match="record 2 of test: "):
        datasets._stack(source, "test")
    assert len(datasets._stack([GOOD, GOOD], "test")[0]) == 2
    with pytest.raises(InputError, match="record 0 of test: it has no image"):
        datasets._stack([GOOD | {"image": np.zeros((0, 4, 1), np.uint8)}] * 2, "test")


@pytest.mark.parametrize(("start", "note"), [(b"\xff\xd8\xff", "JPEG-rec"), (b"\x89PNG", "")])
def test_images_in_jpeg_files_are_noted(start, note, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "_open", lambda *_, **__: (10, ([{"image": start}],)))
    assert datasets._note("cifar10", tmp_path)[:8] == note


def test_a_file_is_no_data_folder():
    with pytest.raises(InputError, match=r"--data-dir must be a folder; .*test_data\.py is a file"):
        datasets.load("digits", Path(__file__))


def command(*options, **changes):
    """Run the command with a changed environment; the value None removes a variable."""
    environment: dict[str, str | None] = dict(os.environ)
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), **changes}
    return subprocess.run(
        [sys.executable, train.__file__, "digits-mlp", *options],
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"XDG_CACHE_HOME": "/proc/none"}, "the data folder must be writable; /proc/none/jaxnorm"),
        ({"XDG_CACHE_HOME": "/etc/passwd"}, "the data folder must be writable; /etc/passwd/jaxn"),
    ],
)
@pytest.mark.slow
def test_a_cache_folder_that_cannot_be_is_one_sentence(changes, words, tmp_path):
    found = command("--out", str(tmp_path / "out"), JAX_COMPILATION_CACHE_DIR=None, **changes)
    assert (found.returncode, "Traceback" in found.stderr) == (2, False), found.stderr
    assert words in found.stderr


def test_digits_are_prepared_in_a_new_cache_folder_and_then_read_from_it(tmp_path, monkeypatch):
    cache = tmp_path / "new" / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    first = datasets.load("digits", None)
    assert (len(first.y_train), len(first.y_test), first.classes) == (1437, 360, 10)
    info = cache / "jaxnorm" / "digits" / "1.0.0" / "dataset_info.json"
    written = info.stat().st_mtime_ns
    assert datasets.identity(datasets.load("digits", None)) == datasets.identity(first)
    assert info.stat().st_mtime_ns == written
    with pytest.raises(InputError, match=r"jaxnorm must hold mnist in tensorflow-datasets' format"):
        datasets.load("mnist", None)


def test_without_a_home_the_folder_must_be_named(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(InputError, match="HOME or XDG_CACHE_HOME must name a folder; Could not"):
        datasets.cache_folder()


def test_help_that_is_not_read_to_its_end_ends_without_a_word():
    with subprocess.Popen(
        [sys.executable, train.__file__, "--help"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_digits_that_another_process_prepares_meanwhile_are_taken(tmp_path, monkeypatch):
    class Late:
        def __init__(self, **_): ...

        def download_and_prepare(self):
            info = tmp_path / "digits" / "1.0.0" / "dataset_info.json"
            info.parent.mkdir(parents=True)
            info.touch()
            raise FileExistsError(info.parent)

    monkeypatch.setattr(datasets, "Digits", Late)
    assert datasets._version("digits", tmp_path) == tmp_path / "digits" / "1.0.0"


def test_a_fifth_of_every_digit_is_for_tests():
    pixels, labels = load_digits(return_X_y=True)
    splits = datasets.Digits._split_generators(None, None)  # pyright: ignore[reportArgumentType]
    rows = {name: dict(examples) for name, examples in splits.items()}
    assert sorted([*rows["train"], *rows["test"]]) == list(range(len(labels)))
    for split, share in (("train", 0.8), ("test", 0.2)):
        found = np.bincount([example["label"] for example in rows[split].values()])
        np.testing.assert_allclose(found, share * np.bincount(labels), atol=1)
    for i in (0, 1000, 1796):
        example = (rows["train"] | rows["test"])[i]
        assert (example["image"].shape, example["image"].dtype) == ((8, 8, 1), np.uint8)
        np.testing.assert_array_equal(example["image"].ravel(), pixels[i])
        assert example["label"] == labels[i]


def test_the_folder_of_the_data_may_be_a_text(tmp_path):
    folder = make(tmp_path)
    found = [datasets.identity(datasets.load("digits", given)) for given in (folder, str(folder))]
    assert found[0] == found[1]
