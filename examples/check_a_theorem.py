# %% [markdown]
# # Check a theorem of your own
#
# The function `geometry.monte_carlo` calls a function with many random keys, and returns
# the mean of the results with its standard error. A statement predicts the mean of the
# results. If the measured mean is too many standard errors away from the prediction, the
# statement is rejected.
#
# **A statement.** Normalize n independent Gaussian samples by batch norm without scale and
# bias, and apply ReLU. Then the mean of a neuron over the batch is 1/√(2π), on average over
# batches. Is this statement true at n = 8?

# %%
import jax
import jax.numpy as jnp
from scipy import special, stats

import geometry
import jaxnorm


def draw(key, n):
    """The mean of a neuron over a batch of n."""
    y, _ = jaxnorm.batch_norm(jax.random.normal(key, (n, 1)), eps=0.0)
    return jax.nn.relu(y).mean()


def decide(name, estimate, predicted):
    z = (estimate.mean - predicted) / estimate.stderr
    verdict = (
        "rejected"
        if 2 * stats.norm.sf(abs(z)) < 1e-4
        else "not rejected"
    )
    print(
        f"{name}: {estimate.mean:.5f} ± {estimate.stderr:.5f}, "
        f"predicted {predicted:.5f}: {verdict}"
    )


estimate = geometry.monte_carlo(
    lambda key: draw(key, 8), jax.random.key(0), 200_000
)
decide("1/√(2π) at n = 8", estimate, (2 * jnp.pi) ** -0.5)

# %% [markdown]
# The statement is rejected, because the normalized samples are not Gaussian. The vector of
# the n normalized samples is uniform on a sphere of radius √n, in the n − 1 dimensions of
# vectors with mean zero. Therefore one normalized sample is √(n − 1) times a coordinate of a
# uniform point on the unit sphere in n − 1 dimensions, which gives
#
# $$
# \mathrm{E}\,\mathrm{relu}(\hat x_i)
# = \frac{\sqrt{n - 1}}{2}\,\frac{\Gamma((n - 1)/2)}{\sqrt{\pi}\,\Gamma(n/2)}.
# $$


# %%
def corrected(n):
    ratio = special.gamma((n - 1) / 2) / special.gamma(n / 2)
    return (n - 1) ** 0.5 / 2 * ratio / jnp.pi**0.5


for n in (3, 8, 30):
    estimate = geometry.monte_carlo(
        lambda key, n=n: draw(key, n), jax.random.key(n), 200_000
    )
    decide(f"corrected, n = {n}", estimate, corrected(n))

# %% [markdown]
# A check is useful only if it can fail. The next cell checks a prediction that is wrong by
# one percent.

# %%
decide("1 % too large", estimate, 1.01 * corrected(30))

# %% [markdown]
# With `geometry.claims`, you can check many statements together, with a correction for the
# number of statements. The command `scripts/check_theorems.py` checks the statements of
# three papers.
