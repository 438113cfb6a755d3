"""Folders in Hugging Face's format: reading, writing, and invalid files."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy as library

from experiments.cli import InputError
from experiments.files import LOCK
from experiments.language import export, folders, naming, training
from tests.support import language_models


def small(folder, *, shards=1, family="qwen3"):
    rng = np.random.default_rng(0)
    config = language_models.random_config(family, rng)
    weights = language_models.random_weights(config, rng)
    return language_models.write(folder, config, weights, shards=shards), weights


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_those_that_the_library_of_the_format_wrote(tmp_path, shards):
    folder, weights = small(tmp_path / "model", shards=shards)
    found = folders.tensors(folder)
    assert found.keys() == weights.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.read(), weights[name])


@pytest.mark.parametrize("size", [4, 12, 15])
def test_a_file_that_became_shorter_is_refused(size, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    tensor = folders.Tensor(path, 4, np.dtype(np.float32), (3,))
    with pytest.raises(InputError, match="must not change while it is read; it became shorter"):
        tensor.read()


def test_the_library_of_the_format_reads_shards_that_are_written_as_they_come(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(5).astype(ml_dtypes.bfloat16),
        "c": np.zeros((2, 2), np.float16),
        "d": np.float32(3).reshape(()),
    }
    assert folders.write(tmp_path, iter(arrays.items()), shard_bytes=12) == 16
    index = json.loads((tmp_path / folders.INDEX).read_text(encoding="utf-8"))
    first, second = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2))
    assert index["weight_map"]["a"] == first  # a shard ends after it exceeds 12 bytes
    assert index["weight_map"]["b"] == index["weight_map"]["c"] == second
    assert index["metadata"] == {"total_parameters": 16, "total_size": 24 + 10 + 8 + 4}
    found = {}
    for name in set(index["weight_map"].values()):
        found |= library.load_file(tmp_path / name)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_shard_that_is_exactly_full_ends(tmp_path):
    arrays = {name: np.zeros(3, np.float32) for name in "abc"}
    folders.write(tmp_path, iter(arrays.items()), shard_bytes=24)
    index = json.loads((tmp_path / folders.INDEX).read_text(encoding="utf-8"))
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    assert index["weight_map"] == {"a": first, "b": first, "c": second}


def test_a_shard_ends_before_its_header_is_full(tmp_path):
    arrays = {f"{i:0100}": np.zeros(1, np.float32) for i in range(1000)}
    folders.write(tmp_path, iter(arrays.items()))
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert folders.tensors(tmp_path).keys() == arrays.keys()


def test_a_missing_shard_is_named(tmp_path):
    folder, _ = small(tmp_path / "model", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"all 3 shards .*1 are missing, such as model-00002-of-0"):
        folders.tensors(folder)


def test_a_tensor_that_no_shard_has_is_named(tmp_path):
    folder, _ = small(tmp_path / "model", shards=2)
    index = json.loads((folder / folders.INDEX).read_text(encoding="utf-8"))
    index["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
    (folder / folders.INDEX).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(InputError, match=r"1 are missing, such as model\.extra"):
        folders.tensors(folder)


def with_header(text):
    """The beginning of a safetensors file, 69 bytes in all, without the bytes of its tensors."""
    return (61).to_bytes(8, "little") + text.ljust(61).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a whole safetensors file"),
        (b"\xff" * 40, "must be a whole safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "must be a whole safetensors file"),
        (
            with_header('{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'),
            "must have the 85 bytes that its header declares; it has 69",
        ),
        (
            with_header('{"a":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]}}'),
            "must have a dtype of F64, F32, F16, BF16; got 'I8'",
        ),
        (
            with_header('{"a":{"dtype":"F32","shape":[2,2]}}'),
            "must be a whole safetensors file; a tensor in its header has no 'data_offsets'",
        ),
        (
            with_header('{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[]}}'),
            "must be a whole safetensors file",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, message):
    (tmp_path / folders.SINGLE).write_bytes(content)
    with pytest.raises(InputError, match=message):
        folders.tensors(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="it has neither"):
        folders.tensors(tmp_path)
    with pytest.raises(InputError, match=r"must have a config\.json"):
        folders.read_config(tmp_path)
    (tmp_path / folders.INDEX).write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="must have a weight_map"):
        folders.tensors(tmp_path)


def test_readers_see_the_configuration_last_and_a_model_may_be_replaced(tmp_path, monkeypatch):
    moved, replace = [], folders.os.replace

    def note(path, target):
        moved.append(target.name)
        replace(path, target)

    monkeypatch.setattr(folders.os, "replace", note)
    names = ("a", "config.json", "z.safetensors")
    for content in ("first", "second"):
        with folders.staging(tmp_path, replace=True) as new:
            for name in names:
                (new / name).write_text(content, encoding="utf-8")
    assert sorted(moved[:2]) == sorted(moved[3:5]) == ["a", "z.safetensors"]
    assert moved[2] == moved[5] == "config.json"
    assert {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"second"}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((0, 2), "has 2 experts of 1 shapes, and the largest number is 2"), ((0, 1), None)],
)
def test_experts_are_stacked_by_their_numbers(numbers, said, tmp_path):
    """The experts in a file are numbered from 0 without a gap, and may be in any order."""
    arrays = {i: np.full((2, 3), i + 1.0, np.float32) for i in reversed(numbers)}
    files = {f"layers.0.block_sparse_moe.experts.{i}.w2.weight": a for i, a in arrays.items()}
    library.save_file({f"model.{name}": a for name, a in files.items()}, tmp_path / folders.SINGLE)
    if said:
        with pytest.raises(InputError, match=said):
            naming.load(tmp_path, "mixtral")
        return
    like = folders.Tensor(tmp_path, 0, np.dtype(np.float32), (2, 3))
    with pytest.raises(InputError, match="2 experts of 2 shapes, and the largest number is 1"):
        naming.stack("name", {0: like, 1: like._replace(shape=(3, 2))})
    # Mixtral has no module `adapter.experts`, so this tensor keeps its name and its shape.
    other = "model.layers.0.adapter.experts.1.scale.weight"
    library.save_file(
        {f"model.{name}": a for name, a in files.items()} | {other: arrays[0]},
        tmp_path / folders.SINGLE,
    )
    loaded = naming.load(tmp_path, "mixtral")
    assert loaded.pop(other).shape == (2, 3)
    ((name, stack),) = loaded.items()
    assert (name, stack.shape) == ("model.layers.0.mlp.experts.down_proj.weight", (2, 2, 3))
    np.testing.assert_array_equal(stack.read()[:, 0, 0], [1, 2])


def test_a_header_may_be_followed_by_nothing_and_a_folder_name_in_an_index_is_left_out(tmp_path):
    """A shard is searched for in the folder of the index.

    Folders in the shard's path in the index are ignored.
    """
    library.save_file({"a": np.zeros((0, 3), np.float32)}, tmp_path / "x.safetensors")
    index = {"weight_map": {"a": "elsewhere/x.safetensors"}}
    (tmp_path / folders.INDEX).write_text(json.dumps(index), encoding="utf-8")
    assert folders.tensors(tmp_path)["a"].read().shape == (0, 3)


def test_files_of_a_model_are_copied_but_not_its_weights_its_sizes_or_its_lock(tmp_path):
    copied = ("LICENSE", "README.md", "generation_config.json", "tokenizer.json", "tokenizer.model")
    weights = ("pytorch_model.bin.index.json", folders.INDEX, folders.SINGLE, "tf_model.h5", "a.pt")
    for name in (*copied, *weights, "pytorch_model.bin", "config.json", LOCK):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "small"
    target.mkdir()
    folders.copy_others(tmp_path, target)
    found = {path.name: path.read_text(encoding="utf-8") for path in target.iterdir()}
    assert found == {name: name for name in copied}


def test_files_appear_together_or_not_at_all(tmp_path):
    (tmp_path / ".unfinished-killed").mkdir()
    with pytest.raises(FileNotFoundError), folders.staging(tmp_path) as new:
        (new / "missing" / "model.safetensors").write_text("half", encoding="utf-8")
    assert list(tmp_path.iterdir()) == []
    with folders.staging(tmp_path) as new:
        for name in ("config.json", "z"):
            (new / name).write_text(name, encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "z"}
    with (
        pytest.raises(InputError, match="must be a folder without a model"),
        folders.staging(tmp_path),
    ):
        pass


def test_a_small_model_is_written_again_in_its_own_place(tmp_path):
    """A second training writes its model in place of the first model."""
    for number in (1.0, 2.0):
        params = {"a.weight": np.full((2, 3), number, np.float32), "b": np.full(4, -number)}
        export.write(tmp_path / "model", params)
        found = folders.tensors(tmp_path / "model")
        assert found.keys() == params.keys()
        for name, array in params.items():
            np.testing.assert_array_equal(found[name].read(), array)
        assert folders.read_config(tmp_path / "model") == training.CONFIG
    names = [path.name for path in (tmp_path / "model").iterdir() if path.name[0] != "."]
    assert sorted(names) == [
        "config.json",
        "model-00001-of-00001.safetensors",
        folders.INDEX,
        "tokenizer.json",
        "tokenizer_config.json",
    ]
