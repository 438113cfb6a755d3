# %% [markdown]
# # Measure the shift between two checkpoints
#
# How far do the outputs of a layer move between two checkpoints? This notebook measures the
# earth mover distance between the outputs for the same inputs, in the unit of the outputs,
# with a bootstrap interval. For comparison, the notebook measures the distance between two
# halves of the later outputs.

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
# The two checkpoints are evaluated in inference mode, on the same 512 inputs, which
# were not used in training.

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
# **One number for a layer.** The shift is the mean over channels of the distance that
# `emd_1d` computes exactly. The interval comes from bootstrap samples of the inputs.


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
# **Is the shift larger than sampling noise?** Two halves of the later outputs are samples of
# one distribution. The distance between the halves is the baseline for distances between
# outputs for different inputs.

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
# **All channels together.** For the first 400 samples, `layer_shift` computes the exact
# distance of all channels together, with a lower and an upper bound.

# %%
joint = shift.layer_shift(before, after)
print(
    f"{joint.lower:.2f} ≤ {joint.exact:.2f} ≤ {joint.upper:.2f}; "
    f"two halves: {joint.baseline:.2f}"
)
