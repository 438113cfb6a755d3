"""Scores from gradients and activations, compared with loops over channels in NumPy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pruning
from pruning import coupled_channels
from pruning.channels import channel_scores, mean_scores, taylor_scores, wanda_scores
from pruning.channels._removal.removal import producers
from tests.support import prunable


def squared(apply):
    return lambda params, x: jnp.square(apply(params, x)).sum()


@pytest.mark.parametrize("name", ["vgg", "resnet, identity", "resnext"])
def test_taylor_is_the_squared_change_to_first_order(name):
    apply, params, x = prunable.model(name)
    groups = pruning.coupled_channels(apply, params, x)
    loss = squared(apply)
    scores = taylor_scores(params, groups, loss=loss, batches=[x, 2 * x])

    @jax.jit
    def change(params, group_mask, x):
        """The derivative of the loss in the direction of the weights of the masked filters."""
        tangent = jax.tree.map(lambda w, m: w * (1 - m), params, group_mask)
        return jax.jvp(lambda p: loss(p, x), (params,), (tangent,))[1]

    for group, of_group in zip(groups, scores, strict=True):
        makers = group._replace(positions=producers(group))
        for j in (0, group.size - 1):
            ones = jax.tree.map(np.ones_like, params)
            mask = pruning.mask_channels(ones, [makers], [np.arange(group.size) != j])
            expected = np.mean([change(params, mask, x) ** 2 for x in (x, 2 * x)])
            np.testing.assert_allclose(of_group[j], expected, rtol=1e-8)


def test_channels_on_which_the_loss_does_not_depend_have_the_score_zero():
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(size=size) for name, size in zip("abcd", 2 * [(3, 4), (4, 1)], strict=True)
    }

    def apply(params, x):
        return tuple(jax.nn.relu(x @ params[a]) @ params[b] for a, b in ("ab", "cd"))

    x = rng.normal(size=(8, 3))
    groups = coupled_channels(apply, params, x)
    loss = lambda params, x: apply(params, x)[1].sum()  # noqa: E731
    first, second = taylor_scores(params, groups, loss=loss, batches=[x])
    assert not first.any()
    assert second.any()


def test_wanda_of_a_convolution_and_a_product():
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 3, 2, 4)), "b": rng.normal(size=(3, 3, 4, 5))}
    params["c"] = rng.normal(size=(3, 5))  # the first axis of `c` has the outputs
    x = rng.normal(size=(6, 8, 8, 2))

    def maps(params, x):
        convolve = partial(
            jax.lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        first = jax.nn.relu(convolve(x, params["a"], (1, 1)))
        return first, jax.nn.relu(convolve(first, params["b"], (2, 2))).mean((1, 2))

    def apply(params, x):
        return jnp.einsum("ij,nj->ni", params["c"], maps(params, x)[1])

    groups = pruning.coupled_channels(apply, params, x)
    found = wanda_scores(params, groups, apply=apply, inputs=[x])
    first, second = map(np.asarray, maps(params, jnp.asarray(x)))
    expected = [
        np.abs(params["b"]).sum((0, 1, 3)) * np.sqrt(np.square(first).sum((0, 1, 2))),
        np.abs(params["c"]).sum(0) * np.sqrt(np.square(second).sum(0)),
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_wanda_of_a_kernel_that_is_cast_transposed_and_negated():
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=(2, 4, 3))}
    x = rng.normal(size=(6, 3))

    def apply(params, x):
        kernel = -params["b"].transpose(1, 2, 0).astype("float32")
        return jnp.einsum("nc,cpo->npo", jax.nn.relu(x @ params["a"]).astype("float32"), kernel)

    groups = pruning.coupled_channels(apply, params, x)
    (found,) = wanda_scores(params, groups, apply=apply, inputs=[x])
    norms = np.linalg.norm(np.maximum(x @ params["a"], 0), axis=0)
    np.testing.assert_allclose(found, np.abs(params["b"]).sum((0, 2)) * norms, rtol=1e-5)


def test_wanda_of_a_kernel_that_is_used_twice_counts_both_uses():
    rng = np.random.default_rng(3)
    params = {
        "a": rng.normal(size=(4, 5)),
        "w": rng.normal(size=(5, 5)),
        "b": rng.normal(size=(5, 2)),
    }
    x = rng.normal(size=(7, 4))

    def apply(params, x):
        first = jnp.tanh(x @ params["a"])
        return jnp.exp(first @ params["w"]) @ params["w"] @ params["b"]

    first = np.tanh(x @ params["a"])
    uses = (first, np.exp(first @ params["w"]), np.exp(first @ params["w"]) @ params["w"])
    norms = [np.linalg.norm(h, axis=0) for h in uses]
    groups = pruning.coupled_channels(apply, params, x)
    (found,) = wanda_scores(params, groups, apply=apply, inputs=[x])
    expected = sum(abs(params["w"]).sum(1) * norm for norm in norms[:2])
    np.testing.assert_allclose(found, expected + abs(params["b"]).sum(1) * norms[2], rtol=1e-6)


def test_wanda_counts_no_term_of_a_kernel_that_is_a_sum():
    """Only the kernel `d` counts, not the sum `b + c`. Without `d`, an error is raised."""

    def apply(p, x, plain=True):
        h = jax.nn.relu(x @ p["a"])
        return h @ (p["b"] + p["c"]) + (h @ p["d"] if plain else 0.0)

    rng = np.random.default_rng(6)
    shapes = {"a": (3, 5), "b": (5, 2), "c": (5, 2), "d": (5, 2)}
    params = {name: rng.normal(1, 2, size=shape) for name, shape in shapes.items()}
    x = rng.normal(3, 5, size=(7, 3))
    groups = pruning.coupled_channels(apply, params, x)
    (found,) = wanda_scores(params, groups, apply=apply, inputs=[x])
    norms = np.linalg.norm(np.maximum(x @ params["a"], 0), axis=0)
    np.testing.assert_allclose(found, np.abs(params["d"]).sum(1) * norms, rtol=1e-10)
    with pytest.raises(ValueError, match="the channels of a must be read by a convolution or"):
        wanda_scores(params, groups, apply=partial(apply, plain=False), inputs=[x])


def test_wanda_of_grouped_convolutions_reads_the_maps_of_the_group():
    apply, params, x = prunable.model("resnext")
    groups = pruning.coupled_channels(apply, params, x)
    inner = wanda_scores(params, groups, apply=apply, inputs=[x])
    assert all(jnp.isfinite(scores).all() and (scores > 0).any() for scores in inner)


def test_scores_of_a_flax_network_prune_it():
    def build():
        rngs = nnx.Rngs(0)
        return nnx.Sequential(nnx.Linear(3, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 2, rngs=rngs))

    graph, params = nnx.split(nnx.jit(build)())
    x = jnp.ones((4, 3), "float32")

    def apply(params, x):
        return nnx.merge(graph, params)(x)

    for score in (
        partial(taylor_scores, loss=squared(apply), batches=[x]),
        partial(wanda_scores, apply=apply, inputs=[x]),
    ):
        pruned = pruning.prune(apply, params, x, ratios=[0.5], score=score)
        assert apply(pruned.params, x).shape == (4, 2)
        groups = pruning.coupled_channels(apply, params, x)
        (scores,) = score(params, groups)
        assert scores[pruned.keep[0]].min() >= scores[~pruned.keep[0]].max()


def test_what_cannot_be_scored_is_refused():
    apply, params, x = prunable.model("vgg")
    groups = pruning.coupled_channels(apply, params, x)
    with pytest.raises(ValueError, match="at least one batch; got none"):
        taylor_scores(params, groups, loss=squared(apply), batches=[])
    with pytest.raises(ValueError, match=r"^loss\(params, batch\) must accept params and each"):
        taylor_scores(params, groups, loss=lambda x, p: squared(apply)(p, x), batches=[x])
    with pytest.raises(ValueError, match=r"^loss.* must be one real float; got float\d+ of shape"):
        taylor_scores(params, groups, loss=apply, batches=[x])
    with pytest.raises(
        ValueError, match=r"^loss.* must be one real float; got int64 of shape \(\)"
    ):
        taylor_scores(params, groups, loss=lambda p, x: jnp.argmax(apply(p, x)), batches=[x])
    two_results: Any = lambda p, x: (apply(p, x).sum(), 0)  # noqa: E731
    with pytest.raises(ValueError, match=r"^loss.* must be one real float; got tuple\b"):
        taylor_scores(params, groups, loss=two_results, batches=[x])

    def looped(params, x):
        def body(x, w):
            return x, jax.nn.relu(x) @ w

        return jax.lax.scan(body, x @ params["a"], params["b"])[1]

    params = {"a": np.ones((2, 4)), "b": np.ones((3, 4, 2))}
    groups = pruning.coupled_channels(looped, params, np.ones((1, 2)))
    with pytest.raises(ValueError, match="channels of a must be read by a convolution"):
        wanda_scores(params, groups, apply=looped, inputs=[np.ones((1, 2))])


def test_scores_are_averaged_over_batches():
    apply, params, x = prunable.model("vgg")
    groups = pruning.coupled_channels(apply, params, x)

    def of_batch(params, groups, batch):
        return wanda_scores(params, groups, apply=apply, inputs=batch)

    batches = [(x,), (2 * x,), (x[::-1] + 1,)]
    found = mean_scores(params, groups, score=of_batch, batches=batches)
    each = [of_batch(params, groups, batch) for batch in batches]
    for mean, own in zip(found, zip(*each, strict=True), strict=True):
        np.testing.assert_allclose(mean, np.mean(own, 0), rtol=1e-12)
    score = partial(mean_scores, score=of_batch, batches=batches)
    assert pruning.prune(apply, params, x, ratios=[0.3, 0.5], score=score).keep[0].sum() == 3
    with pytest.raises(ValueError, match="batches must hold at least one batch; got none"):
        mean_scores(params, groups, score=of_batch, batches=[])


def test_wanda_of_flattened_maps_sums_all_rows_of_a_channel():
    """Four rows of the kernel multiply each channel of a flattened map, one row for each pixel."""
    rng = np.random.default_rng(5)
    params = {"a": rng.normal(3, 1, size=(2, 5)), "b": rng.normal(size=(20, 3))}
    x = rng.normal(3, 5, size=(6, 2, 2, 2))

    def apply(params, x):
        return jnp.tanh(x @ params["a"])[..., ::-1].reshape(len(x), -1) @ params["b"]

    (group,) = pruning.coupled_channels(apply, params, x)
    (found,) = wanda_scores(params, [group], apply=apply, inputs=[x])
    h = np.tanh(x @ params["a"])
    expected = [
        sum(
            np.linalg.norm(h[:, i, j, c]) * np.abs(params["b"][(2 * i + j) * 5 + 4 - c]).sum()
            for i in range(2)
            for j in range(2)
        )
        for c in range(5)
    ]
    of_a = next(p for p in group.positions if p.path == "a")
    np.testing.assert_allclose(found, np.array(expected)[of_a.indices[:, 0]], rtol=1e-10)


@pytest.mark.parametrize("channels_first", [False, True])
def test_wanda_of_a_grouped_convolution_by_loops(channels_first):
    """Channel c is removed from both feature groups together, so its two scores are added."""
    rng = np.random.default_rng(6)
    params = {"a": rng.normal(size=(3, 4)), "w": rng.normal(size=(3, 3, 2, 6))}
    x = rng.normal(3, 5, size=(5, 4, 4, 3))

    def apply(params, x):
        h, w = jnp.tanh(x @ params["a"]), params["w"]
        numbers = ("NHWC", "HWIO", "NHWC")
        if channels_first:
            h, w, numbers = (
                h.transpose(0, 3, 1, 2),
                w.transpose(3, 2, 0, 1),
                ("NCHW", "OIHW", "NCHW"),
            )
        return jax.lax.conv_general_dilated(
            h, w, (1, 1), "SAME", feature_group_count=2, dimension_numbers=numbers
        )

    (group,) = pruning.coupled_channels(apply, params, x)
    (found,) = wanda_scores(params, [group], apply=apply, inputs=[x])
    norms = np.sqrt(np.square(np.tanh(x @ params["a"])).sum((0, 1, 2)))
    expected = [
        sum(
            norms[2 * g + c] * np.abs(params["w"][:, :, c, 3 * g : 3 * g + 3]).sum()
            for g in range(2)
        )
        for c in range(2)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_taylor_of_unequal_batches_by_hand_beside_whole_numbers():
    rng = np.random.default_rng(7)
    params = {"a": rng.normal(3, 1, size=(3, 4)), "b": rng.normal(size=(4, 2))}
    batches = [rng.normal(1, 2, size=(n, 3)) for n in (3, 5, 1)]

    def loss(params, x):
        y = jax.nn.relu(x @ params["a"]) @ params["b"]
        return jnp.square(y).sum() * params["n"].astype(y.dtype)

    def squares(x):
        h = x @ params["a"]
        slope = x.T @ (2 * (np.maximum(h, 0) @ params["b"]) @ params["b"].T * (h > 0))
        return np.square((params["a"] * slope).sum(0))

    tree = params | {"n": jnp.array(1)}
    apply = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]  # noqa: E731
    groups = pruning.coupled_channels(apply, tree, batches[0])
    (found,) = taylor_scores(tree, groups, loss=loss, batches=batches)
    np.testing.assert_allclose(found, np.mean(list(map(squares, batches)), 0), rtol=1e-10)


def operator(p, x):
    """A Fourier neural operator along axis 1, with complex weights."""
    transformed = jnp.fft.rfft(x @ p["in"], axis=1)
    mixed = jnp.einsum("bkc,kcd->bkd", transformed[:, :3], p["mix"])
    return jnp.fft.irfft(mixed, n=6, axis=1) @ p["out"]


def complex_case():
    rng = np.random.default_rng(8)
    params: dict[str, Any] = {"in": rng.normal(size=(2, 5)), "out": rng.normal(size=(4, 3))}
    params |= {"mix": rng.normal(size=(3, 5, 4)) + 1j * rng.normal(size=(3, 5, 4))}
    x = 3 + rng.normal(size=(2, 6, 2))
    groups = coupled_channels(operator, params, x)
    return params, x, groups, next(i for i, group in enumerate(groups) if group.size == 4)


def test_complex_filters_are_scored_by_their_real_and_imaginary_parts():
    params, _, groups, i = complex_case()
    criterion = lambda rows: 3 * jnp.abs(rows).sum(1) + rows[:, -1]  # noqa: E731
    found = channel_scores(params, groups, criterion=criterion)[i]
    rows = np.moveaxis(params["mix"], 2, 0).reshape(4, -1)
    expected = 3 * (np.abs(rows.real) + np.abs(rows.imag)).sum(1) + rows[:, -1].imag
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_taylor_of_complex_filters_is_the_squared_derivative_along_a_filter():
    params, x, groups, i = complex_case()
    loss = jax.jit(lambda p, x: (jnp.cos(operator(p, x)) @ jnp.arange(3.0)).sum())
    found = taylor_scores(params, groups, loss=loss, batches=[x])[i]
    for channel, score in enumerate(found):
        step = np.zeros_like(params["mix"])
        step[..., channel] = 1e-5 * params["mix"][..., channel]
        ends = [float(loss(params | {"mix": params["mix"] + s * step}, x)) for s in (1, -1)]
        np.testing.assert_allclose(score, ((ends[0] - ends[1]) / 2e-5) ** 2, rtol=1e-6)


def test_taylor_may_be_compiled():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)
    score = lambda params: taylor_scores(params, groups, loss=squared(apply), batches=[x])  # noqa: E731
    for found, expected in zip(jax.jit(score)(params), score(params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_wanda_refuses_complex_weights():
    """Complex weights raise an error, even if a real kernel also reads the channels."""
    params, x, *_ = complex_case()
    params |= {"skip": np.ones((5, 2))}
    both = lambda p, x: (operator(p, x), x @ p["in"] @ p["skip"])  # noqa: E731
    groups = coupled_channels(both, params, x)
    with pytest.raises(TypeError, match=r"^params must hold real kernels; mix is complex$"):
        wanda_scores(params, groups, apply=both, inputs=[x])
