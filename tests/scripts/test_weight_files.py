"""Residual networks from weight files: the layout of arrays, and invalid files."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

import prune
from experiments.cli import InputError
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.measures.plan import Plan
from experiments.training import weight_files
from prune import Options


def pytorch_arrays(classes=10):
    """Random arrays of a network of depth 8, in PyTorch's names and layout."""
    rng = np.random.default_rng(0)
    arrays = {}

    def layer(conv, norm, inputs, outputs):
        arrays[f"{conv}.weight"] = rng.normal(size=(outputs, inputs, 3, 3)) / (3 * inputs**0.5)
        for name in ("weight", "bias", "running_mean", "running_var"):
            arrays[f"{norm}.{name}"] = rng.uniform(0.5, 1.5, outputs)
        arrays[f"{norm}.num_batches_tracked"] = np.array(7.0)

    layer("conv1", "bn1", 3, 16)
    for stage, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
        layer(f"layer{stage}.0.conv1", f"layer{stage}.0.bn1", inputs, outputs)
        layer(f"layer{stage}.0.conv2", f"layer{stage}.0.bn2", outputs, outputs)
    arrays["linear.weight"] = rng.normal(size=(classes, 64))
    arrays["linear.bias"] = rng.normal(size=classes)
    return {name: array.astype("float32") for name, array in arrays.items()}


@pytest.fixture
def weight_file(tmp_path):
    def saved(changes=()):
        arrays = pytorch_arrays() | dict(changes)
        save_file({n: a for n, a in arrays.items() if a is not None}, tmp_path / "net.safetensors")
        return tmp_path / "net.safetensors"

    return saved


def convolved(x, kernel, stride):
    """PyTorch's convolution of zero-padded images (n, c, h, w), by a loop."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    _, _, h, w = x.shape
    out = np.zeros((len(x), len(kernel), h, w))
    for i in range(3):
        for j in range(3):
            out += np.einsum(
                "nchw,oc->nohw", padded[:, :, i : i + h, j : j + w], kernel[:, :, i, j]
            )
    return out[:, :, ::stride, ::stride]


def logits(arrays, x):
    """The logits of the network in NumPy, with channels first."""

    def layer(x, conv, norm, stride=1):
        shape = (-1, 1, 1)
        gain = arrays[f"{norm}.weight"] / np.sqrt(arrays[f"{norm}.running_var"] + 1e-5)
        shift = arrays[f"{norm}.bias"] - gain * arrays[f"{norm}.running_mean"]
        out = convolved(x, arrays[f"{conv}.weight"], stride)
        return out * gain.reshape(shape) + shift.reshape(shape)

    x = np.maximum(layer(x, "conv1", "bn1"), 0)
    for stage in (1, 2, 3):
        stride, name = min(stage, 2), f"layer{stage}.0"
        y = np.maximum(layer(x, f"{name}.conv1", f"{name}.bn1", stride), 0)
        y = layer(y, f"{name}.conv2", f"{name}.bn2")
        extra = (y.shape[1] - x.shape[1]) // 2
        x = np.pad(x[:, :, ::stride, ::stride], ((0, 0), (extra, extra), (0, 0), (0, 0)))
        x = np.maximum(x + y, 0)
    return x.mean((2, 3)) @ arrays["linear.weight"].T + arrays["linear.bias"]


def test_the_network_of_a_weight_file_is_pytorch_s(weight_file):
    model = nnx.view(weight_files.read(weight_file()), use_running_average=True)
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype("float32")
    expected = logits(pytorch_arrays(), x)
    found = model(jnp.asarray(x.transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert weight_files.name(weight_file()) == "resnet8"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"linear.weight": None}, "its kernels are conv1"),
        ({"layer1.0.conv2.weight": None}, "depth must be 6k"),
        ({"bn1.bias": None}, "bn1.bias"),
        ({"bn1.bias": np.zeros(7, "float32")}, r"bn1.bias must have shape \(16,\); it has \(7,\)"),
        (
            {"conv1.weight": np.zeros((16, 3, 5, 1), "float32")},
            r"conv1.weight must have shape \(16, 3, 3, 3\); it has \(16, 3, 5, 1\)",
        ),
        ({"linear.bias": np.full(10, np.nan, "float32")}, "linear.bias must be finite"),
    ],
)
def test_weights_of_another_network_are_refused(changes, sentence, weight_file):
    with pytest.raises(InputError, match=f"must hold a residual network of depth.*{sentence}"):
        weight_files.read(weight_file(changes))


def test_other_files_are_refused(weight_file, tmp_path):
    whole = weight_file().read_bytes()
    for name, data, sentence in (
        ("net.pt", whole, "must end in .safetensors"),
        ("cut.safetensors", whole[:-8], "cannot be read|must be a whole"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=f"{name} must hold.*{sentence}"):
            prune.main(Options(tmp_path / name, out=tmp_path / "out"))


def test_images_that_the_network_does_not_take_are_refused(weight_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        InputError, match=r"images must have 3 channels, like the network; .* have 1"
    ):
        prune.main(Options(weight_file(), out=tmp_path))
    x = np.zeros((2, 4, 4, 3), "float32")
    images = Images("pears", "", 7, x, np.zeros(2, int), x, np.zeros(2, int))
    with pytest.raises(InputError, match=r"3 channels and 10 classes.*; pears has 3 and 7"):
        weight_files.check_fits(weight_files.read(weight_file()), images)


@pytest.mark.slow
@pytest.mark.usefixtures("users_jax")
def test_a_weight_file_is_pruned_and_repaired(weight_file, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 8, 8, 3)).astype("float32"), rng.integers(0, 10, 200)
    images = Images("noise", "", 10, x, y, x[:50], y[:50])
    monkeypatch.setattr(datasets, "load", lambda *_: images)
    plan = Plan(fine_tune=1, repair="least_squares", exclude=("stem",))
    options = Options(weight_file(), plan=plan, batch_sizes=(), out=tmp_path / "out")
    prune.main(options)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    model = nnx.view(weight_files.read(weight_file()), use_running_average=True)
    share = np.mean(np.asarray(model(jnp.asarray(x[:50]))).argmax(1) == y[:50])
    assert results["accuracy"]["trained"]["values"] == [pytest.approx(share)]
    widths = {name.removeprefix("params/"): n for name, n in results["widths"]["pruned"].items()}
    assert (widths["stem"], widths["blocks/0/conv1"]) == (16, 8), widths
