"""Networks that multiply Fourier transforms along space or time, as plain functions."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.support.architectures._common import Architecture, Make, normal

WIDTH, INPUTS, SIZE, STATES, CLASSES = 6, 2, 8, 4, 3


def arrays(dtype: Any, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return {
        name: normal(dtype, *shape, seed=seed) / 2
        for seed, (name, shape) in enumerate(shapes.items())
    }


def neural_operator(dtype: Any) -> Architecture:
    """The Fourier neural operator, with a matrix for each low frequency, Li et al. (2021)."""
    modes = (2, 2, WIDTH, WIDTH)
    shapes = {"in": (INPUTS, WIDTH), "real": modes, "imag": modes, "skip": (WIDTH, WIDTH)}
    params = arrays(dtype, **shapes, out=(WIDTH, CLASSES))

    def apply(p, x):
        h = x @ p["in"]
        low = jnp.fft.rfft2(h, axes=(1, 2))[:, :2, :2]
        y = jnp.einsum("bklc,klcd->bkld", low, jax.lax.complex(p["real"], p["imag"]))
        y = jnp.pad(y, [(0, 0), (0, SIZE - 2), (0, SIZE // 2 - 1), (0, 0)])
        y = jnp.fft.irfft2(y, s=(SIZE, SIZE), axes=(1, 2))
        return jax.nn.gelu(y + h @ p["skip"]) @ p["out"]

    return Architecture(apply, params, (normal(dtype, 2, SIZE, SIZE, INPUTS),))


def convolved(x: Any, kernel: Any) -> Any:
    """A causal convolution along the last axis, by Fourier transforms of twice the length."""
    n = x.shape[-1]
    return jnp.fft.irfft(jnp.fft.rfft(x, 2 * n) * jnp.fft.rfft(kernel, 2 * n)[None], 2 * n)[..., :n]


def state_space(dtype: Any) -> Architecture:
    """S4D: a convolution with the impulse response of a diagonal state space, Gu et al. (2022)."""
    shapes = {"in": (INPUTS, WIDTH), "step": (WIDTH, 1), "gain": (WIDTH, 1)}
    shapes |= dict.fromkeys(("decay", "frequency", "real", "imag"), (WIDTH, STATES))
    params = arrays(dtype, **shapes, mix=(WIDTH, 2 * WIDTH), out=(WIDTH, CLASSES))

    def apply(p, x):
        u = jnp.swapaxes(x @ p["in"], 1, 2)
        a = jax.lax.complex(-jnp.exp(p["decay"]), p["frequency"]) * jnp.exp(p["step"])
        powers = jnp.exp(jnp.einsum("cn,t->cnt", a, jnp.arange(SIZE, dtype=a.dtype)))
        kernel = jnp.einsum("cn,cnt->ct", jax.lax.complex(p["real"], p["imag"]), powers).real
        y = jax.nn.gelu(convolved(u, kernel) + u * p["gain"][None])
        return jax.nn.glu(jnp.swapaxes(y, 1, 2) @ p["mix"]) @ p["out"]

    return Architecture(apply, params, (normal(dtype, 2, SIZE, INPUTS),))


def hyena(dtype: Any) -> Architecture:
    """Hyena: gates, and a long convolution whose kernel a network computes, Poli et al. (2023)."""
    shapes = {"in": (INPUTS, 3 * WIDTH), "times": (SIZE, 3), "first": (3, 5), "second": (5, WIDTH)}
    params = arrays(dtype, **shapes, decay=(WIDTH,), out=(WIDTH, CLASSES))

    def apply(p, x):
        a, b, v = jnp.split(jnp.swapaxes(x @ p["in"], 1, 2), 3, 1)
        window = jnp.exp(-jnp.outer(jnp.arange(SIZE, dtype=dtype), jnp.abs(p["decay"])))
        kernel = jnp.sin(p["times"] @ p["first"]) @ p["second"] * window
        return jnp.swapaxes(b * convolved(a * v, kernel.T), 1, 2) @ p["out"]

    return Architecture(apply, params, (normal(dtype, 2, SIZE, INPUTS),))


SPECTRAL: dict[str, Make] = {
    "Fourier neural operator": neural_operator,
    "S4D": state_space,
    "Hyena": hyena,
}
