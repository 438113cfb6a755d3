# %% [markdown]
# # Check a theorem of your own
#
# `geometry.monte_carlo` gives the mean of any function of a key with its standard error,
# batched and on all devices. A statement is then a number that the mean should have, and its
# distance in standard errors decides.
#
# **A statement.** Normalize n independent Gaussian samples by batch norm without scale and
# bias, and take ReLU. Then the mean of a neuron over the batch is 1/√(2π), on average over
# batches. Is that so at n = 8?

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
# It is not: a normalized sample lies on a sphere, and is not Gaussian. With x uniform on the
# sphere of radius √n in the n − 1 dimensions of zero mean, one coordinate is √(n − 1) times
# one of the unit sphere's in n − 1 dimensions, which gives
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
# A check that could not fail is worth nothing: would it notice a prediction that is wrong by
# 1 %?

# %%
decide("1 % too large", estimate, 1.01 * corrected(30))

# %% [markdown]
# `geometry.claims` does this for many statements together, with a correction for their number;
# `scripts/check_theorems.py` checks all those of the papers.
