"""Damaged or malicious files are read, or raise an error of one sentence, within limits."""

import gc
import io
import json
import os
import pickle
import re
import subprocess
import sys
import time
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from flax.serialization import msgpack_serialize

from pruning.weights import WeightsError, load
from pruning.weights._interpreter import Function, Interpreter
from pruning.weights._msgpack import Parser
from tests.support import crafted_files, crafted_pickles
from tests.support.mutated_files import keras, mutated, originals
from tests.support.torch_files import BIAS, MATRIX, WEIGHT, in_a_row, tensor, tensors, zipped

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("unchecked")  # type checks would change the measured time


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def refused(path):
    """The message of the error that a file raises in less than 3 seconds of CPU time.

    Each file takes at most 0.7 s on an idle machine, and twice as long beside other work. A reader
    without limits would need minutes.
    """
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(WeightsError) as caught:
            load(path, dense=True, vectors=True)
    assert time.process_time() - start < 3
    said = str(caught.value)
    assert "must" in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", crafted_pickles.small())
def test_small_pickles_neither_hang_nor_fill_memory(name, tmp_path):
    content = crafted_pickles.small()[name]
    assert len(content) < 2000
    refused(written(tmp_path, "a.pt", zipped(content)))
    refused(written(tmp_path, "a.pth", in_a_row(content)))


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "keys", "text"])
def test_a_container_that_a_call_may_copy_is_charged(kind, tmp_path):
    for name, content in crafted_pickles.copied(n=3000, times=3000):
        if f"-{kind}-" in name:
            refused(written(tmp_path, f"{name}.pt", zipped(content)))


@pytest.mark.parametrize("name", crafted_pickles.INTEGERS)
def test_integers_of_a_pickle_cannot_collide(name, tmp_path):
    content = crafted_pickles.START + crafted_pickles.integer_keys()[name] + b"."
    refused(written(tmp_path, "a.pt", zipped(content)))
    refused(written(tmp_path, "a.pth", in_a_row(content)))


def test_the_crafted_integers_collide():
    """A dictionary of the crafted integers is slow, because their hashes collide."""
    walking = crafted_pickles.colliding(20_000, 15)
    start = time.process_time()
    found = dict.fromkeys(walking)
    between = time.process_time()
    assert len(found) == len(dict.fromkeys(map(str, walking)))
    assert between - start > 5 * (time.process_time() - between)


@pytest.mark.parametrize("key", [0, -1, 2**60, -(2**60)])
def test_a_small_integer_is_a_key(key, tmp_path):
    tree = {"state_dict": {key: {"weight": tensor(WEIGHT, "0")}}}
    assert [*load(written(tmp_path, "a.pt", zipped(tree)))] == [str(key)]


@pytest.mark.parametrize("key", [2**60 + 1, -(2**60) - 1])
def test_a_large_integer_of_either_sign_is_no_key(key, tmp_path):
    tree = {"state_dict": {key: {"weight": tensor(WEIGHT, "0")}}}
    said = refused(written(tmp_path, "a.pt", zipped(tree)))
    assert "integer keys must lie within ±2**60" in said


@pytest.mark.parametrize("kind", ["soft", "external"])
def test_an_hdf5_file_opens_no_other_file(kind, tmp_path):
    os.mkfifo(tmp_path / "fifo")  # opening a FIFO would block
    links = {"soft": h5py.SoftLink("/w"), "external": h5py.ExternalLink(tmp_path / "fifo", "/")}
    content = crafted_files.with_weights(lambda file: file.update(model_weights=links[kind]))
    said = refused(written(tmp_path, "a.h5", content))
    assert "model_weights must be stored in the file itself; it is a link" in said
    assert "must be stored in the file" in refused(written(tmp_path, "a.keras", keras(content)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nils", "parts and text must not exceed"),
        ("empty-maps", "parts and text must not exceed"),
        ("nested-empty-maps", "parts and text must not exceed"),
        ("deep-maps", "at most 64 deep"),
        ("negative", "natural numbers"),
        ("both-negative", "natural numbers"),
        ("flag", "natural numbers"),
        ("chunks", "natural numbers"),
        ("fields", "none of the 0 arrays"),
        ("list-key", "a string or an integer"),
        ("reserved", "must not begin with the byte 193"),
        ("large-shape", "its 36 bytes of float32; got [18446744073709551615, 18446744073709"),
        ("long-content", "its 36 bytes of float32; got [3, 2]"),
        ("claimed-bytes", "must be complete; it ends in the middle of a value"),
    ],
)
def test_msgpack_is_counted_before_it_is_built(name, said, tmp_path):
    content = dict(crafted_files.msgpack_files(n=10**6))[f"{name}.msgpack"]
    assert said in refused(written(tmp_path, "a.msgpack", content))


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (crafted_files.nested, "at most 64 deep"),
        (lambda file: file.update({1001 * "a": WEIGHT}), "with paths of at most 1000 bytes; got"),
        (crafted_files.many_datasets, "at most 3055 arrays"),
        (crafted_files.compressed, "stored uncompressed"),
        (crafted_files.layer_names, "layer_names must fit"),
        (crafted_files.tiny_chunks, "chunks and types must not exceed"),
        (crafted_files.partial_chunks, "chunks and types must not exceed"),
        (crafted_files.virtual, "must be stored in the file"),
        (crafted_files.external_data, "must be stored in the file"),
        (partial(crafted_files.compounds, n=31, fields=1), "chunks and types must not exceed"),
    ],
)
def test_hdf5_is_counted_before_it_is_read(fill, said, tmp_path):
    content = crafted_files.with_weights(fill)
    assert said in refused(written(tmp_path, "a.h5", content))
    assert said.split()[-1] in refused(written(tmp_path, "a.keras", keras(content)))
    # The garbage collector must free the error and its buffers without a `BufferError`.
    gc.collect()


def test_hdf5_may_have_many_numbers_beside_its_weights(tmp_path):
    numbers = {f"n{k}": np.int64(k) for k in range(100)}
    others: dict[str, Any] = {"text": "text", "long": np.zeros(9999, int)}
    content = crafted_files.with_weights(lambda file: file.update(numbers | others))
    path = written(tmp_path, "a.h5", content)
    assert len(load(path, max_bytes=WEIGHT.nbytes)) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"N0" * 200_000 + b"N.", "must not exceed the limits for a file of this size"),
        (b")Na.", "append items to a list, not to a tuple"),
        (b"]NNs.", "set keys of a dictionary, not of a list"),
        (b"cos\nsystem\nNR.", "must call functions with a tuple"),
        (b"].", "must hold a dictionary of tensors; it holds a list"),
        (b"cos\nsystem\n.", "must hold a dictionary of tensors; it holds a os.system"),
    ],
)
def test_pickles_of_another_kind_are_refused(body, said, tmp_path):
    assert said in refused(written(tmp_path, "a.pt", zipped(b"\x80\x02" + body)))


def test_pickles_in_a_row_share_their_bytes_and_steps():
    """Each of the two pickles has four operations, and is five bytes long, the last one `.`."""
    one = b"]NK\x05."  # the pickle pushes [], None and 5, and returns 5
    for steps, max_bytes, said in (
        (8, 8, None),
        (8, 7, "must not exceed the limits for a file of this size"),
        (7, 8, "must not exceed the limits for a file of this size"),
    ):
        reader = Interpreter({}, lambda pid: pid, steps=steps, max_bytes=max_bytes)
        file = io.BytesIO(2 * one)
        assert reader.load(file) == 5
        if said is None:
            assert reader.load(file) == 5
        else:
            with pytest.raises(WeightsError, match=said):
                reader.load(file)


@pytest.mark.parametrize(("first", "accepted"), [(0, True), (1, True), (2, False)])
def test_the_memo_of_a_pickle_begins_at_0_or_1(first, accepted):
    """Python 3 numbers the memo's entries from 0, Python 2 from 1; the pickle has three entries."""
    pushed = b"".join(b"K%cq%c" % (7 + i, first + i) for i in range(3))
    read = b"".join(b"h%c" % (first + i) for i in range(3))
    reader = Interpreter({}, lambda pid: pid, steps=100, max_bytes=1000)
    file = io.BytesIO(b"(" + pushed + read + b"t.")
    if accepted:
        assert reader.load(file) == (7, 8, 9, 7, 8, 9)
    else:
        with pytest.raises(WeightsError, match="must be numbered in order"):
            reader.load(file)


@pytest.mark.parametrize(("steps", "text"), [(27, 16), (26, 16), (27, 15)])
def test_arrays_in_a_row_share_their_steps_and_text(steps, text):
    """The two keys are 2 bytes of text, and the two names of dtypes are 14 bytes."""
    content = msgpack_serialize({"a": np.ones(2, "float32"), "b": np.ones(2, "float32")})
    parser = Parser(content, steps=steps, max_text=text)
    if (steps, text) == (27, 16):
        assert {name: array.tolist() for name, array in parser.value().items()} == {
            "a": [1.0, 1.0],
            "b": [1.0, 1.0],
        }
    else:
        with pytest.raises(WeightsError, match="parts and text must not exceed the limits"):
            parser.value()


@pytest.mark.parametrize("steps", [105, 106])
def test_elements_of_arguments_count_as_steps(steps):
    """The pickle has six operations, and its call takes 101 more steps for its 100 bytes."""
    pickled = b"\x80\x02cm\nf\nB" + (100).to_bytes(4, "little") + bytes(100) + b"\x85R."
    reader = Interpreter({"m.f": Function(len)}, lambda pid: pid, steps=steps + 1, max_bytes=1000)
    if steps == 106:
        assert reader.load(io.BytesIO(pickled)) == 100
    else:
        with pytest.raises(WeightsError, match="must not exceed the limits"):
            reader.load(io.BytesIO(pickled))


def test_a_list_that_occurs_twice_has_its_items_at_both_places():
    items = [1, 2]
    content = {"first": items, "second": items}
    reader = Interpreter({}, lambda pid: pid, steps=100, max_bytes=1000)
    assert reader.load(io.BytesIO(pickle.dumps(content, protocol=2))) == content


@pytest.mark.parametrize("deep", [64, 65])
def test_hdf5_may_have_64_levels(deep, tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["/".join(["g"] * (deep - 1) + ["kernel"])] = WEIGHT
    if deep == 64:
        assert len(load(path)) == 1
    else:
        assert "at most 64 deep" in refused(path)


def test_a_mapping_that_holds_itself_is_refused():
    tree: dict = {}
    tree["model"] = tree
    with pytest.raises(WeightsError, match="must be a tree at most 64 deep"):
        load(tree)


def recompressed(content, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as stored,
        zipfile.ZipFile(file, "w", method) as archive,
    ):
        for name in stored.namelist():
            archive.writestr(name, stored.read(name))
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (recompressed(zipped(tensors(False))), "must not be compressed; some are compressed"),
        (zipped({"w": tensor(WEIGHT, "0", shape=(5, 2, 3))}), "8 axes, each .* got 3 and 4"),
        (zipped(tensors(False), byteorder=b"big"), "must be in little-endian order"),
        (zipped({}, **{"b/data.pkl": b""}), "must hold one data.pkl; it holds 2"),
    ],
)
def test_archives_of_tensors_that_do_not_fit_are_refused(content, said, tmp_path):
    assert re.search(said, refused(written(tmp_path, "a.pt", content)))


def test_entries_of_archives_are_stored_or_deflated(tmp_path):
    np.savez(file := io.BytesIO(), w=WEIGHT)
    content = recompressed(file.getvalue(), zipfile.ZIP_BZIP2)
    assert "w.npy must be stored or deflated; it is" in refused(written(tmp_path, "a.npz", content))


def test_keras_files_need_h5py(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        ImportError, match=r"Keras files needs h5py: pip install 'jaxnorm\[keras\]'"
    ):
        load(written(tmp_path, "a.h5", b""))


def test_all_storages_of_an_archive_fit_max_bytes(tmp_path):
    path = written(tmp_path, "a.pt", zipped(tensors(False)))
    total = WEIGHT.nbytes + MATRIX.nbytes + BIAS.nbytes
    assert len(load(path, dense=True, vectors=True, max_bytes=total)) == 3
    with pytest.raises(WeightsError, match="left of max_bytes"):
        load(path, dense=True, vectors=True, max_bytes=total - 1)


def test_the_arrays_of_a_keras_file_fit_max_bytes_together(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in ("a", "b"):
            file[name] = np.ones((30, 10), np.float32)
    assert len(load(path, dense=True, max_bytes=2400)) == 2
    for max_bytes in (1199, 2399):
        with pytest.raises(WeightsError, match="max_bytes"):
            load(path, dense=True, max_bytes=max_bytes)


def test_a_file_of_the_old_format_fits_max_bytes(tmp_path):
    content = in_a_row(tensors(True))
    path = written(tmp_path, "a.pt", content)
    assert len(load(path, dense=True, vectors=True, max_bytes=len(content))) == 3
    with pytest.raises(WeightsError, match="max_bytes"):
        load(path, dense=True, vectors=True, max_bytes=len(content) - 1)


@pytest.mark.parametrize("suffix", ["npz", "pt", "keras"])
@pytest.mark.parametrize(("entries", "name"), [(400_000, b"a"), (30, b"a" * 60_000)])
def test_directories_of_archives_are_bounded(entries, name, suffix, tmp_path):
    content = crafted_files.directory(entries, name)
    said = refused(written(tmp_path, f"a.{suffix}", content))
    assert "a directory must have at most" in said


def test_entries_of_archives_are_counted(tmp_path):
    small = crafted_files.npy((1, 1, 1), bytes(4))
    content = crafted_files.zip_of({f"{i}.npy": small for i in range(4000)})
    assert "at most 30" in refused(written(tmp_path, "a.npz", content))


def test_sizes_below_zero_are_none_although_their_product_is_positive(tmp_path):
    content = crafted_files.zip_of({"a.npy": crafted_files.npy((-2, 1, -3), bytes(24))})
    said = refused(written(tmp_path, "a.npz", content))
    assert "a.npy must hold the 6 elements that its header declares; it has 24 bytes" in said
    # The garbage collector must free the error and its buffers without a `BufferError`.
    gc.collect()


def test_headers_of_safetensors_are_bounded(tmp_path):
    content = (2 * 10**6).to_bytes(8, "little") + b'{"w":[' + b"0," * 10**6
    assert "the header must have" in refused(written(tmp_path, "a.safetensors", content))


def test_all_arrays_of_an_npz_file_fit_max_bytes(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=WEIGHT, b=WEIGHT, c=WEIGHT)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        total = sum(info.file_size for info in archive.infolist())
    assert [*load(tmp_path / "a.npz", max_bytes=total)] == ["a", "b", "c"]
    with pytest.raises(WeightsError, match=r"c\.npy must fit .* left of max_bytes"):
        load(tmp_path / "a.npz", max_bytes=total - 1)


def test_archives_that_unpack_to_much_are_read_if_the_caller_says_so(tmp_path):
    zeros = np.zeros((2**20, 3, 4), np.float32)
    np.savez_compressed(tmp_path / "zeros.npz", w=zeros)
    assert "left of max_bytes" in refused(tmp_path / "zeros.npz")
    assert load(tmp_path / "zeros.npz", max_bytes=2**26)["w"].shape == zeros.shape


def test_damaged_files_give_no_other_exception(tmp_path):
    loaded, said = 0, []
    for name, content in mutated(240, seed=1):
        path = written(tmp_path, name, content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                loaded += bool(load(path, dense=True, vectors=True))
            except WeightsError as error:
                said.append(str(error))
    assert loaded > 10
    assert len(said) > 100
    assert all("must" in sentence for sentence in said)


def test_originals_of_the_damaged_files_are_read(tmp_path):
    for name, content in originals().items():
        found = load(written(tmp_path, name, content), vectors=True)
        assert [array.shape for array in found.values()] in (
            [(3, 3, 2, 5), (5,)],
            [(5,), (3, 3, 2, 5)],
        ), name


@pytest.mark.slow
def test_two_thousand_damaged_and_a_hundred_crafted_files_stay_within_a_second_and_64_mebibytes():
    command = [sys.executable, "-m", "tools.bounded_loads", "--mutated", "2000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stdout + done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["files"] - measured["crafted"] == 2000
    assert measured["crafted"] >= 100
    assert measured["faults"] == []
    assert measured["loaded"] > 100
