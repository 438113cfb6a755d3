"""Makes plans, which are matrices with the share of each channel that each kept channel gets."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jaxnorm.shift import transport_plan

Features = Float[np.ndarray, "channels features"]
Transport = Float[np.ndarray, "channels kept"]
Plans = Callable[[Features, Bool[np.ndarray, " channels"]], Transport]


def clusters(features: Features, keep: Bool[np.ndarray, " channels"]) -> Transport:
    """A plan that merges the channels of each cluster into one kept channel.

    The clusters come from Ward's hierarchical clustering of the features of channels. The plan
    depends on the number of kept channels, but not on which channels are kept.

    Raises:
      ValueError: `keep` keeps no channel.

    Example:
      >>> print(clusters(np.array([[0.0], [5.0], [0.1]]), np.array([False, True, True])))
      [[1. 0.]
       [0. 1.]
       [1. 0.]]
    """
    # SciPy is imported here, because the import is slow.
    from scipy.cluster.hierarchy import cut_tree, linkage

    if not keep.any():
        raise ValueError("keep must keep at least one channel; it keeps none")
    if len(features) == 1:
        return np.ones((1, 1))
    count = int(keep.sum())
    labels = cut_tree(linkage(features, "ward"), n_clusters=count)[:, 0]
    return np.eye(count)[labels]


def transport(features: Features, keep: Bool[np.ndarray, " channels"]) -> Transport:
    """The plan that `jaxnorm.shift.transport_plan` computes from all to the kept channels.

    All channels have the same mass, and all kept channels have the same mass. Therefore each kept
    channel receives the same total mass.

    Raises:
      ValueError: `keep` keeps no channel, or `features` are not finite.

    Example:
      >>> features = np.array([[0.0], [5.0], [0.1], [4.0]])
      >>> keep = np.array([False, True, True, False])
      >>> print(transport(features, keep))
      [[0.   0.25]
       [0.25 0.  ]
       [0.   0.25]
       [0.25 0.  ]]
    """
    return transport_plan(jnp.asarray(features), jnp.asarray(features[keep]))
