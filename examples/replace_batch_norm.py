# %% [markdown]
# # Replace batch norm in your Flax model, and train on eight devices
#
# In NNX, one call replaces all batch norm layers of Flax. In Linen, use another class. The
# eight devices are virtual devices of a CPU. For real devices, omit the line with
# `jax_num_cpu_devices`.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxnorm

jax.config.update("jax_num_cpu_devices", 8)

rng = np.random.default_rng(0)
labels = rng.integers(0, 4, 512)
images = rng.normal(size=(512, 8, 8, 1))
for i, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
    images[labels == i, row : row + 4, column : column + 4] += (
        0.7  # a brighter quarter
    )
x, y = jnp.asarray(images, "float32"), jax.nn.one_hot(labels, 4)

# %% [markdown]
# ## NNX
#
# The model has batch norm layers of Flax:


# %%
class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 8, (3, 3), strides=2, rngs=rngs)
        self.norm1 = nnx.BatchNorm(8, rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.norm2 = nnx.BatchNorm(16, rngs=rngs)
        self.head = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        return self.head(x.reshape(len(x), -1))


model = Net(nnx.Rngs(0))
before = model(x)
jaxnorm.nnx.replace_batch_norm(model, jaxnorm.nnx.UnitizedBatchNorm)
print("norm1 is a", type(model.norm1).__name__)
print(
    "with alpha 0 outputs change by",
    f"{abs(model(x) - before).max():.0e}",
)

# %% [markdown]
# The images are sharded over the mesh, and the parameters are replicated. The statistics are
# over the whole batch, without an axis name.

# %%
mesh = jax.make_mesh(
    (8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
)
sharded = jax.device_put((x, y), NamedSharding(mesh, P("data")))
nnx.update(
    model, jax.device_put(nnx.state(model), NamedSharding(mesh, P()))
)
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


def loss(model, x, y):
    return optax.softmax_cross_entropy(model(x), y).mean()


@nnx.jit
def step(model, optimizer, x, y):
    value, gradient = nnx.value_and_grad(loss)(model, x, y)
    optimizer.update(model, gradient)
    return value


for i in range(60):
    value = step(model, optimizer, *sharded)
    if i % 20 == 0 or i == 59:
        print(f"step {i:2d}, loss {value:.3f}")

model.eval()
predicted = nnx.jit(lambda model, x: model(x).argmax(-1))(
    model, sharded[0]
)
devices = len(sharded[0].sharding.device_set)
print(
    f"images on {devices} devices, "
    f"accuracy {np.mean(predicted == labels):.1%}"
)
print("alpha of norm1:", model.norm1.alpha[...].round(2))

# %% [markdown]
# ## Linen
#
# The class `jaxnorm.linen.UnitizedBatchNorm` can replace `linen.BatchNorm`. The class has
# the variables of `linen.BatchNorm`, and the additional parameter `alpha`.


# %%
class LinenNet(linen.Module):
    norm: type = linen.BatchNorm

    @linen.compact
    def __call__(self, x, train):
        for features in (8, 16):
            x = linen.Conv(features, (3, 3), strides=2)(x)
            x = linen.relu(self.norm(use_running_average=not train)(x))
        return linen.Dense(4)(x.reshape(len(x), -1))


net = LinenNet(jaxnorm.linen.UnitizedBatchNorm)
variables = net.init(jax.random.key(0), x[:1], train=False)
params, statistics = (
    jax.device_put(variables[k], NamedSharding(mesh, P()))
    for k in ("params", "batch_stats")
)
rule = optax.adam(3e-3)
state = rule.init(params)


@jax.jit
def linen_step(params, statistics, state, x, y):
    def loss(params):
        given = {"params": params, "batch_stats": statistics}
        logits, updated = net.apply(
            given, x, train=True, mutable="batch_stats"
        )
        return optax.softmax_cross_entropy(logits, y).mean(), updated[
            "batch_stats"
        ]

    (value, statistics), gradient = jax.value_and_grad(
        loss, has_aux=True
    )(params)
    updates, state = rule.update(gradient, state)
    return (
        optax.apply_updates(params, updates),
        statistics,
        state,
        value,
    )


for i in range(60):
    params, statistics, state, value = linen_step(
        params, statistics, state, *sharded
    )
    if i % 20 == 0 or i == 59:
        print(f"step {i:2d}, loss {value:.3f}")
