"""`resized` applied to programs other than the one in which the channels were found."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

from pruning import coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import fixed_channels, resized

pytestmark = pytest.mark.usefixtures("promotion")

X = np.random.default_rng(0).normal(size=(6, 4))
WORDS = np.random.default_rng(1).integers(11, size=(2, 7))


class Transformer(linen.Module):
    """A language model with dropout, and with a cache of keys and values in decoding."""

    decode: bool = False
    rate: float = 0.2

    @linen.compact
    def __call__(self, words, train=False):
        options: dict[str, Any] = {"param_dtype": float, "dtype": float}
        norms: dict[str, Any] = options | {"force_float32_reductions": False}
        drop = partial(linen.Dropout(self.rate), deterministic=not train)
        x = drop(linen.Embed(11, 8, **options)(words))
        mask = None if self.decode else linen.make_causal_mask(words)
        for _ in range(2):
            h = linen.LayerNorm(**norms)(x)
            h = linen.MultiHeadDotProductAttention(2, decode=self.decode, **options)(h, mask=mask)
            x = x + drop(h)
            h = linen.RMSNorm(**norms)(x)
            x = x + drop(linen.Dense(8, **options)(drop(linen.gelu(linen.Dense(12, **options)(h)))))
        return linen.Dense(11, **options)(linen.LayerNorm(**norms)(x))


def cut(apply, params, *inputs, seed=0, resize=True):
    """The groups, random masks of kept channels, the smaller parameters and the masked ones."""
    groups, rng = (
        coupled_channels(apply, params, *inputs, resize=resize),
        np.random.default_rng(seed),
    )
    keep = [rng.permutation(group.size) < max(1, group.size // 2) for group in groups]
    assert groups
    return groups, keep, *(f(params, groups, keep) for f in (remove_channels, mask_channels))


def assert_near(found, expected, rtol=1e-10):
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)  # noqa: E731
    jax.tree.map(near, found, expected)


@pytest.fixture
def language_model():
    model = Transformer()
    params = model.init(jax.random.key(0), WORDS)["params"]
    noise = np.random.default_rng(2)  # without noise, all biases would be 0, and all scales 1
    params = jax.tree.map(lambda p: p + noise.normal(size=p.shape) / 4, params)
    apply = lambda p, words: model.apply({"params": p}, words)  # noqa: E731
    return model, *cut(apply, params, WORDS)


def test_a_transformer_with_dropout_is_fine_tuned_as_the_masked_one(language_model):
    """Losses and weights equal the masked model's, because dropout uses the same random bits."""
    model, groups, keep, small, masked = language_model

    def loss(params, words, key):
        logits = model.apply({"params": params}, words[:, :-1], train=True, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 1:]).mean()

    def trained(loss, params, project):
        optimizer = optax.adam(1e-2)
        state, losses = optimizer.init(params), []
        step = jax.jit(jax.value_and_grad(loss))
        for key in jax.random.split(jax.random.key(3), 3):
            value, gradient = step(params, WORDS, key)
            updates, state = optimizer.update(gradient, state, params)
            params = project(optax.apply_updates(params, updates))
            losses.append(value)
        return params, losses

    found, losses = trained(resized(loss, groups, keep), small, lambda p: p)
    whole, expected = trained(loss, masked, lambda p: mask_channels(p, groups, keep))
    assert_near(losses, expected)
    assert_near(found, remove_channels(whole, groups, keep), 1e-8)
    assert max(losses) - min(losses) > 1e-3


def test_a_pruned_language_model_generates_with_its_cache(language_model):
    """The resized model generates the words of the masked model, with a smaller cache."""
    _, groups, keep, small, masked = language_model
    model = Transformer(decode=True)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((2, 7), int))
    cache = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes["cache"])

    def step(params, cache, words):
        variables = {"params": params, "cache": cache}
        logits, new = model.apply(variables, words, mutable=["cache"])
        return new["cache"], logits

    run = jax.jit(resized(step, groups, keep, states=(cache,)))
    narrow = jax.tree.map(np.shape, run(small, cache, WORDS[:, :1])[0])
    assert sum(map(np.prod, jax.tree.leaves(narrow, is_leaf=lambda x: isinstance(x, tuple)))) < sum(
        leaf.size for leaf in jax.tree.leaves(cache)
    )
    words = expected_words = WORDS[:, :1]
    state, whole = cache, cache
    for _ in range(6):
        state, logits = run(small, state, words)
        whole, expected = jax.jit(step)(masked, whole, expected_words)
        assert_near(logits, expected)
        words, expected_words = (y[:, -1:].argmax(-1) for y in (logits, expected))
    assert jax.tree.map(np.shape, state) == narrow
    start = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    outputs = jax.lax.scan(lambda c, w: run(small, c, w[:, None]), start, WORDS.T[:6])[1]
    everything: Any = Transformer().apply({"params": masked}, WORDS[:, :6])
    # Words are decoded one by one, and the outputs equal the outputs of one causal pass over all
    # words.
    assert_near(outputs[:, :, 0], np.swapaxes(everything, 0, 1))


def test_new_statistics_are_as_narrow_as_the_network():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            for width in (6, 5):
                x = linen.Conv(width, (3, 3), param_dtype=float)(x)
                x = linen.relu(linen.BatchNorm(not train, param_dtype=float)(x))
            return linen.Dense(3, param_dtype=float)(x.mean((1, 2)))

    images = np.random.default_rng(0).normal(size=(4, 5, 5, 2))
    net = Net()
    variables = net.init(jax.random.key(0), images)
    groups, keep, small, masked = cut(net.apply, variables, images, resize=False)
    step = partial(net.apply, train=True, mutable=["batch_stats"])
    logits, new = jax.jit(resized(step, groups, keep))(small, images)
    expected, whole = step(masked, images)
    assert_near(logits, expected)
    assert jax.tree.map(np.shape, new["batch_stats"]) == jax.tree.map(
        np.shape, small["batch_stats"]
    )
    filled = {"params": masked["params"], **whole}
    assert_near(new, {"batch_stats": remove_channels(filled, groups, keep)["batch_stats"]})


PARAMS = {
    name: np.random.default_rng(i).normal(size=shape)
    for i, (name, shape) in enumerate({"a": (4, 8), "c": (8, 8), "b": (8, 3)}.items())
}


def mlp(p, x):
    return jnp.tanh(jnp.tanh(x @ p["a"]) @ p["c"]) @ p["b"]


DRAWN = {
    "bernoulli": lambda key, h: jnp.where(jax.random.bernoulli(key, 0.5, h.shape), 2 * h, 0),
    "one for the batch": lambda key, h: h * jax.random.bernoulli(key, 0.5, (1, h.shape[1])),
    "one for the channels": lambda key, h: h * jax.random.bernoulli(key, 0.5, (len(h), 1)),
    "normal": lambda key, h: h * (1 + jax.random.normal(key, h.shape) / 4),
    "added": lambda key, h: h + jax.random.uniform(key, h.shape) / 4,
    "legacy": lambda key, h: jnp.where(
        jax.random.bernoulli(jax.random.key_data(key), 0.5, h.shape), 2 * h, 0
    ),
    "folded in": lambda key, h: h * jax.random.normal(jax.random.fold_in(key, 3), h.shape),
    "in a checkpoint": lambda key, h: jax.checkpoint(
        lambda key, h: h * jax.random.bernoulli(key, 0.5, h.shape)
    )(key, h),
    "in a branch": lambda key, h: jax.lax.cond(
        h.sum() > 0, lambda key, h: h * jax.random.normal(key, h.shape), lambda key, h: h, key, h
    ),
    "in a loop": lambda key, h: jax.lax.scan(
        lambda h, key: (h * jax.random.bernoulli(key, 0.8, h.shape), None),
        h,
        jax.random.split(key, 3),
    )[0],
    "linen": lambda key, h: linen.Dropout(0.5, deterministic=False).apply(
        {}, h, rngs={"dropout": key}
    ),
    "linen, by channels": lambda key, h: linen.Dropout(
        0.5, broadcast_dims=(0,), deterministic=False
    ).apply({}, h, rngs={"dropout": key}),
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_bits_are_those_of_the_whole_width(name):
    """The resized and the masked network have equal outputs, hidden values and gradients."""

    def train(p, x, key):
        first, second = jax.random.split(key)
        h = DRAWN[name](first, jnp.tanh(x @ p["a"]))
        g = DRAWN[name](second, jnp.tanh(h @ p["c"]))
        return g @ p["b"], {"hidden": h, "mean": g.mean(0)}

    def loss(f, params):
        value = lambda p: jnp.square(f(p, X, jax.random.key(5))[0]).sum()  # noqa: E731
        return jax.value_and_grad(value)(params)

    groups, keep, small, masked = cut(mlp, PARAMS, X)
    run = resized(train, groups, keep)
    value, gradient = loss(run, small)
    expected, whole = loss(train, masked)
    assert_near(value, expected)
    assert_near(gradient, remove_channels(whole, groups, keep))
    _, found = run(small, X, jax.random.key(5))
    _, hidden = train(masked, X, jax.random.key(5))
    kept = {p.path: v for g, v in zip(groups, keep, strict=True) for p in g.positions if p.axis}
    expected = {"hidden": hidden["hidden"][:, kept["a"]], "mean": hidden["mean"][kept["c"]]}
    assert_near(found, expected)


@pytest.mark.parametrize("names", ["c", "cb"])
def test_a_norm_of_another_program_is_over_the_whole_width(names):
    """The norm must treat removed channels as zeros; `b` is applied only if `names` has it."""

    def normed(p, x):
        h = x @ p["a"] / (x @ p["a"]).std(-1, keepdims=True)
        for name in names:
            h = h @ p[name]
        return h

    groups, keep, small, masked = cut(mlp, PARAMS, X)
    kept = {p.path: v for g, v in zip(groups, keep, strict=True) for p in g.positions if p.axis}
    expected = normed(masked, X)
    expected = expected[:, kept["c"]] if names == "c" else expected
    assert_near(resized(normed, groups, keep)(small, X), expected)


PINNING = {
    "softmax": (lambda p, x: jax.nn.softmax(x @ p["a"]) @ p["c"] @ p["b"], "reduce_max"),
    "sort": (lambda p, x: jnp.sort(mlp(p, x) + 0 * x[:, :3]) + jnp.sort(x @ p["a"]).sum(), "sort"),
    "beside an input": (lambda p, x: jnp.concatenate([x, x], 1) * (x @ p["a"]), "input"),
    "backward pass": (
        jax.grad(lambda p, x: jax.nn.logsumexp(x @ p["a"], -1).sum()),
        "reduce_max|exp",
    ),
}


@pytest.mark.parametrize("name", PINNING)
def test_what_another_program_needs_is_refused_by_name(name):
    apply, primitive = PINNING[name]
    groups, keep, small, _ = cut(mlp, PARAMS, X)
    with pytest.raises(
        ValueError, match=rf"^groups must hold .*; its ({primitive}).* needs some of them"
    ):
        resized(apply, groups, keep)(small, X)


@pytest.mark.parametrize("removed", [[6], [1, 6], [0, 1, 5]])
def test_the_primitive_that_needs_some_removed_channels_is_named(removed):
    """The program sorts the last four channels of `a`; a softmax needs the channels of `c`."""

    def apply(p, x):
        h = x @ p["a"]
        return jnp.tanh(h) @ p["b"] + jnp.sort(h[:, 4:]).sum() + jax.nn.softmax(h @ p["c"]).sum()

    groups = cut(mlp, PARAMS, X)[0][:1]
    keep = [~np.isin(np.arange(8), removed)]
    with pytest.raises(ValueError, match=r"; its sort needs some of them .*other_programs\.py"):
        resized(apply, groups, keep)(remove_channels(PARAMS, groups, keep), X)


@pytest.mark.parametrize("count", [1, 2])
def test_channels_that_another_program_couples_are_refused(count):
    """A program couples `a` with `c`, whose mask differs from the mask of `a` or is missing."""
    groups = cut(mlp, PARAMS, X)[0][:count]
    keep = [np.arange(8) < 4, np.arange(8) > 5][:count]
    product = lambda p, x: (x @ p["a"] * (x @ p["a"] @ p["c"])) @ p["b"]  # noqa: E731
    with pytest.raises(
        ValueError, match=r"^groups must come from this program; the program couples"
    ):
        resized(product, groups, keep)(remove_channels(PARAMS, groups, keep), X)


def test_a_recurrent_carry_is_as_narrow_as_its_cell():
    def cell(p, state, x):
        (h,) = state
        h = jnp.tanh(x @ p["a"] + h @ p["c"])
        return (h,), h @ p["b"]

    def unrolled(p, x):
        start = (jnp.zeros((len(x), 8)),)
        return jax.lax.scan(lambda h, _: cell(p, h, x), start, length=3)[1]

    groups, keep, small, masked = cut(unrolled, PARAMS, X)
    whole = (np.zeros((6, 8)),)
    run = resized(cell, groups, keep, states=(whole,))
    state, outputs = run(small, whole, X)
    assert state[0].shape == (6, int(keep[0].sum()))
    again, _ = run(small, state, X)
    assert_near(outputs, cell(masked, whole, X)[1])
    assert again[0].shape == state[0].shape
    with pytest.raises(
        ValueError,
        match=r"^a state must have .* \(6, 4\) at \[0\]\[0\], or the shape before pruning, \(6, 8",
    ):
        run(small, (np.zeros((6, 5)),), X)
    with pytest.raises(ValueError, match=r"^inputs must begin with states of structure"):
        run(small, np.zeros((6, 4)), X)


def test_prune_hands_on_what_a_training_step_needs():
    def tuned(params, step, pruned):
        run = resized(loss, pruned.groups, pruned.keep)
        gradient = jax.jit(jax.grad(run))(params, X, jax.random.key(step))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    def loss(p, x, key):
        h = DRAWN["bernoulli"](key, jnp.tanh(x @ p["a"]))
        return jnp.square(jnp.tanh(h @ p["c"]) @ p["b"] - 1).mean()

    pruned = prune(mlp, PARAMS, X, ratios=[0.25, 0.5], fine_tune=tuned, resize=True)
    assert pruned.params["c"].shape == (4, 4)


def test_random_bits_stay_at_one_width_without_resizing():
    def train(p, x, key):
        return mlp(p | {"c": DRAWN["bernoulli"](key, p["c"])}, x)

    key = jax.random.key(0)
    assert coupled_channels(train, PARAMS, X, key) == ()
    first, *_ = fixed_channels(train, PARAMS, X, key)
    assert first.primitive == "random_bits"
    assert "test_other_programs.py" in first.line
    assert all(group.normed for group in coupled_channels(train, PARAMS, X, key, resize=True))


@jax.custom_vjp
def scaled_gradient(x, scale):
    return x


scaled_gradient.defvjp(lambda x, scale: (x, scale), lambda scale, g: (scale[None] * g, None))


@jax.custom_vjp
def centred_gradient(x):
    return 2 * x


centred_gradient.defvjp(
    lambda x: (2 * x, None), lambda _, g: (g - jnp.tanh(g).mean(-1, keepdims=True),)
)


# For each name: a function, and the primitive that the error names. The custom derivative of the
# function couples other channels than the function itself, or sums over channels.
RULES = {
    "other channels": (lambda p, x: scaled_gradient(x @ p["a"], p["s"]) @ p["c"], "mul"),
    "a sum": (lambda p, x: centred_gradient(x @ p["a"]) @ p["c"], "reduce_sum"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_needs_removed_channels_is_refused_where_it_is_differentiated(name):
    body, primitive = RULES[name]
    apply = lambda p, x: jnp.tanh(body(p, x)) @ p["b"]  # noqa: E731
    params = PARAMS | {"s": np.linspace(1, 2, 8)}
    groups = [g for g in coupled_channels(apply, params, X) if ("a", 1) in [p[:2] for p in g[1]]]
    keep = [np.arange(8) < 3]
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    run = resized(apply, groups, keep)
    assert_near(run(small, X), apply(masked, X))
    with pytest.raises(
        ValueError, match=rf"; its {primitive} needs some of them .*test_other_programs.py"
    ):
        jax.grad(lambda p: run(p, X).sum())(small)
