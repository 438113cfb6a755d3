"""Benchmarks call the programs of a table in turn, and time them after warm-up calls."""

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bench
from experiments.benchmarks import (
    coupling,
    distances,
    geometry,
    halves,
    layers,
    pruning,
    timing,
    training,
    transformers,
)
from experiments.cli import InputError
from experiments.recipes import replace
from jaxnorm import models
from pruning import coupled_channels, mask_channels, remove_channels
from pruning.channels import resized
from tests.support import language_models
from tools.results import FOLDER
from tools.tables import DOCS


@pytest.fixture
def small_transformers(monkeypatch):
    small = {"LAYERS": 2, "WIDTH": 24, "HEADS": 3, "WORDS": 50, "TOKENS": 7, "BATCHES": (2,)}
    for name, value in small.items():
        monkeypatch.setattr(transformers, name, value)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("group", [layers.training, layers.inference])
@pytest.mark.parametrize("shape", [(16, 4, 4, 3), (16, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-4), (jnp.bfloat16, 0.05)])
def test_both_sides_of_a_layer_compute_the_same(monkeypatch, group, shape, dtype, tolerance):
    monkeypatch.setattr(layers, "SHAPES", (shape,))
    with jax.numpy_dtype_promotion("standard"):  # Flax's layers mix dtypes
        pairs = group(dtype)
    for pair in pairs:
        found, expected = jax.tree.leaves(pair.ours()), jax.tree.leaves(pair.peer())
        assert found[0].dtype == expected[0].dtype == dtype
        assert np.isfinite(pair.memory)
        assert pair.copy().shape == shape
        # Gradients of alpha have no counterpart in Flax, and running variances differ by Bessel's
        # correction, so neither is compared.
        shapes = [leaf.shape for leaf in expected if leaf.shape in (shape, ())]
        assert shapes
        for a, b in zip(kept(found, shape), kept(expected, shape), strict=True):
            np.testing.assert_allclose(*in_float32(a, b), rtol=tolerance, atol=tolerance)


def test_a_layer_in_inference_knows_nothing_of_its_batch(monkeypatch):
    """With initial running averages, batch norm in inference does not remove the input's mean."""
    monkeypatch.setattr(layers, "SHAPES", ((16, 3),))
    with jax.numpy_dtype_promotion("standard"):
        inference, training = (
            group(jnp.float32)[0] for group in (layers.inference, layers.training)
        )
    outputs = [np.asarray(jax.tree.leaves(pair.ours())[0]) for pair in (inference, training)]
    assert [y.shape for y in outputs] == [(16, 3)] * 2
    means = [np.abs(y.mean(0)).max() for y in outputs]
    assert means[0] > 0.01 > 1e-5 > means[1]


def test_a_resnet_is_timed_in_inference(monkeypatch):
    class Small(nnx.Module):
        def __init__(self, depth, *, classes, norm, rngs):
            assert (depth, classes) == (20, 10)
            self.norm = norm(3, rngs=rngs)

        def __call__(self, x):
            return self.norm(x)

    monkeypatch.setattr(models, "PreActResNet", Small)
    monkeypatch.setattr(layers, "IMAGES", (16, 3))
    with jax.numpy_dtype_promotion("standard"):
        pairs = layers.resnets(jnp.float32)
    assert [pair.like for pair in pairs] == [*layers.LAYERS]
    for pair in pairs:
        found, expected = np.asarray(pair.ours()), np.asarray(pair.peer())
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert np.abs(found.mean(0)).max() > 0.01  # in inference, no batch mean is subtracted


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(jnp.float32, 1e-4), pytest.param(jnp.bfloat16, 0.1, marks=pytest.mark.slow)],
)
def test_both_sides_of_a_network_compute_the_same(monkeypatch, dtype, tolerance):
    monkeypatch.setattr(layers, "VECTORS", (16, 4))
    monkeypatch.setattr(layers, "DEPTH", 2)
    with jax.numpy_dtype_promotion("standard"):
        pairs = layers.mlps(dtype)
    for pair in pairs:
        for shape in ((16, 10), (16, 4)):  # shapes of the outputs and of the gradient of the inputs
            (found,) = kept(jax.tree.leaves(pair.ours()), shape)
            (expected,) = kept(jax.tree.leaves(pair.peer()), shape)
            assert found.dtype == expected.dtype == dtype
            np.testing.assert_allclose(*in_float32(found, expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "largest", "most"),
    # If inputs are vectors, XLA's CPU back end materializes products in the backward pass.
    [((128, 8, 8, 64), 0.9, 1.1), ((256, 1024), 1.9, 2.5)],
)
def test_gradients_take_the_memory_that_the_docs_say(monkeypatch, shape, largest, most):
    monkeypatch.setattr(layers, "SHAPES", (shape,))
    pairs = layers.training(jnp.float32)
    assert max(pair.memory or 0 for pair in pairs) > largest
    for pair in pairs:
        assert pair.memory is not None
        assert pair.memory <= (1.1 if pair.name.startswith("BatchNorm") else most), pair.name


def in_float32(*arrays):
    return [np.asarray(a, np.float32) for a in arrays]


def kept(leaves, shape):
    return [leaf for leaf in leaves if leaf.shape in (shape, ())]


class Side:
    """A fake program; waiting for its result advances a made-up clock by the next of `seconds`."""

    def __init__(self, name, seconds, calls, clock):
        self.name, self.seconds, self.calls, self.clock = name, iter(seconds), calls, clock

    def __call__(self):
        self.calls.append(self.name)
        return self

    def block_until_ready(self):
        self.clock[0] += next(self.seconds)
        return self


def test_a_row_holds_medians_ratio_quartiles_copy_and_memory(monkeypatch):
    """The programs of a pair are called in turn; three calls of each are warm-up without timing."""
    calls, clock = [], [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    # The ratio of the medians is 2/4. The median ratio of neighboring calls is 2/3.
    seconds = {"ours": 2 * [50, 60, 70, 1, 2, 9], "peer": [90, 80, 70, 4, 3, 4]}
    seconds["copy"] = [30, 20, 10, 1, 1, 2]
    sides = {name: Side(name, s, calls, clock) for name, s in seconds.items()}
    pair = timing.Pair("x", sides["ours"], sides["peer"], sides["copy"], 0.5)
    found = timing.time_pair(pair, 3)
    assert calls == 6 * ["ours", "peer"] + 6 * ["ours", "copy"]
    quartiles = (0.25 + 2 / 3) / 2, (2 / 3 + 2.25) / 2
    assert found == timing.Timing("x", 2000, 4000, 2 / 3, quartiles, 2.0, 0.5)
    assert bench.cells(found) == ["x", "2000.00", "4000.00", "0.67", "0.46 to 1.46", "2.0", "0.50"]


@pytest.mark.parametrize(("most", "runs"), [(None, 4), (2, 2), (9, 4)])
def test_a_pair_is_run_as_often_as_asked_or_as_it_allows(most, runs):
    calls = []
    pair = timing.Pair("x", lambda: calls.append(1), lambda: calls.append(2), runs=most)
    timing.time_pair(pair, 4)
    assert calls == (3 + runs) * [1, 2]


def test_no_published_ratio_lies_outside_its_quartiles():
    cells = re.compile(r"(\d+\.\d\d) \((\d+\.\d\d) to (\d+\.\d\d)\)")
    found = [
        tuple(map(float, match))
        for page in DOCS.glob("*.md")
        for match in cells.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(found) > 50
    assert [row for row in found if not row[1] <= row[0] <= row[2]] == []


def test_only_sizes_of_one_thing_have_a_mean():
    names = [("layer (1,)", "layer"), ("layer (2,)", "layer"), ("a loop / PyTorch", None)]
    pairs = [timing.Pair(name, int, int, like=like) for name, like in names]
    timings = [
        timing.Timing(pair.name, 1, 1, ratio, (1, 1))
        for pair, ratio in zip(pairs, (1, 4, 9), strict=True)
    ]
    assert bench.means(pairs, timings) == [["layer, geometric mean", "", "", "2.00"]]


def test_the_numbers_are_kept_with_what_made_them(monkeypatch, tmp_path, capsys):
    pair = timing.Pair("x / y", lambda: 0, lambda: 0)
    monkeypatch.setattr(bench, "choose", lambda options: {"title": lambda: [pair]})
    bench.main(bench.Options(runs=3, dtype="bfloat16", out=tmp_path / "bench.json"))
    assert "bfloat16, 3 runs a side" in " ".join(capsys.readouterr().out.split())
    kept = json.loads((tmp_path / "bench.json").read_text())
    ((row,),) = kept["groups"].values()
    assert row["name"] == "x / y"
    assert row["ours_ms"] > 0
    assert {"command", "date", "environment", "peers", "load", "options"} < kept.keys()
    assert kept["peers"]["flax"] == flax.__version__


def test_the_numbers_of_finished_groups_are_kept_if_a_later_group_fails(monkeypatch, tmp_path):
    def fails():
        raise MemoryError

    a, b, c = (timing.Pair(name, lambda: 0, lambda: 0) for name in "abc")
    groups = {"one": lambda: [a, b], "two": lambda: [c], "three": fails, "four": lambda: [a]}
    monkeypatch.setattr(bench, "choose", lambda _: groups)
    with pytest.raises(MemoryError):
        bench.main(bench.Options(runs=3, out=tmp_path / "bench.json"))
    kept = json.loads((tmp_path / "bench.json").read_text())["groups"]
    assert {title: [row["name"] for row in rows] for title, rows in kept.items()} == {
        "one": ["a", "b"],
        "two": ["c"],
    }


def test_our_scores_and_distances_are_those_of_their_peers(monkeypatch):
    monkeypatch.setattr(pruning, "VGG16", ((16, 27), (8, 9)))
    gm = next(pair for pair in pruning.criteria() if pair.name.startswith("gm /"))
    for found, expected in zip(gm.ours(), gm.peer(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    (pair,) = pruning.distance()
    np.testing.assert_allclose(pair.ours(), pair.peer().statistic, atol=1e-7)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # ott-jax's libraries warn
def test_our_distances_are_those_of_their_peers(monkeypatch):
    for name, shape in (("FEATURES", (9, 3)), ("JOINT", (6, 4)), ("LARGE", (8, 4))):
        monkeypatch.setattr(distances, name, shape)
    features = [pair for pair in distances.features() if pair.name.startswith("emd_1d")]
    for pair in (*features, *distances.joint()):
        np.testing.assert_allclose(pair.ours(), pair.peer(), rtol=1e-5)
    (gradients,) = (pair for pair in distances.features() if "by both samples" in pair.name)
    assert [gradient.shape for gradient in gradients.ours()] == [(9, 3), (9, 3)]


def test_the_memory_of_a_distance_is_the_peak_during_the_call(monkeypatch, capfd):
    """A fake `emd` allocates 48 MB for all samples, and frees the memory before it returns."""
    monkeypatch.setattr(distances, "LARGE", (5, 2))

    def emd(x, y):
        assert x.shape == y.shape
        assert (x == y).sum() == 0
        return np.full(6_000_000 if len(x) == 5 else 1, 1.0).mean()

    def run(command, **options):
        assert command[:2] == [sys.executable, "-c"]
        exec(command[2], {})
        return SimpleNamespace(stdout=capfd.readouterr().out)

    monkeypatch.setattr(distances.jaxnorm.shift, "emd", emd)
    monkeypatch.setattr(distances.subprocess, "run", run)
    seconds, gigabytes = distances.full_size()
    assert 0 < seconds < 5
    assert 0.04 < gigabytes < 0.08


@pytest.mark.slow
@pytest.mark.parametrize("group", [training.steps, training.seeds])
def test_training_is_timed_at_any_size(monkeypatch, group):
    small = replace(training.RECIPE, batch_size=4)
    for name, value in (("RECIPE", small), ("PLAIN", replace(small, augment=False)), ("STEPS", 1)):
        monkeypatch.setattr(training, name, value)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        pairs = group()
        assert len(pairs) >= 2
        for pair in pairs:
            for leaf in jax.tree.leaves((pair.ours(), pair.peer())):
                assert np.isfinite(np.asarray(leaf)).all()


@pytest.mark.slow
def test_half_a_vgg_is_a_quarter_of_the_work_and_2_5_times_as_fast():
    (pair,) = pruning.halved()
    found = re.search(r"ideal (0\.\d+)", pair.name)
    assert found
    np.testing.assert_allclose(float(found[1]), 0.25, atol=0.01)
    assert pair.ours().shape == pair.peer().shape == (32, 10)
    assert timing.time_pair(pair, 3).ratio < 1 / 2.5


def arguments(call: Any) -> Any:
    """The last two arguments bound in the partial `call`: the parameters and the inputs."""
    return call.args[-2:]


def parameters(call: Any) -> Any:
    """The first argument bound in the partial `call`, which holds the parameters."""
    return call.args[0]


def arguments_size(call):
    """The number of elements in all arguments that are bound in the partial `call`."""
    return sum(np.size(leaf) for leaf in jax.tree.leaves(call.args))


def test_rows_of_distances_are_named_by_the_shapes_that_are_timed(monkeypatch, capsys):
    for name, value in {"FEATURES": (5, 2), "JOINT": (4, 3), "LARGE": (8, 3)}.items():
        monkeypatch.setattr(distances, name, value)
    monkeypatch.setattr(distances, "full_size", lambda: (1.25, 2.5))
    monkeypatch.setattr(distances, "ott_quantiles", lambda: None)
    names = [pair.name for group in distances.groups().values() for pair in group()]
    gradients = "gradients of emd_1d by both samples (5,2) / emd_1d"
    assert names == ["emd_1d (5,2) / scipy", gradients, "emd (4,3) / scipy"]
    assert "emd (8, 3), once: 1.2 s, 2.50 GB\n" in capsys.readouterr().out


def test_half_the_work_is_timed_of_any_network(monkeypatch):
    build = {"small": lambda rngs: models.CifarResNet(8, classes=10, rngs=rngs)}
    sizes = {"BUILD": build, "SIDE": 8, "ROUND_TO": 4, "MIN_CHANNELS": 12}
    for name, value in sizes.items():
        monkeypatch.setattr(halves, name, value)
    with jax.numpy_dtype_promotion("standard"):
        (group,) = halves.groups().values()
        pairs = group()
    assert len(pairs) == 6
    for pair in pairs:
        found = re.search(r"batch (\d+), ideal (0\.\d+)", pair.name)
        assert found
        assert pair.ours().shape == pair.peer().shape == (int(found[1]), 10)
        assert np.isfinite(pair.ours()).all()
        within = (0.35, 0.5) if "budget" in pair.name else (0.45, 0.65)
        assert within[0] < float(found[2]) <= within[1]
        assert arguments_size(pair.ours) < arguments_size(pair.peer)
        kernels = (leaf for leaf in jax.tree.leaves(parameters(pair.ours)) if leaf.ndim == 4)
        widths = {kernel.shape[-1] for kernel in kernels}
        if "every group" in pair.name:
            assert widths > {16 - 4, 32 - 9, 64 - 18}  # ⌊0.29 n⌋ of n channels are removed
        else:
            assert min(widths) >= 12
            assert all(width % 4 == 0 for width in widths) == ("multiples of 4" in pair.name)


@pytest.mark.parametrize("family", [pytest.param("GPT-2", marks=pytest.mark.slow), "LLaMA"])
def test_transformers_are_timed_at_any_size(small_transformers, family):
    (group,) = (g for title, g in transformers.groups().items() if family in title)
    blocks, stream = group()
    shares = [float(pair.name.rsplit(" ")[-1]) for pair in (blocks, stream)]
    assert 0 < shares[1] < shares[0] < 0.8
    for pair, width in ((blocks, 24), (stream, 12)):
        assert pair.ours().shape == pair.peer().shape == (2, 7, 50)
        assert np.isfinite(pair.ours()).all()
        assert arguments_size(pair.ours) < arguments_size(pair.peer)
        half, whole = map(parameters, (pair.ours, pair.peer))
        assert (half["words"].shape, whole["words"].shape) == ((50, width), (50, 24))
        assert half["layers"]["up"].shape[-1] == whole["layers"]["up"].shape[-1] // 2


def test_half_and_whole_networks_are_timed_for_the_same_texts(small_transformers, monkeypatch):
    def apply(params, tokens):
        return params["words"][tokens] @ params["down"] @ params["head"]

    monkeypatch.setattr(transformers, "BATCHES", (2, 3))
    pairs = transformers.pairs(apply, {"words": (50, 8), "down": (8, 6), "head": (6, 2)})
    # Without `words`, the unpruned network has 8 × 6 + 6 × 2 = 60 weights. The first pruned network
    # has 4 × 6 + 6 × 2 = 36 weights, and the second has 4 × 3 + 3 × 2 = 18.
    shares = {"blocks": 36 / 60, "blocks and stream": 18 / 60}
    names = [
        f"{what}, batch {n}, ideal {share:.3f}" for n in (2, 3) for what, share in shares.items()
    ]
    assert [pair.name for pair in pairs] == names
    for pair, texts in zip(pairs, (2, 2, 3, 3), strict=True):
        (half, read), (whole, same) = map(arguments, (pair.ours, pair.peer))
        np.testing.assert_array_equal(read, same)
        assert read.shape == (texts, 7)
        assert half["words"].size < whole["words"].size == 50 * 8


def test_a_decoder_of_shapes_alone_has_the_groups_of_its_layers(small_transformers, monkeypatch):
    for name, size in {"LAYERS": 3, "WIDTH": 24, "HEADS": 3, "WORDS": 50, "TOKENS": 7}.items():
        monkeypatch.setattr(coupling, name, size)
    (group,) = coupling.groups().values()
    unrolled, scanned = group()
    # A layer has four groups: the query and key channels of a head, its value channels, the heads,
    # and the hidden units of the perceptron.
    queries_values_and_perceptrons = 4
    # The residual stream is one more group.
    assert len(unrolled.ours()) == 3 * queries_values_and_perceptrons + 1
    assert len(scanned.ours()) == queries_values_and_perceptrons + 1
    for timed, equations in ((unrolled, 3), (scanned, 1)):
        found = str(timed.peer())
        assert found.count("name=silu") == equations  # one SwiGLU for each traced layer


def test_a_decoder_is_the_same_with_and_without_a_scan(small_transformers, key):
    shapes = transformers.llama_shapes()
    keys = iter(jax.random.split(key, 99))
    params = jax.tree.map(
        lambda shape: jax.random.normal(next(keys), shape),
        shapes,
        is_leaf=lambda value: isinstance(value, tuple),
    )
    number = len(params["layers"]["q"])
    listed = [jax.tree.map(lambda p, i=i: p[i], params["layers"]) for i in range(number)]
    tokens = jnp.arange(7)[None]
    np.testing.assert_allclose(
        transformers.unrolled_llama(params | {"layers": listed}, tokens),
        transformers.llama(params, tokens),
        rtol=1e-9,
    )


def test_norms_positions_and_attention_of_a_transformer_are_the_published_ones(small_transformers):
    rng = np.random.default_rng(0)
    x, scale, bias = rng.normal(size=(2, 7, 24)), rng.normal(size=24), rng.normal(size=24)
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    found = transformers.layer_norm(*map(jnp.asarray, (x, scale, bias)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    found = transformers.rms_norm(jnp.asarray(x), jnp.asarray(scale))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    q, k, v = rng.normal(size=(3, 1, 7, 3, 8))
    pairs = q[..., :4] + 1j * q[..., 4:]  # pair i is rotated by position / 10000^(i/4)
    turned = pairs * np.exp(1j * np.arange(7)[:, None, None] / 10000 ** (np.arange(4) / 4))
    found = np.asarray(transformers.rotate(jnp.asarray(q)))
    np.testing.assert_allclose(found[..., :4] + 1j * found[..., 4:], turned, rtol=1e-9)
    found = np.asarray(transformers.attention(*map(jnp.asarray, (q, k, v))))
    for i in range(7):
        scores = np.einsum("hd,khd->hk", q[0, i], k[0, : i + 1]) / np.sqrt(8)
        shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        expected = np.einsum("hk,khd->hd", shares, v[0, : i + 1])
        np.testing.assert_allclose(found[0, i], expected, rtol=1e-6)


def in_files_of_gpt2(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """The parameters under the names of GPT-2's files; missing biases are zero."""
    found = {"wte.weight": params["words"], "wpe.weight": params["positions"]}
    found |= {"ln_f.weight": params["scale"], "ln_f.bias": params["bias"]}
    width = len(params["scale"])
    for i in range(len(params["layers"]["up"])):
        p = {name: value[i] for name, value in params["layers"].items()}
        qkv = np.concatenate([p[name].reshape(width, -1) for name in "qkv"], 1)
        layer = {"ln_1.weight": p["scale"], "ln_1.bias": p["bias"]}
        layer |= {"ln_2.weight": p["scale_mlp"], "ln_2.bias": p["bias_mlp"]}
        layer |= {"attn.c_attn.weight": qkv, "attn.c_attn.bias": np.zeros(3 * width)}
        layer |= {"attn.c_proj.weight": p["o"].reshape(-1, width)}
        layer |= {"attn.c_proj.bias": np.zeros(width), "mlp.c_proj.bias": np.zeros(width)}
        layer |= {"mlp.c_fc.weight": p["up"], "mlp.c_fc.bias": p["shift"]}
        layer |= {"mlp.c_proj.weight": p["down"]}
        found |= {f"h.{i}.{name}": value for name, value in layer.items()}
    return {f"transformer.{name}": value for name, value in found.items()}


def in_files_of_llama(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """The parameters under the names of LLaMA's files, whose kernels are (outputs, inputs)."""
    found = {"model.embed_tokens": params["words"], "model.norm": params["scale"]}
    found |= {"lm_head": params["head"].T}
    width = len(params["scale"])
    for i in range(len(params["layers"]["up"])):
        p = {name: value[i] for name, value in params["layers"].items()}
        layer = {"input_layernorm": p["scale"], "post_attention_layernorm": p["scale_mlp"]}
        layer |= {f"self_attn.{name}_proj": p[name].reshape(width, -1).T for name in "qkv"}
        layer |= {"self_attn.o_proj": p["o"].reshape(-1, width).T}
        layer |= {f"mlp.{name}_proj": p[name].T for name in ("gate", "up", "down")}
        found |= {f"model.layers.{i}.{name}": value for name, value in layer.items()}
    return {f"{name}.weight": value for name, value in found.items()}


@pytest.mark.parametrize(
    ("family", "in_files", "config"),
    [
        ("gpt", in_files_of_gpt2, {"model_type": "gpt2", "activation_function": "gelu_new"}),
        ("llama", in_files_of_llama, {"model_type": "llama", "hidden_act": "silu"}),
    ],
)
def test_a_transformer_that_is_timed_is_the_published_one(
    small_transformers, family, in_files, config
):
    """The expected logits come from a decoder in NumPy with loops over positions and heads."""
    shapes, rng = getattr(transformers, f"{family}_shapes")(), np.random.default_rng(0)
    params = jax.tree.map(lambda n: rng.normal(size=n), shapes, is_leaf=lambda n: type(n) is tuple)
    config |= {"n_embd": 24, "n_head": 3, "n_layer": 2, "layer_norm_epsilon": 1e-5}
    config |= {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
    config |= {"num_hidden_layers": 2, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0}
    tokens = rng.integers(0, 50, (2, 7))
    found = getattr(transformers, family)(jax.tree.map(jnp.asarray, params), tokens)
    for sequence, logits in zip(tokens, found, strict=True):
        expected = language_models.logits(config, in_files(params), list(sequence))
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_what_is_timed_of_a_transformer_is_the_masked_one(small_transformers, family):
    apply = getattr(transformers, family)
    shapes = getattr(transformers, f"{family}_shapes")()
    rng, x = np.random.default_rng(0), np.arange(14).reshape(2, 7)
    params = jax.tree.map(lambda n: rng.normal(size=n), shapes, is_leaf=lambda n: type(n) is tuple)
    groups = coupled_channels(apply, params, x, resize=True)
    keep = [np.arange(group.size) % 2 == 0 for group in groups]
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    assert small["words"].shape == (50, 12)
    found = resized(apply, groups, keep)(small, x)
    np.testing.assert_allclose(found, apply(masked, x), rtol=1e-9, atol=1e-9)


def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match="--runs must be at least 3; got 1"):
        bench.main(bench.Options(runs=1))
    with pytest.raises(InputError, match="--dtype must be one of float32, bfloat16; got int8"):
        bench.main(bench.Options(dtype="int8"))
    subjects = "layers, distances, pruning, coupling, halves, geometry, maps, training"
    with pytest.raises(InputError, match=f"--only must be one of {subjects}; got pears"):
        bench.main(bench.Options(only="pears"))
    assert all(subject in str(bench.Options.__doc__) for subject in subjects.split(", "))


@pytest.fixture
def small_geometry(monkeypatch):
    for name, size in (("WIDTH", 8), ("BATCH", 4), ("LAYERS", 3), ("DEPTH", 5), ("TREES", 2)):
        monkeypatch.setattr(geometry, name, size)
    monkeypatch.setattr(geometry, "POINTS", 4)
    monkeypatch.setattr(geometry, "GENERATORS", ("threefry2x32",))


def test_random_networks_are_timed_by_generator(small_geometry):
    network, weights = geometry.networks()
    assert network.name == "network, threefry2x32 / draws and products"
    assert network.ours().shape == network.peer().shape == (4, 8)
    np.testing.assert_array_equal(weights.ours(), weights.peer())


def test_each_row_of_random_networks_has_the_draws_of_its_generator(small_geometry, monkeypatch):
    monkeypatch.setattr(geometry, "GENERATORS", ("threefry2x32", "rbg"))
    *networks, first, second = geometry.networks()
    assert not np.array_equal(*(pair.ours() for pair in networks))
    assert not np.array_equal(*(pair.peer() for pair in networks))
    np.testing.assert_array_equal(first.ours(), first.peer())
    np.testing.assert_array_equal(second.peer(), first.peer())
    assert not np.array_equal(second.ours(), second.peer())


@pytest.mark.slow
def test_trees_and_draws_are_timed_at_any_size(small_geometry):
    for group in list(geometry.groups().values())[1:]:
        for pair in group():
            for leaf in jax.tree.leaves((pair.ours(), pair.peer())):
                assert jnp.isfinite(leaf).all()


def test_the_memory_of_a_map_is_ours_over_the_closed_form_s(monkeypatch):
    """A fake compiler reports made-up memory. For the map of a single cosine, none is measured."""
    memory = iter((12, 4))
    monkeypatch.setattr(
        geometry, "compiled", lambda run, x: timing.Compiled(lambda: (run, x), next(memory))
    )
    monkeypatch.setattr(geometry.geometry.mean_field, "kernel_map", lambda *_: jnp.asarray(0.0))
    series, batch = geometry.maps()
    assert (series.memory, batch.memory) == (None, 3)
    run, x = batch.peer()
    assert run is geometry.geometry.arccosine_kernel
    np.testing.assert_array_equal(x, np.eye(geometry.SAMPLES))
    assert batch.ours()[0] is not run


def test_the_map_of_a_series_ends_where_the_closed_form_does(monkeypatch):
    monkeypatch.setattr(geometry, "MAPPED", 30)
    monkeypatch.setattr(geometry, "SAMPLES", 4)
    series, batch = geometry.maps()
    np.testing.assert_allclose(series.ours(), series.peer(), rtol=1e-5)
    np.testing.assert_allclose(batch.ours(), batch.peer(), atol=1e-5)
    assert batch.memory is not None
    assert batch.memory > 10  # the series needs memory for 64 matrices of terms


def test_peers_have_the_versions_that_are_imported(tmp_path, monkeypatch):
    """A later folder of `sys.path` has another version of Flax, which Python does not import."""
    (tmp_path / "flax-99.dist-info").mkdir()
    (tmp_path / "flax-99.dist-info" / "METADATA").write_text("Name: flax\nVersion: 99\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert timing.peers()["flax"] == flax.__version__


def test_on_a_gpu_pytorch_is_left_out_and_the_layers_are_larger(monkeypatch, capsys):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert timing.torch_on_all_cores("the network") is None
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("the network is left out: PyTorch would run on the CPU")
    assert layers.shapes() == layers.SHAPES + layers.LARGE


def subject_of(file):
    """The part of a file's name before the first hyphen: the subject, without device and dtype."""
    return file.stem.partition("-")[0]


@pytest.mark.parametrize("file", sorted((FOLDER / "bench").glob("*.json")), ids=lambda f: f.stem)
def test_the_numbers_of_a_file_were_made_at_the_sizes_that_the_bench_has(file):
    recorded = json.loads(file.read_text(encoding="utf-8"))
    groups = list(bench.choose(bench.Options(only=subject_of(file))))
    if "note" in recorded:  # the note says that the command ended before the last groups
        groups = groups[: len(recorded["groups"])]
    assert list(recorded["groups"]) == groups


@pytest.mark.parametrize(
    ("file", "more"),
    [("layers", ()), ("layers-h200-float32", layers.LARGE), ("layers-h200-bfloat16", layers.LARGE)],
)
def test_the_layers_of_a_file_have_the_shapes_that_the_bench_has(file, more):
    path = FOLDER / "bench" / f"{file}.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))["groups"]
    by_layer, inference, network, mlp = ([row["name"] for row in r] for r in recorded.values())
    shapes = [f"({','.join(map(str, shape))})" for shape in (*layers.SHAPES, *more)]
    expected = {f"{name} {shape} / flax" for name in layers.LAYERS for shape in shapes}
    assert set(by_layer) == set(inference) == expected
    assert set(network) == {f"{name} {layers.IMAGES} / flax" for name in layers.LAYERS}
    deep = f"{layers.VECTORS}, {layers.DEPTH} layers"
    assert set(mlp) == {f"{name} {deep} / flax" for name in layers.LAYERS}


PAGES = [page for page in DOCS.glob("*.md") if "<!-- bench:" in page.read_text(encoding="utf-8")]


def test_every_file_of_numbers_is_of_a_clean_commit_and_shown_whole():
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for path in DOCS.glob("results/bench/*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert "dirty" not in found["environment"]["commit"]
        assert f"--only {subject_of(path)} " in found["command"]
        for title in found["groups"]:
            assert f"**{title[0].upper()}{title[1:]}**" in shown


@pytest.mark.parametrize("dtype", bench.DTYPES)
def test_layers_are_timed_in_the_dtype_that_is_asked_for(dtype, monkeypatch):
    asked = []
    monkeypatch.setattr(layers, "groups", lambda dtype: asked.append(jnp.dtype(dtype)) or {})
    bench.choose(bench.Options(only="layers", dtype=dtype))
    assert asked == [jnp.dtype(dtype)]
