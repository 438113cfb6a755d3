"""The version of the library, and a check of JAX's version before other imports."""

import jax

__version__ = "0.1.0"
OLDEST_JAX = (0, 10)

if jax.__version_info__ < OLDEST_JAX:
    raise ImportError(
        f"jaxnorm {__version__} needs JAX {'.'.join(map(str, OLDEST_JAX))} or later; "
        f"{jax.__version__} is installed: pip install --upgrade jax flax"
    )
