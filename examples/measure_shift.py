# %% [markdown]
# # Measure the shift between two checkpoints
#
# How far have a layer's outputs moved between two checkpoints? One number, in the unit of the
# outputs, with its uncertainty: the earth mover distance between the outputs for the same
# inputs, and beside it what two samples of one distribution would give.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxnorm import shift
from jaxnorm.models import MLP
from jaxnorm.nnx import layer_outputs
from pruning import weights

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(1024, 16)), "float32")
labels = jnp.asarray(
    np.argmax(np.asarray(x) @ rng.normal(size=(16, 4)), 1)
)


def loss(model):
    return optax.softmax_cross_entropy_with_integer_labels(
        model(x[:512]), labels[:512]
    ).mean()


model = MLP(inputs=16, widths=(32, 32), classes=4, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(
    model, optax.sgd(0.3, momentum=0.9), wrt=nnx.Param
)


@nnx.jit
def step(model, optimizer):
    optimizer.update(model, nnx.grad(loss)(model))


for i in range(60):
    step(model, optimizer)
    if i in (9, 59):
        weights.save(f"step{i + 1}.safetensors", model)

# %% [markdown]
# Both checkpoints see the same 512 inputs that were not trained on, in inference.

# %%
model.eval()


@nnx.jit
def outputs(model):
    return layer_outputs(model, ["norms.1"], x[512:])["norms.1"]


saved = []
for i in (10, 60):
    nnx.update(
        model, weights.restore(f"step{i}.safetensors", nnx.state(model))
    )
    saved.append(outputs(model))
before, after = saved

# %% [markdown]
# **One number.** The mean distance of a channel, exact by `emd_1d`, over bootstrap samples of
# the inputs.


# %%
@jax.jit
def distance(before, after):
    return shift.emd_1d(before, after).mean()


def drawn(key):
    rows = jax.random.randint(key, (len(before),), 0, len(before))
    return distance(before[rows], after[rows])


samples = jax.lax.map(drawn, jax.random.split(jax.random.key(0), 200))
low, high = jnp.percentile(samples, jnp.array([2.5, 97.5]))
moved = distance(before, after)
print(
    f"mean shift of a channel: {moved:.3f}, "
    f"95 % bootstrap {low:.3f} to {high:.3f}"
)

# %% [markdown]
# **Is it more than nothing?** Two halves of the later outputs are samples of one
# distribution; their distance is the baseline that a number without pairs must be seen
# beside.

# %%
orders = [rng.permutation(512) for _ in range(50)]
halves = jnp.array(
    [distance(after[p[:256]], after[p[256:]]) for p in orders]
)
print(
    f"two halves of the later outputs: "
    f"{halves.mean():.3f} ± {halves.std():.3f}"
)

# %% [markdown]
# **All channels jointly**, exactly and with bounds that hold for certain, from 400 samples.

# %%
joint = shift.layer_shift(before, after)
print(
    f"{joint.lower:.2f} ≤ {joint.exact:.2f} ≤ {joint.upper:.2f}; "
    f"two halves: {joint.baseline:.2f}"
)
