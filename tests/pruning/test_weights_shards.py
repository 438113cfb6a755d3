"""`weights.load` reads models of Hugging Face, from one file or from shards in a folder."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy as library

from pruning.weights import WeightsError, _limits, load

INDEX = "model.safetensors.index.json"


def arrays():
    rng = np.random.default_rng(0)
    return {
        f"model.layers.{i}.mlp.up_proj.weight": rng.normal(size=(3, 2)).astype(ml_dtypes.bfloat16)
        for i in range(11)
    }


def written(folder, shards):
    found = arrays()
    placed = {name: f"model-{i % shards + 1}.safetensors" for i, name in enumerate(found)}
    for file in set(placed.values()):
        library.save_file({n: a for n, a in found.items() if placed[n] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("source", ["", INDEX])
def test_shards_are_one_model_in_the_order_of_its_layers(tmp_path, source):
    found = load(written(tmp_path, 3) / source, dense=True)
    assert list(found) == [f"model.layers.{i}.mlp.up_proj" for i in range(11)]
    for name, array in arrays().items():
        np.testing.assert_array_equal(found[name.removesuffix(".weight")], array.T)


@pytest.mark.parametrize("name", [INDEX, "ema.safetensors.index.json"])
def test_arrays_may_fill_four_times_the_shards_of_any_index(tmp_path, name):
    written(tmp_path, 3)
    (tmp_path / INDEX).rename(tmp_path / name)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert _limits.default_max_bytes(tmp_path / name) == 2**25 + 4 * size


def test_one_file_is_read_by_its_folder(tmp_path):
    library.save_file(arrays(), tmp_path / "model.safetensors")
    assert len(load(tmp_path, dense=True)) == 11


def test_one_file_is_read_before_the_index_beside_it_and_no_index_of_two(tmp_path):
    written(tmp_path, 3)
    library.save_file({"head.weight": np.ones((3, 2))}, tmp_path / "model.safetensors")
    assert list(load(tmp_path, dense=True)) == ["head"]
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "ema.safetensors.index.json").write_bytes((tmp_path / INDEX).read_bytes())
    with pytest.raises(WeightsError, match="must be an Orbax checkpoint; it has no _METADATA"):
        load(tmp_path, dense=True)


def test_a_missing_shard_is_named(tmp_path):
    written(tmp_path, 3)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"3 shards .*1 are missing, such as model-2\.safeten"):
        load(tmp_path, dense=True)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_a_shard_elsewhere_is_refused(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    library.save_file(arrays(), tmp_path / "secret.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
    with pytest.raises(WeightsError, match="must lie in the folder of the index; 1 are missing"):
        load(folder, dense=True)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": 1}'])
def test_an_index_without_a_map_is_refused(tmp_path, content):
    (tmp_path / INDEX).write_text(content, encoding="utf-8")
    with pytest.raises(WeightsError, match="must have a weight_map"):
        load(tmp_path / INDEX)


def test_an_index_that_is_too_large_for_its_shards_is_refused(tmp_path):
    (tmp_path / INDEX).write_text("[" + "[]," * 2**19 + "[]]", encoding="utf-8")
    with pytest.raises(WeightsError, match="must have at most 1048576 bytes"):
        load(tmp_path / INDEX)


def test_the_arrays_of_all_shards_fit_max_bytes(tmp_path):
    shards = written(tmp_path, 3).glob("*.safetensors")
    total = sum(shard.stat().st_size for shard in shards)
    assert load(tmp_path, dense=True, max_bytes=total)
    with pytest.raises(WeightsError, match="left of max_bytes"):
        load(tmp_path, dense=True, max_bytes=total - 1)


def test_a_json_file_of_another_name_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(WeightsError, match=r" or \.safetensors\.index\.json; got config"):
        load(tmp_path / "config.json")
