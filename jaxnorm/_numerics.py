"""Until `pruning` imports `jaxnorm.internal`."""

from jaxnorm.internal import *  # noqa: F403
