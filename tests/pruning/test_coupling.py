"""The coupled channels of many kinds of networks, and channels that cannot be removed."""

import re
import time
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.csgraph
from flax import linen, nnx
from jax import lax

import jaxnorm
import pruning.nnx
from jaxnorm import models
from pruning import (
    cost,
    coupled_channels,
    load_pruned,
    mask_channels,
    prune,
    remove_channels,
    resized,
)
from pruning.channels import (
    Position,
    channel_scores,
    fixed_channels,
    fold_batch_norms,
    output_error,
)
from pruning.channels._coupling.channel_ids import FIXED, NO_CHANNEL, UnionFind
from pruning.channels._coupling.coupling import channels_of
from tests.support import prunable
from tests.support.random_networks import random_network, random_transformer
from tests.support.reasons import pinning


def by_axis(positions):
    return {(p.path, p.axis): p.indices.tolist() for p in positions}


@pytest.mark.parametrize("name", prunable.MODELS)
def test_every_layer_can_be_cut(name):
    groups = coupled_channels(*prunable.model(name))
    assert tuple(group.size for group in groups) == prunable.MODELS[name][1]
    named = [report.primitive for report in pinning(*prunable.model(name))]
    # The shortcut is padded with zeros.
    assert named == (["add"] if name == "resnet, zeros" else [])


def test_a_channel_is_coupled_with_its_statistics_and_the_inputs_of_the_next_kernel():
    blocks = (prunable.conv_norm, prunable.conv_norm, prunable.mean_head)
    first, _ = coupled_channels(*prunable.network(0, blocks))
    axes = {"0/n/bias": 0, "0/n/mean": 0, "0/n/scale": 0, "0/n/var": 0, "0/w": 3, "1/w": 2}
    assert by_axis(first.positions) == {item: [[i] for i in range(6)] for item in axes.items()}
    assert [p.path for p in first.positions if p.incoming] == ["1/w"]


def test_a_group_is_printed_in_a_line():
    def apply(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    groups = coupled_channels(
        apply, {"a": np.ones((3, 500)), "b": np.ones((500, 2))}, np.ones((1, 3))
    )
    assert str(groups) == "(<500 channels: <axis 1 of a>, <axis 0 of b, incoming>>,)"
    norm = lambda p, x: jax.nn.standardize(x @ p["a"]) @ p["b"]  # noqa: E731
    (group,) = coupled_channels(
        norm, {"a": np.ones((3, 5)), "b": np.eye(5)}, np.ones((1, 3)), resize=True
    )
    assert str(group) == "<5 channels, normed: <axis 1 of a>, <axis 0 of b, incoming>>"


def test_a_flattened_channel_is_every_channels_row_apart():
    blocks = (prunable.conv_relu, prunable.flat_head)
    first, _ = coupled_channels(*prunable.network(0, blocks, shape=(2, 2, 1)))
    assert by_axis(first.positions)["1/w1", 0][5] == [5, 11, 17, 23]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            jax.nn.softmax,
            partial(jnp.cumsum, axis=-1),
            {"reduce_max": ("a", "c", "d"), "cumsum": ("b", "c", "d")},
        ),
        (
            lambda h: jax.nn.softmax(h).reshape(1, 2, 1).reshape(1, 2),
            partial(jnp.cumsum, axis=-1),
            {"reduce_max": ("a", "c", "d"), "cumsum": ("b", "c", "d")},
        ),
        (jnp.zeros_like, jnp.tanh, {"add": ("c",), "dot_general": ("d",)}),
    ],
)
def test_channels_that_meet_pinned_ones_have_the_reason_of_each(first, second, expected):
    """Two channels of `c` are added to channels of `a`, and all others to channels of `b`.

    If zeros replace the channels of `a`, only the channels of `c` that are added to zeros stay.
    """

    def apply(params, x):
        parts = [first(x @ params["a"]), second(x @ params["b"])]
        return jnp.tanh(jnp.concatenate(parts, -1) + x @ params["c"]) @ params["d"]

    shapes = {"a": (2, 2), "b": (2, 3), "c": (2, 5), "d": (5, 3)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    reports = pinning(apply, params, np.ones((1, 2)))
    assert {report.primitive: report.paths for report in reports} == expected


def test_a_scan_along_channels_is_the_reason_why_they_remain():
    def apply(params, x):
        h = jax.nn.relu(x @ params["a"] + params["bias"])
        return lax.scan(lambda c, column: (c + column, c * column), np.zeros(4), h.T)[1].T

    report, *_ = pinning(apply, {"a": np.ones((2, 5)), "bias": np.ones((1, 5))}, np.ones((4, 2)))
    assert (report.primitive, report.paths) == ("scan", ("a", "bias"))


def test_channels_under_a_norm_and_channels_beside_it_are_two_groups():
    """The first half of the channels is normalized, and the second half is not."""

    def apply(params, x):
        h, free = jnp.split(x @ params["a"], 2, -1)
        h = h * lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1)
        return jnp.concatenate([h, free], -1) @ params["b"]

    arguments = apply, {"a": np.ones((2, 8)), "b": np.ones((8, 3))}, np.ones((1, 2))
    normed, free = coupled_channels(*arguments, resize=True)
    assert (normed.normed, free.normed) == (True, False)
    for group, first in ((normed, 0), (free, 4), (*coupled_channels(*arguments), 4)):
        assert by_axis(group.positions)["b", 0] == [[first + i] for i in range(4)]


def test_one_channel_of_every_group_is_coupled():
    def apply(params, x):
        h = prunable.convolve(x @ params["in"], params["w"], groups=2)
        return h @ params["out"]

    shapes = {"in": (2, 4), "w": (3, 3, 2, 6), "out": (6, 2)}
    params = {name: np.ones(shape) for name, shape in shapes.items()}
    inner, outer = coupled_channels(apply, params, np.ones((1, 4, 4, 2)))
    assert by_axis(inner.positions) == {("in", 1): [[0, 2], [1, 3]], ("w", 2): [[0], [1]]}
    assert by_axis(outer.positions)["w", 3] == [[0, 3], [1, 4], [2, 5]]


def test_a_channel_that_is_two_of_a_depthwise_convolution_takes_both():
    inner, _ = coupled_channels(*prunable.model("multiplier"))
    assert by_axis(inner.positions)["1/deep", 3][2] == [4, 5]


def test_the_middle_of_a_padded_shortcut_can_go_and_its_zeros_stay():
    outer, _ = coupled_channels(*prunable.model("resnet, zeros"))
    assert by_axis(outer.positions)["1/body/1/w", 3] == [[i + 2] for i in range(6)]


def test_concatenated_maps_lie_side_by_side_in_the_next_kernel():
    first, second, _ = coupled_channels(*prunable.model("densenet"))
    assert by_axis(first.positions)["2/w", 0] == [[i] for i in range(6)]
    assert by_axis(second.positions)["2/w", 0] == [[i + 6] for i in range(4)]


def test_a_layer_used_twice_is_cut_on_both_sides():
    _, inner = coupled_channels(*prunable.model("shared"))
    assert {("1/twice", 0), ("1/twice", 1)} <= set(by_axis(inner.positions))


def test_positions_are_all_there_is_of_a_layer_in_a_loop():
    _, inner = coupled_channels(*prunable.model("scan"))
    assert set(by_axis(inner.positions)) == {("1/in", 4), ("1/out", 3)}


@pytest.mark.parametrize("name", prunable.UNCUT)
def test_channels_that_cannot_be_cut_are_named(name):
    mix, primitive = prunable.UNCUT[name]
    blocks = (prunable.conv_norm, prunable.mixing(mix), prunable.conv_norm, prunable.mean_head)
    network = prunable.network(0, blocks)
    (group,) = coupled_channels(*network)
    assert not any(p.path.startswith("0/") for p in group.positions)
    reports = pinning(*network)
    assert [report.primitive for report in reports] == [primitive]
    for report in reports:
        assert {"0/w", "0/n/scale"} <= set(report.paths)
        assert ".py:" in report.line


@pytest.mark.parametrize(
    "wrap",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda p, x: lax.cond(x.sum() > 0, f, f, p, x),
        lambda f: jax.vmap(f, in_axes=(None, 0)),
    ],
)
def test_calls_and_branches_are_entered(wrap):
    def mlp(params, x):
        return jax.nn.gelu(x @ params["a"]) @ params["b"]

    params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
    (group,) = coupled_channels(wrap(mlp), params, np.ones((4, 1, 2)))
    assert by_axis(group.positions).keys() == {("a", 1), ("b", 0)}


def test_branches_that_disagree_couple_what_they_need():
    def apply(params, x):
        def turned(x):
            return x[..., ::-1]

        return lax.cond(x.sum() > 0, turned, jnp.tanh, x @ params["a"]) @ params["b"]

    params = {"a": np.ones((2, 4)), "b": np.ones((4, 3))}
    (group,) = coupled_channels(apply, params, np.ones((1, 2)))
    assert by_axis(group.positions)["a", 1] == [[0, 3], [1, 2]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_chain", [True, False])
def test_the_root_of_an_id_is_the_smallest_id_that_is_united_with_it(is_chain, seed):
    """The reference is SciPy's search for the connected parts of a graph."""
    rng, sets = np.random.default_rng(seed), UnionFind()
    ids, links = sets.new(30), np.arange(29) if is_chain else rng.integers(0, 30, 29)
    for k in rng.permutation(29) if seed else range(29)[::-1]:
        sets.union(ids[[k + 1]], ids[[links[k]]])
    graph = scipy.sparse.coo_array((np.ones(29), (np.arange(1, 30), links)), shape=(30, 30))
    parts = scipy.sparse.csgraph.connected_components(graph, directed=False)[1]
    expected = ids[[np.flatnonzero(parts == part)[0] for part in parts]]
    np.testing.assert_array_equal(sets.find(ids), expected)
    np.testing.assert_array_equal(sets.roots()[ids], expected)


@pytest.mark.parametrize(
    "result", [lambda y: y, lambda y: y.T, lambda y: {"first": y[0, 0], "last": (0, y[None].T)}]
)
def test_inputs_outputs_and_unused_arrays_stay(result):
    params = {"a": np.ones((2, 3)), "unused": np.ones((3, 3))}
    assert coupled_channels(lambda p, x: result(x @ p["a"]), params, np.ones((1, 2))) == ()


@pytest.mark.parametrize("dead", [lambda p, h: p["Dead"] + h, lambda p, h: None])
def test_parameters_that_no_result_depends_on_stay_or_are_cut_beside_live_ones(dead):
    """No result depends on the parameter `alone`, nor on the parameters that `dead` reads.

    For example, an associative scan over one step computes rates that no result uses.
    """

    def apply(params, x):
        h = x @ params["a"]
        jnp.broadcast_to(jnp.tanh(params["alone"]), (2, 4))  # the width 4 is written in the code
        dead(params, h)
        return h @ params["b"]

    params = {"a": np.ones((2, 4)), "b": np.ones((4, 3))}
    params |= {"alone": np.ones((1, 4)), "Dead": np.ones((1, 4))}
    x = np.ones((2, 2))
    (group,) = coupled_channels(apply, params, x)
    small = remove_channels(params, [group], [np.array([True, False, True, False])])
    assert small["alone"].shape == (1, 4)
    assert apply(small, x).shape == (2, 3)


def test_channels_beside_constants_side_by_side_stay():
    def apply(params, x):
        h = x @ params["a"]
        half = (1, h.shape[1] // 2)
        return h * jnp.concatenate([jnp.full(half, 2.0), jnp.full(half, 3.0)], 1) @ params["b"]

    params = {"a": np.ones((2, 4)), "b": np.ones((4, 3))}
    assert coupled_channels(apply, params, np.ones((1, 2))) == ()


def test_shapes_are_enough():
    apply, params, x = prunable.model("vgg")
    shapes = jax.eval_shape(lambda: (params, x))
    for a, b in zip(
        coupled_channels(apply, *shapes), coupled_channels(apply, params, x), strict=True
    ):
        assert by_axis(a.positions) == by_axis(b.positions)


def test_an_nnx_module_is_no_pure_function():
    model = nnx.BatchNorm(4, rngs=nnx.Rngs(0))  # a call changes the model's statistics in place
    with pytest.raises(ValueError, match=r"traceable .* see pruning\.nnx\.prune; .*\); got"):
        coupled_channels(lambda params, x: model(x), {}, jnp.ones((3, 4)))


@pytest.mark.usefixtures("unchecked")
def test_a_state_among_the_inputs_of_an_nnx_model_is_refused():
    model = models.MLP(inputs=3, widths=(4,), classes=2, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 3), "float32")
    with pytest.raises(
        TypeError, match=r"^model must be a function of the inputs \(here 2\); got MLP\("
    ):
        pruning.nnx.prune(model, nnx.state(model), x, ratios=[0.5])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("model", "cure"),
    [
        (nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "a flax.nnx model: use pruning.nnx.prune(model"),
        (linen.Dense(2), "Dense, a flax.linen module: pass its method apply, with all of its var"),
    ],
    ids=["nnx", "linen"],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: prune(model, {}, x, ratios=[0.5]),
        lambda model, x: coupled_channels(model, {}, x),
        lambda model, x: cost(model, {}, x),
        lambda model, x: resized(model, (), ()),
        lambda model, x: load_pruned("folder", model),
        lambda model, x: output_error(model, {}, x),
        lambda model, x: fold_batch_norms(model, {}, x),
    ],
)
def test_a_module_as_apply_is_refused_with_the_function_to_pass(call, model, cure):
    with pytest.raises(TypeError, match=f"^apply must be a function .* got {re.escape(cure)}"):
        call(model, np.ones((1, 3), "float32"))


def test_a_model_that_cannot_be_traced_is_refused():
    params = {"a": np.ones((2, 3))}
    with pytest.raises(ValueError, match=r"^apply\(.*\) must be traceable at .*; got TypeError: "):
        coupled_channels(lambda p, x: x @ p["a"], params, np.ones((1, 5)))
    with pytest.raises(ValueError, match="got KeyError"):
        fixed_channels(lambda p, x: x @ p["b"], params, np.ones((1, 2)))

    def long(params, x):
        raise RuntimeError("first\n  " + "x" * 300)

    with pytest.raises(ValueError, match=f"got RuntimeError: first {'x' * 193}…$"):
        coupled_channels(long, params, np.ones((1, 2)))
    (n,) = jax.export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct((n, 2), np.float64)
    with pytest.raises(ValueError, match=r"inputs must have known shapes; got \(n, 2\): for a"):
        coupled_channels(lambda p, x: x @ p["a"], params, x)


@pytest.mark.parametrize("over", [jax.lax.psum, jax.lax.pmean, jax.lax.pmax])
def test_what_runs_over_the_devices_of_a_mesh_keeps_channels_apart(over):
    """Reductions over devices do not couple channels. A channel is removed from all devices."""
    params = {"a": np.ones((2, 5)), "b": np.ones((5, 3))}
    sizes = []

    def on_a_device(x):
        apply = lambda p, x: over(jnp.exp(x @ p["a"]), "i") @ p["b"]  # noqa: E731
        (group,) = coupled_channels(apply, params, x)
        keep = [np.arange(5) < 2]
        small, masked = (f(params, [group], keep) for f in (remove_channels, mask_channels))
        sizes.append(group.size)
        return apply(small, x), apply(masked, x), resized(apply, [group], keep)(small, x)

    found = jax.vmap(on_a_device, axis_name="i")(np.arange(16.0).reshape(8, 1, 2) / 16)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-12)
    assert sizes == [5]


@pytest.mark.usefixtures("promotion")
def test_a_line_of_a_library_is_told_where_there_is_no_other():
    model = linen.Sequential([linen.Dense(5), jax.nn.softmax, linen.Dense(2)])
    x = np.ones((1, 3))
    (report,) = pinning(model.apply, jax.eval_shape(model.init, jax.random.key(0), x), x)
    assert report.primitive == "reduce_max"
    assert "flax" in report.line


def test_unitized_norms_keep_their_channels():
    """A unitized layer divides by a norm over channels, which would change with their number."""
    norm = jaxnorm.nnx.UnitizedBatchNorm
    model = models.MLP(inputs=4, widths=(5,), classes=2, norm=norm, rngs=nnx.Rngs(0))
    graph, state = nnx.split(nnx.view(model, use_running_average=True))
    arguments = (lambda s, x: nnx.merge(graph, s)(x), state, np.ones((1, 4), "float32"))
    assert coupled_channels(*arguments) == ()
    (report, *_) = pinning(*arguments)
    assert report.primitive == "reduce_sum"
    assert any("norms/0/mean" in path for path in report.paths)


def test_scalars_couple_nothing():
    def apply(p, x):
        h = p["gate"] * (x @ (p["a"] * p["gate"]))
        h = jnp.where(h > 0, h, h * p["slope"]) + p["slope"]
        return (p["slope"] + h) @ (p["b"] / p["gate"])

    params: dict = {"a": np.ones((4, 8)), "b": np.ones((8, 3)), "gate": np.ones(()), "slope": 0.5}
    (group,) = coupled_channels(apply, params, np.ones((3, 4)))
    assert by_axis(group.positions).keys() == {("a", 1), ("b", 0)}


def test_prelu_is_cut():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.a, self.b = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
            self.act = nnx.PReLU()

        def __call__(self, x):
            return self.b(self.act(self.a(x)))

    graph, state = nnx.split(Net(nnx.Rngs(0)))
    (group,) = coupled_channels(
        lambda s, x: nnx.merge(graph, s)(x), state, np.ones((1, 4), "float32")
    )
    assert group.size == 8


def test_a_model_without_parameters_has_no_channels():
    assert coupled_channels(lambda params, x: 2 * x, {}, np.ones((2, 3))) == ()


@pytest.mark.slow
def test_resnet_50_takes_less_than_six_seconds():
    """On one core, the analysis of ResNet-50 takes 1.5 s if type checks are off."""
    model = nnx.eval_shape(lambda: models.ResNet(50, classes=1000, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(nnx.view(model, use_running_average=True))
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
    start = time.process_time()
    groups = coupled_channels(lambda s, x: nnx.merge(graph, s)(x), state, image)
    assert time.process_time() - start < 6
    # Each of the 16 blocks has two groups inside, each of the 4 stages has a group for its residual
    # stream, and the stem has a group.
    assert len(groups) == 2 * 16 + 4 + 1
    assert sorted({group.size for group in groups}) == [64, 128, 256, 512, 1024, 2048]
    assert isinstance(groups[0].positions[0], Position)


@pytest.mark.parametrize("draw", [random_network, random_transformer])
@pytest.mark.parametrize("seed", range(6))
def test_every_channel_that_stays_has_a_reason(draw, seed):
    """In random networks, a report gives the reason for every channel that cannot be removed."""
    apply, params, x, _ = draw(seed)
    channels = channels_of(apply, params, (x,))
    sets = channels.sets
    ids = np.flatnonzero(sets.owners >= 0)
    stay = ids[(sets.find(ids) == FIXED) & (sets.reasons[ids] != NO_CHANNEL)]
    assert (sets.reasons[stay] >= 0).all()
    reports = fixed_channels(apply, params, x, resize=True)
    named = {path for report in reports for path in report.paths}
    pinned = [channels.axes[k] for k in np.unique(sets.owners[stay]) if k >= 0]
    assert named == {channels.parameters.paths[i] for i, _ in pinned}
    assert all(".py:" in r.line for r in reports if r.primitive not in ("input", "output"))


RNG = np.random.default_rng(3)
MADE = {
    "in": RNG.normal(1, 2, (4, 6)),
    "w": RNG.normal(1, 2, (6, 3)),
    "v": RNG.normal(1, 2, (6, 3)),
    "low": RNG.normal(1, 2, (6, 2)),
    "up": RNG.normal(1, 2, (2, 3)),
    "experts": RNG.normal(1, 2, (5, 6, 3)),
    "s": RNG.uniform(1, 2, 6),
}
# for each name: a function that reads the hidden channels `h`, and the names of incoming arrays
READERS = {
    "sum": (lambda p, h, x: h @ (p["w"] + p["v"]), {"w", "v"}),
    "product": (lambda p, h, x: h @ (p["w"] * p["v"]), {"w", "v"}),
    "adapter": (lambda p, h, x: h @ (p["w"] + p["low"] @ p["up"]), {"w", "low"}),
    "sum with a quotient": (lambda p, h, x: h @ (p["w"] / p["s"][:, None] + p["v"]), {"w", "v"}),
    "mask of data": (lambda p, h, x: h @ jnp.where(x.sum() > 0, p["w"], p["v"]), {"w", "v"}),
    "branch of data": (
        lambda p, h, x: h @ jax.lax.cond(x.sum() > 0, lambda: p["w"], lambda: p["v"]),
        {"w", "v"},
    ),
    "expert of data": (lambda p, h, x: h @ p["experts"][jnp.argmax(x[0]) % 5], {"experts"}),
    "expert of each sample": (
        lambda p, h, x: jnp.einsum("bi,bij->bj", h, p["experts"][x.argmax(1) % 5]),
        {"experts"},
    ),
    "loop": (
        lambda p, h, x: lax.scan(lambda c, _: (c, c @ p["w"]), h, None, length=2)[1].sum(0),
        {"w"},
    ),
    "sum behind a product of activations": (
        lambda p, h, x: (h @ h.T) @ (h @ (p["w"] + p["v"])),
        {"w", "v"},
    ),
    "activations that a parameter chooses": (
        lambda p, h, x: jax.lax.cond(p["s"][0] > 0, jnp.tanh, jnp.sin, h) @ p["w"],
        {"w"},
    ),
    "lookup": (lambda p, h, x: h @ p["w"] + p["up"][x.argmax(1) % 2], {"w"}),
}


@pytest.mark.parametrize("name", READERS)
def test_every_array_of_a_weight_that_reads_channels_is_incoming(name):
    """Exactly the arrays of the weight that reads the channels have `incoming`."""
    read, expected = READERS[name]
    params = {"in": MADE["in"]} | {
        k: x for k, x in MADE.items() if k in expected | {"low", "up", "s"}
    }
    group, *_ = coupled_channels(
        lambda p, x: read(p, jax.nn.relu(x @ p["in"]), x), params, np.ones((2, 4))
    )
    assert {p.path for p in group.positions if p.incoming} == expected
    (scores,) = channel_scores(params, [group])
    np.testing.assert_allclose(scores, np.sqrt(np.square(MADE["in"]).sum(0)))


@pytest.mark.parametrize("first", [True, False])
def test_branches_are_a_weight_only_if_all_of_them_are(first):
    def apply(p, x):
        branches = [lambda: p["w"], lambda: p["v"] * x.sum()]
        return jax.nn.relu(x @ p["in"]) @ jax.lax.cond(
            x[0, 0] > 0, *branches[:: 1 if first else -1]
        )

    params = {name: MADE[name] for name in ("in", "w", "v")}
    (group,) = coupled_channels(apply, params, np.ones((2, 4)))
    assert {p.path for p in group.positions} == set(params)
    assert not any(p.incoming for p in group.positions)


def test_a_weight_that_is_a_product_of_many_sums_is_read_at_once():
    """To list which of the sums' terms are zero in each factor would take 2⁴⁰ sets."""

    def apply(p, x):
        weight = reduce(jnp.multiply, [a + b for a, b in p["sums"]])
        return jnp.exp(x @ p["in"]) @ weight

    sums = [(np.ones((6, 3)), np.ones((6, 3))) for _ in range(40)]
    (group,) = coupled_channels(apply, {"in": np.ones((4, 6)), "sums": sums}, np.ones((2, 4)))
    assert len(group.positions) == 81


def test_adapters_of_a_scanned_residual_stream_read_and_write_on_their_own_axes():
    layers = {
        "w": RNG.normal(size=(2, 6, 6)),
        "low": RNG.normal(size=(2, 6, 3)),
        "up": RNG.normal(size=(2, 3, 6)),
    }

    def network(p, x):
        def layer(h, own):
            return h + jnp.tanh(h) @ (own["w"] + own["low"] @ own["up"]), None

        return jax.lax.scan(layer, x @ p["in"], p["layers"])[0] @ p["w"]

    params = {"in": MADE["in"], "layers": layers, "w": MADE["w"]}
    stream, *_ = coupled_channels(network, params, np.ones((2, 4)))
    incoming = {(p.path, p.axis) for p in stream.positions if p.incoming}
    made = {(p.path, p.axis) for p in stream.positions if not p.incoming}
    assert incoming == {("layers/w", 1), ("layers/low", 1), ("w", 0)}
    assert made == {("in", 1), ("layers/w", 2), ("layers/up", 2)}


def test_a_product_with_a_table_that_data_choose_rows_of_is_no_weight():
    """The kernels `q` and `k` both make the channels, so no position is `incoming`."""
    shapes = {"q": (4, 6), "table": (5, 3), "k": (3, 6)}
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}

    def apply(p, x):
        keys = p["table"][x.argmax(1) % 5] @ p["k"]
        return jnp.einsum("bi,bi->b", x @ p["q"], keys)

    groups = coupled_channels(apply, params, np.ones((2, 4)))
    found = {(p.path, p.axis): p.incoming for group in groups for p in group.positions}
    assert found == {("q", 1): False, ("k", 1): False, ("table", 1): False, ("k", 0): True}


def test_of_two_weights_that_data_choose_neither_reads_the_channels():
    shapes = {"first": (5, 6), "second": (4, 6), "out": (6, 3)}
    params = {name: RNG.normal(size=shape) for name, shape in shapes.items()}

    def apply(p, x):
        one, two = p["first"][x.argmax(1) % 5], p["second"][x.argmax(1) % 4]
        return jnp.einsum("bi,bi->b", one, two)[:, None] + one @ p["out"]

    (group,) = (g for g in coupled_channels(apply, params, np.ones((2, 4))) if g.size == 6)
    assert {p.path for p in group.positions if p.incoming} == {"out"}


def test_two_states_of_a_loop_that_begin_with_zeros_are_coupled_with_their_own_layers():
    rng = np.random.default_rng(3)
    shapes = {"xa": (2, 5), "aa": (5, 5), "oa": (5, 3), "xb": (2, 5), "bb": (5, 5), "ob": (5, 3)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}

    def apply(p, x):
        def step(carry, x):
            a, b = carry
            return (jnp.tanh(x @ p["xa"] + a @ p["aa"]), jnp.sin(x @ p["xb"] + b @ p["bb"])), None

        zeros = jnp.zeros((x.shape[1], 5))
        a, b = lax.scan(step, (zeros, zeros), x)[0]
        return a @ p["oa"] + b @ p["ob"]

    groups = coupled_channels(apply, params, rng.normal(size=(4, 3, 2)))
    paths = [sorted({position.path for position in group.positions}) for group in groups]
    assert sorted(paths) == [["aa", "oa", "xa"], ["bb", "ob", "xb"]]


# For each name: a function that makes a vector from the parameters p and from a number t that is an
# input; and whether t selects the elements of the vector. If t selects the elements, the vector
# counts as activations.
CHOSEN = {
    "by a parameter": (lambda p, t: lax.cond(p["s"] > 1, lambda: p["g"], lambda: p["k"]), False),
    "by data": (lambda p, t: lax.cond(t > 1, lambda: p["g"], lambda: p["k"]), True),
    "element by element": (lambda p, t: jnp.where(t > 1, p["g"], p["k"]), True),
    "as an element of a stack": (lambda p, t: jnp.stack([p["g"], p["k"]])[jnp.argmax(t)], True),
    "in a loop": (lambda p, t: lax.fori_loop(0, 3, lambda _, g: g + p["k"], p["g"]), False),
    "in a loop that data end": (
        lambda p, t: lax.while_loop(lambda g: g[0] < t, lambda g: g + p["k"], p["g"]),
        True,
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_norm_of_parameters_that_data_choose_is_a_norm_of_activations(name):
    choose, normed = CHOSEN[name]

    def apply(p, x):
        g = choose(p, x.sum())
        return jnp.tanh(x @ p["a"]) * (g / jnp.square(g).sum())[None] @ p["b"]

    params = {"a": np.ones((3, 6)), "b": np.ones((6, 2)), "s": np.array(3.0)}
    params |= {"g": np.ones(6), "k": np.ones(6)}
    (group,) = coupled_channels(apply, params, np.ones((2, 3)), resize=True)
    assert group.normed == normed
