"""Networks have the published numbers of parameters, and outputs that can be computed by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxnorm import models
from jaxnorm.nnx import BatchNorm, UnitizedBatchNorm
from tests.support.numpy_programs import output_of

forward = nnx.jit(lambda model, x: model(x))
forward_last_normalized = nnx.jit(lambda model, x: model.last_normalized(x))


def batch(seed=0, shape=(2, 32, 32, 3)):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def unnormalized(features, rngs):
    return lambda x: x


def drawn(shape):
    return np.random.default_rng(0).normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1]))


def copying(shape):
    """A kernel that copies the first inputs to the first outputs, at the central pixel."""
    *size, fan_in, fan_out = shape
    kernel = np.zeros(shape)
    kernel[tuple(side // 2 for side in size)] = np.eye(fan_in, fan_out)
    return kernel


class OneKey(nnx.Rngs):
    """Random streams that return the same key in every call, because new keys slow tracing."""

    def params(self):
        return jax.random.key(0)


def shapes(build):
    return nnx.eval_shape(lambda: build(rngs=OneKey(0)))


def filled(build, kernel):
    """The network with kernels from `kernel(shape)`; scales and variances are 1, all else is 0."""
    fill = {"kernel": kernel, "scale": np.ones, "var": np.ones}
    model = shapes(build)
    for path, variable in nnx.iter_graph(model):
        if isinstance(variable, nnx.Variable):
            values = fill.get(str(path[-1]), np.zeros)(variable.shape)
            variable.set_value(jnp.asarray(values, "float32"))
    return model


def parameters(build):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(shapes(build), nnx.Param)))


@pytest.mark.parametrize(
    ("depth", "classes", "norm", "count"),
    [
        (20, 10, BatchNorm, 273_098),
        (20, 10, UnitizedBatchNorm, 273_802),
        pytest.param(20, 100, BatchNorm, 278_948, marks=pytest.mark.slow),
        pytest.param(20, 100, UnitizedBatchNorm, 279_652, marks=pytest.mark.slow),
        pytest.param(110, 10, BatchNorm, 1_734_698, marks=pytest.mark.slow),
        pytest.param(110, 10, UnitizedBatchNorm, 1_738_762, marks=pytest.mark.slow),
        pytest.param(110, 100, BatchNorm, 1_740_548, marks=pytest.mark.slow),
        pytest.param(110, 100, UnitizedBatchNorm, 1_744_612, marks=pytest.mark.slow),
        pytest.param(164, 10, BatchNorm, 1_715_850, marks=pytest.mark.slow),
        (164, 10, UnitizedBatchNorm, 1_727_978),
        pytest.param(164, 100, BatchNorm, 1_738_980, marks=pytest.mark.slow),
        pytest.param(164, 100, UnitizedBatchNorm, 1_751_108, marks=pytest.mark.slow),
    ],
)
def test_pre_activation_networks_have_the_parameters_of_the_papers_code(
    depth, classes, norm, count
):
    bottleneck = depth == 164
    build = partial(models.PreActResNet, depth, classes=classes, bottleneck=bottleneck, norm=norm)
    assert parameters(build) == count


@pytest.mark.parametrize(
    ("depth", "count"),
    [(20, 269_722), (56, 853_018), pytest.param(110, 1_727_962, marks=pytest.mark.slow)],
)
def test_residual_networks_for_cifar_have_the_published_parameters(depth, count):
    assert parameters(partial(models.CifarResNet, depth, classes=10)) == count


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (partial(models.ResNet, 18), 11_689_512),
        (partial(models.ResNet, 34), 21_797_672),
        (partial(models.ResNet, 50), 25_557_032),
        (partial(models.ResNet, 101), 44_549_160),
        (partial(models.ResNet, 152), 60_192_808),
        (partial(models.VGG, 11, norm=None), 132_863_336),
        (partial(models.VGG, 11), 132_868_840),
        (partial(models.VGG, 13, norm=None), 133_047_848),
        (partial(models.VGG, 13), 133_053_736),
        (partial(models.VGG, 16, norm=None), 138_357_544),
        (partial(models.VGG, 16), 138_365_992),
        (partial(models.VGG, 19, norm=None), 143_667_240),
        (partial(models.VGG, 19), 143_678_248),
    ],
)
def test_networks_for_imagenet_have_the_parameters_of_torchvisions(build, count):
    assert parameters(partial(build, classes=1000)) == count


@pytest.mark.parametrize(
    ("build", "image"),
    [
        (partial(models.PreActResNet, 8), (32, 32, 3)),
        (partial(models.PreActResNet, 11, bottleneck=True), (32, 32, 3)),
        (partial(models.CifarResNet, 8), (32, 32, 3)),
        (partial(models.ResNet, 18), (32, 32, 3)),
        (partial(models.ResNet, 50), (32, 32, 3)),
        (partial(models.ResNet, 50, pre_activation=True), (32, 32, 3)),
        (partial(models.VGG, 11), (224, 224, 3)),
        (partial(models.MLP, inputs=12, widths=(5, 4)), (2, 2, 3)),
    ],
)
def test_every_parameter_is_read(build, image):
    graph, state = nnx.split(nnx.view(shapes(partial(build, classes=3)), use_running_average=True))
    x = jax.ShapeDtypeStruct((2, *image), jnp.float32)
    program = jax.make_jaxpr(lambda state, x: nnx.merge(graph, state)(x))(state, x).jaxpr
    read = {id(v) for eqn in program.eqns for v in eqn.invars}
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)]
    variables = program.invars[: len(paths)]
    assert [p for p, v in zip(paths, variables, strict=True) if id(v) not in read] == []


def test_pre_activation_normalizes_inputs_and_neither_shortcuts_nor_outputs():
    build = partial(models.ResNet, 50, classes=1000, pre_activation=True)
    # A norm has two parameters per channel. A ResNet-50 that normalizes outputs has 25,557,032
    # parameters. With pre-activation, the 64 channels of the first block's input are normalized,
    # too, but neither the shortcuts nor the 2048 channels of the last output.
    shortcuts, first, last = 256 + 512 + 1024 + 2048, 64, 2048
    assert parameters(build) == 25_557_032 - 2 * (shortcuts - first + last)


def test_the_dense_network_has_the_parameters_of_its_layers():
    build = partial(models.MLP, classes=10)
    dense = 785 * 100 + 9 * 101 * 100 + 101 * 8 + 9 * 10
    assert parameters(build) == dense + 2 * (10 * 100 + 8)
    assert parameters(partial(build, norm=UnitizedBatchNorm)) == dense + 3 * (10 * 100 + 8)


def test_a_dense_network_is_its_matrix_products():
    model = filled(partial(models.MLP, inputs=12, widths=(5,), classes=3), drawn)
    images = batch(shape=(7, 2, 2, 3))
    h = np.asarray(images, float).reshape(7, 12) @ np.asarray(model.layers[0].kernel[...])
    h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
    np.testing.assert_allclose(forward_last_normalized(model, images), h, atol=1e-5)
    expected = np.maximum(h, 0) @ np.asarray(model.head.kernel[...])
    np.testing.assert_allclose(forward(model, images), expected, atol=1e-5)


def test_the_dense_network_of_the_paper_shows_eight_normalized_outputs():
    model = filled(partial(models.MLP, classes=10), drawn)
    images = batch(shape=(64, 28, 28, 1))
    last = forward_last_normalized(model, images)
    assert last.shape == (64, 8)
    np.testing.assert_allclose(last.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(last.var(0), 1, atol=1e-3)


SIZES = {
    models.MLP: {"inputs": 4, "classes": 2},
    partial(models.PreActResNet, 8): {"channels": 1, "classes": 2},
    partial(models.CifarResNet, 8): {"channels": 1, "classes": 2},
    partial(models.ResNet, 18): {"classes": 2},
    partial(models.VGG, 11): {"classes": 2},
}


@pytest.mark.parametrize(
    ("build", "name"), [(build, name) for build, sizes in SIZES.items() for name in sizes]
)
@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused_by_its_name(build, name, size):
    with pytest.raises(ValueError, match=f"^{name} must be at least 1; got {size}$"):
        build(**SIZES[build] | {name: size}, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(("depth", "bottleneck", "width"), [(8, False, 64), (11, True, 256)])
def test_a_pre_activation_network_halves_the_resolution_twice_and_classifies(
    depth, bottleneck, width
):
    build = partial(models.PreActResNet, depth, classes=5, channels=1, bottleneck=bottleneck)
    x = batch(shape=(2, 9, 9, 1))
    last = nnx.eval_shape(lambda x: build(rngs=OneKey(0)).last_normalized(x), x)
    assert last.shape == (2, 3, 3, width)
    assert output_of(filled(build, drawn), x).shape == (2, 5)


@pytest.mark.parametrize(
    ("depth", "blocks", "pre_activation"),
    [
        (18, 8, False),
        pytest.param(18, 8, True, marks=pytest.mark.slow),
        pytest.param(50, 16, False, marks=pytest.mark.slow),
        (50, 16, True),
    ],
)
def test_blocks_whose_convolutions_copy_their_input_double_it(depth, blocks, pre_activation):
    build = partial(
        models.ResNet, depth, classes=3, pre_activation=pre_activation, norm=unnormalized
    )
    model = filled(build, copying)
    # The stem selects pixels 0, 2, 4, …. The first pooling window covers pixels 0 and 2. Later
    # strides leave only the output of the first pooling window, because the images have 32×32
    # pixels.
    x = batch()
    corner = np.asarray(x)[:, 0:3:2, 0:3:2].max((1, 2))
    np.testing.assert_array_equal(forward(model, x), 2**blocks * np.maximum(corner, 0))


def test_a_pre_activation_network_for_imagenet_ends_in_relu():
    build = partial(models.ResNet, 18, classes=3, pre_activation=True, norm=unnormalized)
    # The output of the pooling is not negative. Three strided shortcuts, one after another, change
    # the sign of the pooled output three times. Therefore the ReLU at the end gives zeros.
    logits = forward(filled(build, lambda shape: -copying(shape)), batch())
    np.testing.assert_array_equal(logits, 0)


def test_shortcuts_without_parameters_take_every_second_pixel_to_the_middle_channels():
    model = filled(partial(models.CifarResNet, 8, classes=5, channels=1), drawn)
    x = batch(shape=(2, 9, 9, 1))
    for path, layer in nnx.iter_graph(model):
        if path[-1:] == ("norm2",):
            layer.scale[...] = jnp.zeros_like(layer.scale[...])
    stem = np.maximum(np.asarray(model.stem_norm(model.stem(x))), 0)
    expected = stem[:, ::4, ::4].mean((1, 2)) @ np.asarray(model.head.kernel[...])[24:40]
    np.testing.assert_allclose(output_of(model, x), expected, atol=1e-5)


def test_vgg_in_inference_at_unit_statistics_is_vgg_without_normalization():
    build = partial(models.VGG, 11, classes=5, hidden=())
    norm = partial(BatchNorm, epsilon=0.0, use_running_average=True)
    logits = forward(filled(partial(build, norm=None), drawn), batch())
    assert logits.shape == (2, 5)
    normalized = forward(filled(partial(build, norm=norm), drawn), batch())
    np.testing.assert_allclose(normalized, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "build",
    [
        partial(models.VGG, 11, hidden=()),
        partial(models.VGG, 11, hidden=(8, 8, 8)),
        partial(models.MLP, widths=(30, 30, 30)),
        partial(models.CifarResNet, 8),
        partial(models.PreActResNet, 8),
        partial(models.ResNet, 18),
        partial(models.ResNet, 50, pre_activation=True),
    ],
)
def test_every_layer_starts_with_the_variance_of_he_by_a_key_of_its_own(build, monkeypatch):
    """Flax's default initializer would halve the variance. Networks are cut to save time."""
    monkeypatch.setattr("jaxnorm.models._vgg.WIDTHS", (64, 4, 4, 4, 4))
    blocks = dict.fromkeys((18, 50), (1, 0, 0, 0))
    monkeypatch.setattr("jaxnorm.models._resnet.BLOCKS", blocks)
    model = build(classes=600, rngs=nnx.Rngs(0))
    layers = [
        node for _, node in nnx.iter_modules(model) if isinstance(node, nnx.Conv | nnx.Linear)
    ]
    assert model.head in layers
    assert len({np.asarray(layer.kernel[...]).tobytes() for layer in layers}) == len(layers)
    for layer in layers:
        kernel = np.asarray(layer.kernel[...])
        error = kernel.var() * kernel[..., 0].size / 2 - 1
        assert abs(error) < 5 * (2 / kernel.size) ** 0.5
        assert layer.bias is None or not np.any(layer.bias[...])


def test_vgg_with_hidden_layers_wants_the_images_of_imagenet():
    def logits(x, **options):
        return models.VGG(11, classes=5, rngs=nnx.Rngs(0), **options)(x)

    images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
    small = jax.ShapeDtypeStruct((2, 31, 32, 3), jnp.float32)
    assert nnx.eval_shape(logits, images).shape == (2, 5)
    wide, low, tall = (
        jax.ShapeDtypeStruct((2, *sides, 3), jnp.float32)
        for sides in ((224, 192), (192, 224), (32, 31))
    )
    for x in (small, wide, low):
        with pytest.raises(
            ValueError, match=r"must be 224×224 pixels unless hidden=\(\); got shape \(2, \d+, \d+"
        ):
            nnx.eval_shape(logits, x)
    for x in (small, tall):
        with pytest.raises(ValueError, match=r"must be at least 32×32 pixels; got shape \(2, 3"):
            nnx.eval_shape(partial(logits, hidden=()), x)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(models.PreActResNet, 2), r"6k \+ 2 with k at least 1; got 2"),
        (partial(models.PreActResNet, 21), r"6k \+ 2 with k at least 1; got 21"),
        (partial(models.PreActResNet, 26, bottleneck=True), r"9k \+ 2 .* got 26"),
        (partial(models.CifarResNet, 2), r"6k \+ 2 with k at least 1; got 2"),
        (partial(models.CifarResNet, 18), r"6k \+ 2 with k at least 1; got 18"),
        (partial(models.ResNet, 20), "one of 18, 34, 50, 101, 152; got 20"),
        (partial(models.VGG, 12), "one of 11, 13, 16, 19; got 12"),
        (partial(models.MLP, widths=()), "width of at least one layer; got none"),
    ],
)
def test_depths_that_make_no_stages_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build(classes=10, rngs=nnx.Rngs(0))


def test_vgg_is_its_forward_pass_in_numpy(monkeypatch):
    """The reference sums over shifted windows, normalizes by the formula, and takes 2×2 maxima."""
    monkeypatch.setattr("jaxnorm.models._vgg.WIDTHS", (4, 8, 6, 10, 12))
    model = filled(partial(models.VGG, 11, classes=4, hidden=()), drawn)
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3))
    found = output_of(model, jnp.asarray(x, "float32"))
    h = x
    for stage in model.stages:
        for layer in stage.layers:
            kernel = np.asarray(layer.conv.kernel[...], float)
            padded = np.pad(h, ((0, 0), (1, 1), (1, 1), (0, 0)))
            height, width = h.shape[1:3]
            h = sum(
                padded[:, i : i + height, j : j + width] @ kernel[i, j]
                for i in range(3)
                for j in range(3)
            )
            axes = (0, 1, 2)
            h = np.maximum((h - h.mean(axes)) / np.sqrt(h.var(axes) + 1e-5), 0)
        n, height, width, c = h.shape
        h = h.reshape(n, height // 2, 2, width // 2, 2, c).max((2, 4))
    logits = h.mean((1, 2)) @ np.asarray(model.head.kernel[...])
    np.testing.assert_allclose(found, logits, rtol=1e-3, atol=1e-4)
    model.eval()
    larger = np.random.default_rng(1).normal(size=(1, 64, 64, 3))

    def maps_and_logits(model, x):
        maps = x
        for stage in model.stages:
            maps = nnx.max_pool(stage(maps), (2, 2), strides=(2, 2))
        return maps, model(x)

    maps, logits = output_of(model, jnp.asarray(larger, "float32"), maps_and_logits)
    assert maps.shape[1:3] == (2, 2)  # with one pixel, mean and maximum would be equal
    pooled = np.asarray(maps, float).mean((1, 2))
    expected = pooled @ np.asarray(model.head.kernel[...])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)
