# %% [markdown]
# # Are my filters Gaussian?
#
# Of any weight file: safetensors, npz, msgpack, PyTorch's .pt and .pth, Keras's .h5 and
# .keras, a directory of Orbax. Set `WEIGHTS` to yours. Without one, a file is made of three
# layers: Gaussian filters, heavier tails (Laplace), and filters of unequal size.

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
# **One distribution for all weights of a layer?** `shape` is that of the likeliest
# generalized Gaussian, 1 for Laplace and 2 for the Gaussian. D is the distance to the
# Gaussian, and `below` what it is below with 95 % confidence, for layers so large that every
# test rejects. The p-values are those of `ks_generalized_gaussian`, from samples that are
# fitted likewise.


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
# **Filters of one size?** The pruning paper's assumption is that all filters of a layer are
# draws of one Gaussian. A layer may have equal marginals and unequal filters. p-values of all
# layers are adjusted by Holm's method.

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
# **Does it matter?** Where filters are draws of one Gaussian, the criteria's rankings are as
# similar as the theory says.

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
