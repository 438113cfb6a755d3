# %% [markdown]
# # The odd point in twenty lines
#
# In a deep network that subtracts the mean over the batch before every ReLU, one sample
# becomes much longer than all other samples, which form a cluster. The long sample is
# called the odd point. In the recentering tree, each neuron x with the mean μ has two
# children: ReLU(x − μ) and ReLU(μ − x). The function `geometry.tree_gram` computes the
# Gram matrix of all 2^depth neurons of the tree, exactly up to rounding.

# %%
import jax
import jax.numpy as jnp

import geometry

x = jax.random.normal(
    jax.random.key(0), (32,)
)  # one coordinate of 32 samples
deep = jax.jit(geometry.tree_gram, static_argnums=1)

for depth in (1, 10, 100, 1000):
    odd = geometry.odd_point(deep(x, depth).gram)
    print(
        f"depth {depth:4d}: sample {int(odd.index):2d} is "
        f"{odd.norm_ratio:5.2f} times as long"
    )

# %% [markdown]
# A random network of finite width also has an odd point. The network has 60 layers of 256
# neurons, and the batch has 32 samples of 32 features.

# %%
inputs = jax.random.normal(jax.random.key(1), (32, 32))
net = geometry.random_network(
    jax.random.key(2), inputs, depth=60, width=256, layers=(1, 10, 60)
)
for layer, statistics in zip((1, 10, 60), net.statistics, strict=True):
    odd = geometry.odd_point(statistics)
    degrees = jnp.degrees(odd.spread)
    print(
        f"layer {layer:2d}: {odd.norm_ratio:5.2f} times as long, "
        f"the others spread {degrees:4.1f}°"
    )
