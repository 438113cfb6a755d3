# %% [markdown]
# # Prune your network and see milliseconds
#
# The function `pruning.prune` accepts any function that JAX can trace. In the traced
# program, `prune` finds which channels are coupled. Then `prune` removes channels from the
# arrays, so the arrays are smaller and not only masked.

# %%
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import export

import jaxnorm
import pruning

rng = np.random.default_rng(0)
labels = rng.integers(0, 4, 512)
images = rng.normal(size=(512, 16, 16, 1))
for i, (row, column) in enumerate([(0, 0), (0, 8), (8, 0), (8, 8)]):
    images[labels == i, row : row + 8, column : column + 8] += (
        0.4  # a brighter quarter
    )
x, y = jnp.asarray(images, "float32"), jnp.asarray(labels)


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, y
    ).mean()


# %% [markdown]
# ## NNX: train, prune, recalibrate, fine-tune


# %%
class Net(nnx.Module):
    def __init__(self, rngs):
        self.convs = nnx.List(
            [
                nnx.Conv(a, b, (3, 3), rngs=rngs)
                for a, b in ((1, 64), (64, 64))
            ]
        )
        self.norms = nnx.List(
            [jaxnorm.nnx.BatchNorm(64, rngs=rngs) for _ in range(2)]
        )
        self.head = nnx.Linear(64 * 4, 4, rngs=rngs)

    def __call__(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.max_pool(nnx.relu(norm(conv(x))), (2, 2), (2, 2))
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        return self.head(x.reshape(len(x), -1))


def trained(model, steps):
    model.train()
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        optimizer.update(
            model,
            nnx.grad(lambda model: cross_entropy(model(x), y))(model),
        )

    for i in range(steps):
        part = slice(i % 8 * 64, i % 8 * 64 + 64)
        step(model, optimizer, x[part], y[part])
    model.eval()
    return model


model = trained(Net(nnx.Rngs(0)), 40)
graph, params = nnx.split(model)


def apply(params, x):
    return nnx.merge(graph, params)(x)


def accuracy(params):
    return float(jnp.mean(jax.jit(apply)(params, x).argmax(-1) == y))


def recalibrated(params):
    small = nnx.merge(graph, params)
    jaxnorm.nnx.recalibrate(small, [x[:256]])
    return nnx.state(small)


def tuned(params, step):
    return nnx.state(trained(nnx.merge(graph, params), 40))


smaller = partial(pruning.prune, apply, params, x[:8], ratios=[0.5])
stages = {
    "trained": params,
    "pruned": smaller().params,
    "recalibrated": smaller(recalibrate=recalibrated).params,
    "fine-tuned": smaller(
        recalibrate=recalibrated, fine_tune=tuned
    ).params,
}
for name, tree in stages.items():
    print(f"{name:12s} accuracy {accuracy(tree):6.1%}")

# %% [markdown]
# The function `pruning.cost` counts multiply-accumulates, and measures the time of a call
# with 32 images. The times below are from two cores of a shared machine, and differ much
# from run to run. Measure the times on your machine.

# %%
small = stages["fine-tuned"]
for name, tree in (("trained", params), ("fine-tuned", small)):
    cost = pruning.cost(apply, tree, x[:1], batch_sizes=[32])
    timing = cost.timings[32]
    size = f"{cost.parameters:6,d} parameters, {cost.macs:10,.0f} MACs"
    print(f"{name:12s} {size}, {timing.milliseconds:6.2f} ms")

# %% [markdown]
# ## Save, export, load
#
# The file `small.safetensors` contains the arrays under the names of NNX. The function
# `jax.export` makes a StableHLO program, which runs without Flax and without the class of
# the model. To export a program, install `flatbuffers`.

# %%
pruning.weights.save("small.safetensors", small)
restored = pruning.weights.restore("small.safetensors", params)
print(
    "restored:",
    bool(jnp.all(apply(restored, x[:4]) == apply(small, x[:4]))),
)

exported = export.export(jax.jit(partial(apply, small)))(
    jax.ShapeDtypeStruct((4, 16, 16, 1), "float32")
)
data = exported.serialize()
again = export.deserialize(data).call(x[:4])
print(
    f"exported: {len(data):,} bytes,",
    np.allclose(again, apply(small, x[:4]), atol=1e-5),
)

# %% [markdown]
# ## Equinox, resized
#
# The code of this model contains a fixed width, the 128 of a reshape. To run the model with
# smaller arrays, use `resized`, which traces the large network and evaluates its program
# with the smaller arrays.


# %%
class Blocks(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(16, 128, key=keys[0])
        self.second = eqx.nn.Linear(128, 4, key=keys[1])

    def __call__(self, x):
        h = jax.nn.relu(self.first(x).reshape(128))
        return self.second(h)


arrays, static = eqx.partition(Blocks(jax.random.key(0)), eqx.is_array)
features = x.reshape(512, 4, 4, 4, 4).mean((2, 4)).reshape(512, 16)


def blocks(arrays, x):
    return jax.vmap(eqx.combine(arrays, static))(x)


def fine_tuned(arrays, step, so_far):
    run = pruning.channels.resized(blocks, so_far.groups, so_far.keep)
    rule = optax.adam(1e-2)

    @jax.jit
    def update(arrays, state):
        gradient = jax.grad(
            lambda arrays: cross_entropy(run(arrays, features), y)
        )(arrays)
        updates, state = rule.update(gradient, state)
        return optax.apply_updates(arrays, updates), state

    state = rule.init(arrays)
    for _ in range(60):
        arrays, state = update(arrays, state)
    return arrays


pruned = pruning.prune(
    blocks,
    arrays,
    features,
    ratios=[0.5],
    resize=True,
    fine_tune=fine_tuned,
)
run = jax.jit(
    partial(
        pruning.channels.resized(blocks, pruned.groups, pruned.keep),
        pruned.params,
    )
)
print(
    "first weight:",
    arrays.first.weight.shape,
    "->",
    pruned.params.first.weight.shape,
)
print(
    f"accuracy after fine-tuning: "
    f"{np.mean(run(features).argmax(-1) == y):.1%}"
)
data = export.export(run)(
    jax.ShapeDtypeStruct((4, 16), "float32")
).serialize()
print(
    "exported and read back:",
    np.allclose(
        export.deserialize(data).call(features[:4]),
        run(features[:4]),
        atol=1e-5,
    ),
)
