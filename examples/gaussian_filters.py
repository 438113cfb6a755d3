# %% [markdown]
# # Are my filters Gaussian?
#
# Set `WEIGHTS` to a weight file: safetensors, npz, msgpack, PyTorch's .pt or .pth, Keras's
# .h5 or .keras, or a directory of Orbax. Without a file, the notebook writes a file with
# three layers: Gaussian filters, filters with a Laplace distribution, and Gaussian filters
# with different standard deviations.

# %%
import jax
import jax.numpy as jnp

import pruning
from pruning import weight_tests, weights

WEIGHTS = None

if WEIGHTS is None:
    keys = jax.random.split(jax.random.key(0), 4)
    shape, sizes = (3, 3, 8, 16), jnp.linspace(0.5, 1.5, 16)
    made = {
        "gaussian.kernel": 0.1 * jax.random.normal(keys[0], shape),
        "laplace.kernel": 0.1 * jax.random.laplace(keys[1], shape),
        "unequal.kernel": 0.1
        * sizes
        * jax.random.normal(keys[2], shape),
    }
    WEIGHTS = "filters.safetensors"
    weights.save(WEIGHTS, made)

kernels = weights.load(WEIGHTS)
print({name: kernel.shape for name, kernel in kernels.items()})

# %% [markdown]
# **Do all weights of a layer have one distribution?** `shape` is the shape parameter of
# the fitted generalized Gaussian distribution: 1 for a Laplace distribution, and 2 for a
# Gaussian distribution. `D` is the Kolmogorov-Smirnov distance between the weights and the
# fitted Gaussian distribution of mean 0. `below` is an upper bound of the distance between
# the distribution of the weights and the fitted Gaussian distribution, with 95 %
# confidence. The bound is useful for large layers, because with so many weights every test
# rejects. The function `ks_generalized_gaussian` computes the p-values from random
# samples.


# %%
@jax.jit
def tested(w):
    """The fitted shape, and tests of a Gaussian and of Laplace."""
    key, shapes = jax.random.key(1), jnp.array([2.0, 1.0])
    test = jax.vmap(
        lambda s: weight_tests.ks_generalized_gaussian(
            key, w, shape=s, samples=99
        )
    )
    return (
        weight_tests.fit_generalized_gaussian(w).shape,
        test(shapes),
        weight_tests.ks_bound(w),
    )


print("layer      shape    D   below   p Gaussian   p Laplace")
for name, kernel in kernels.items():
    shape, tests, bound = tested(kernel)
    distance, (gaussian, laplace) = tests.statistic[0], tests.p_value
    print(
        f"{name:9s} {shape:6.2f} {distance:6.3f} {bound:6.3f} "
        f"{gaussian:9.2f} {laplace:11.2f}"
    )

# %% [markdown]
# **Do all filters have one standard deviation?** Huang et al. (2020) assume that the
# filters of a layer are independent draws from one Gaussian distribution. Holm's method
# corrects the p-values for the number of layers.

# %%
tests = {
    name: pruning.std_homogeneity(pruning.filter_matrix(jnp.asarray(k)))
    for name, k in kernels.items()
}
adjusted = weight_tests.holm(
    jnp.stack([test.p_value for test in tests.values()])
)
for name, p in zip(tests, adjusted, strict=True):
    print(f"{name:9s} filters of one standard deviation: p = {p:.3f}")

# %% [markdown]
# **Do the criteria agree as predicted?** If the filters are draws from one Gaussian
# distribution, the rank correlation of the criteria l1 and l2 is near the result of
# `expected_spearman`.

# %%
for name, kernel in kernels.items():
    filters = pruning.filter_matrix(jnp.asarray(kernel))
    found = pruning.spearman(
        pruning.l1_norm(filters), pruning.l2_norm(filters)
    )
    expected = pruning.expected_spearman(*filters.shape, ("l1", "l2"))
    print(
        f"{name:9s} Spearman of l1 and l2: {found:.2f}, "
        f"Gaussian filters predict {expected:.2f}"
    )
