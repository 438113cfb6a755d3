import os
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from geometry import Estimate, monte_carlo
from geometry.sampling import _streams, monte_carlo_moments
from geometry.sampling._moments import central_moments
from geometry.sampling._monte_carlo import _round_ends


def uniform_pair(key):
    return jax.random.uniform(key, (2, 3))


def test_mean_and_standard_error_are_those_of_the_draws(key):
    draws = np.stack([jax.random.uniform(jax.random.fold_in(key, i)) for i in range(20)])
    mean, stderr, samples = monte_carlo(jax.random.uniform, key, 20)
    np.testing.assert_allclose(mean, draws.mean(), rtol=1e-14)
    np.testing.assert_allclose(stderr, draws.std(ddof=1) / 20**0.5, rtol=1e-13)
    assert samples == 20


@pytest.mark.parametrize("batch_size", [1, 7, 99, 100, 1000])
def test_batches_change_nothing_but_rounding(batch_size, key):
    whole = monte_carlo(uniform_pair, key, 100)
    parts = monte_carlo(uniform_pair, key, 100, batch_size=batch_size)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(parts.stderr, whole.stderr, rtol=1e-13)
    assert whole.mean.shape == whole.stderr.shape == (2, 3)


def test_estimates_lie_within_their_standard_errors(key):
    def error(key):
        mean, stderr, _ = monte_carlo(jax.random.normal, key, 50, batch_size=20)
        return mean / stderr

    scores = np.asarray(jax.vmap(error)(jax.random.split(key, 2000)))
    assert abs(scores.mean()) < 0.1
    assert 0.93 < scores.std() < 1.13  # Student's t with 49 degrees of freedom has std 1.02


def test_a_large_mean_in_float32_does_not_spoil_the_standard_error(key):
    def draw(key):
        return 1e4 + jax.random.normal(key, dtype=jnp.float32)

    mean, stderr, _ = monte_carlo(draw, key, 10_000, batch_size=300)
    assert mean.dtype == stderr.dtype == jnp.float32
    assert abs(mean - 1e4) < 0.05
    assert abs(stderr - 0.01) < 0.001


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda key: jax.random.bernoulli(key, 0.25), 0.25),
        (lambda key: jax.random.randint(key, (), 0, 10), 4.5),
        (lambda key: jax.random.uniform(key, dtype=jnp.bfloat16), 0.5),
    ],
)
def test_events_counts_and_short_numbers_can_be_drawn(draw, expected, key):
    mean, stderr, _ = monte_carlo(draw, key, 5000, batch_size=1000)
    is_short = draw(key).dtype == jnp.bfloat16
    assert mean.dtype == stderr.dtype == (jnp.float32 if is_short else jnp.float64)
    assert abs(mean - expected) < 5 * stderr


def test_a_key_of_another_generator_is_used_as_it_is():
    key = jax.random.key(3, impl="rbg")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(8))
    found = monte_carlo(jax.random.uniform, key, 8, devices=jax.devices()[:1])
    np.testing.assert_allclose(found.mean, jax.vmap(jax.random.uniform)(keys).mean(), rtol=1e-12)


def test_a_constant_has_no_error(key):
    mean, stderr, _ = monte_carlo(lambda key: jnp.float32(1e25), key, 10, batch_size=4)
    np.testing.assert_allclose(mean, 1e25, rtol=1e-6)
    assert stderr < 1e19


def test_jit_and_vmap_of_an_estimate(key):
    keys = jax.random.split(key, 3)

    def estimate(key):
        return monte_carlo(uniform_pair, key, 10, batch_size=4)

    one = estimate(keys[0])
    many = jax.jit(jax.vmap(estimate))(keys)
    assert isinstance(many, Estimate)
    np.testing.assert_allclose(many.mean[0], one.mean, rtol=1e-14)


def test_impossible_sizes(key):
    with pytest.raises(ValueError, match=r"samples must be at least 2, .*; got 1"):
        monte_carlo(jax.random.uniform, key, 1)
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        monte_carlo(jax.random.uniform, key, 10, batch_size=0)


def skewed_pair(key):
    return 10 + jnp.cumsum(jax.random.exponential(key, (2,)))


def drawn(draw, key, samples):
    return np.stack([draw(jax.random.fold_in(key, i)) for i in range(samples)])


def assert_same(found, expected, rtol=1e-12):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)


@pytest.fixture(scope="module")
def pairs():
    key = jax.random.key(0)
    return np.asarray(jax.vmap(lambda i: skewed_pair(jax.random.fold_in(key, i)))(jnp.arange(500)))


def test_moments_are_those_of_the_draws(pairs, key):
    found = monte_carlo_moments(skewed_pair, key, 500)
    deviation = pairs - pairs.mean(0)
    spread = np.mean(deviation**4, 0) - np.mean(deviation**2, 0) ** 2
    expected = (pairs.mean(0), pairs.std(0, ddof=1) / 500**0.5, pairs.var(0, ddof=1))
    assert_same(found, (*expected, np.sqrt(spread / 500), 500), rtol=1e-10)


def test_neither_devices_nor_batches_change_a_result(key):
    one = monte_carlo_moments(skewed_pair, key, 500, devices=jax.devices()[:1])
    for devices, batch_size in ((8, None), (8, 7), (3, 50), (2, None)):
        many = monte_carlo_moments(
            skewed_pair, key, 500, devices=jax.devices()[:devices], batch_size=batch_size
        )
        assert_same(many, one)


class Device(NamedTuple):
    platform: str
    process_index: int
    number: int


def test_each_process_draws_on_one_cpu_or_on_all_its_accelerators(key, monkeypatch):
    compiled = _streams.compiled(_streams.Sampler(jax.random.uniform), key, 100)
    assert compiled.mesh is None
    for platform, expected in (("cpu", [0, 2]), ("gpu", [0, 1, 2, 3])):
        devices = [Device(platform, process, 2 * process + k) for process in (0, 1) for k in (0, 1)]
        monkeypatch.setattr(jax, "devices", lambda found=devices: found)
        assert [device.number for device in _streams.default_devices()] == expected


# If each of the eight devices has only one thread, the devices wait for each other forever.
LAPACK_IN_A_LOOP = """
import sys
import jax, jax.numpy as jnp
from experiments.measures.claims import first_devices
from geometry import monte_carlo

def draw(key):
    return jnp.linalg.svd(jax.random.normal(key, (12, 12)), compute_uv=False)

devices = first_devices(8) if sys.argv[1:] else None
mean = monte_carlo(draw, jax.random.key(0), 20_000, batch_size=512, devices=devices).mean
print(len(jax.devices()), mean.shape)
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--devices"]])
def test_cpu_devices_do_not_wait_for_each_other_in_lapack(options):
    variables = {name: value for name, value in os.environ.items() if name != "NPROC"}
    ended = subprocess.run(
        [sys.executable, "-c", LAPACK_IN_A_LOOP, *options],
        env=variables | {"JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout == "8 (12,)\n", ended.stderr


@pytest.mark.parametrize(("devices", "batch_size"), [(1, 75), (8, 75), (1, 24)])
def test_one_key_may_have_many_draws(devices, batch_size, key):
    """A device computes three keys at a time; in the last chunk, only two of three keys count.

    The 25 draws of a key are never split, so if `batch_size` is 24, a chunk has a single key.
    """

    def many(key):
        return jax.random.exponential(key, (25, 2))

    rows = drawn(many, key, 8).reshape(200, 2)
    found = monte_carlo_moments(
        many, key, 200, draws_per_key=25, batch_size=batch_size, devices=jax.devices()[:devices]
    )
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.variance, rows.var(0, ddof=1), rtol=1e-12)
    error = np.square(rows - rows.mean(0)).std(0) / 200**0.5
    np.testing.assert_allclose(found.variance_stderr, error, rtol=1e-12)


def test_parameters_reach_the_draw_without_recompilation(key):
    traced = []

    def draw(key, scale):
        traced.append(None)
        return scale * jax.random.uniform(key)

    one, seven = (
        monte_carlo(draw, key, 100, parameters=(jnp.array(scale),)) for scale in (1.0, 7.0)
    )
    np.testing.assert_allclose(seven.mean, 7 * one.mean, rtol=1e-12)
    # The first call traces `draw` twice: for the shape of its result, and for the program. The
    # second call traces `draw` at most once.
    assert len(traced) <= 3


def test_draws_that_a_mask_leaves_out_have_no_weight():
    draws = jnp.array([[1.0, 5.0], [3.0, 6.0], [900.0, jnp.inf]])
    found = central_moments(draws, jnp.array([True, True, False]))
    np.testing.assert_allclose(found.mean, [2, 5.5])
    np.testing.assert_allclose(found.second, [1, 0.25])
    none = central_moments(draws, jnp.zeros(3, bool))
    assert all((np.asarray(part) == 0).all() for part in none)


def test_standard_errors_are_checked_whenever_the_keys_have_grown_by_a_quarter():
    assert list(_round_ends(2000)) == [1000, 1250, 1562, 1952, 2000]
    assert list(_round_ends(1000)) == [1000]


def test_drawing_stops_at_the_target_stderr_whatever_the_batches(key):
    found = [
        monte_carlo(jax.random.uniform, key, 10**9, target_stderr=0.004, batch_size=size)
        for size in (500, 4000)
    ]
    assert found[0].stderr <= 0.004
    # The target needs 1/12/0.004² = 5208 draws. The first round that ends after more draws is the
    # last one.
    assert found[0].samples == found[1].samples == 5956
    np.testing.assert_allclose(found[0].mean, found[1].mean, rtol=1e-12)
    whole = monte_carlo(jax.random.uniform, key, 5956)
    np.testing.assert_allclose(found[0].mean, whole.mean, rtol=1e-12)


@pytest.mark.parametrize("devices", [1, 3])
def test_all_draws_are_made_if_the_target_is_not_reached(devices, key):
    chosen = jax.devices()[:devices]
    found = monte_carlo(jax.random.uniform, key, 1100, target_stderr=1e-9, devices=chosen)
    whole = monte_carlo(jax.random.uniform, key, 1100)
    assert found.samples == 1100
    np.testing.assert_allclose(found[:2], whole[:2], rtol=1e-12)


def test_drawing_stops_when_every_number_is_precise(key):
    def draw(key):
        return jax.random.uniform(key, (2,)) * jnp.array([1.0, 10.0])

    estimate = monte_carlo(draw, key, 10**9, target_stderr=0.05)
    assert (estimate.stderr <= 0.05).all()
    assert estimate.samples > 100 / 12 / 0.05**2 * 0.9


def test_drawing_stops_by_the_error_of_draws_not_of_keys(key):
    """Ten draws per key need as many draws to reach the error as one draw per key."""

    def draw(key):
        return jax.random.uniform(key, (10,))

    target = (1 / 12) ** 0.5 / 300  # the target needs 90,000 draws
    estimate = monte_carlo(draw, key, 10**6, draws_per_key=10, target_stderr=target)
    assert estimate.stderr <= target
    assert 85_000 < estimate.samples < 95_000 * 1.25
    whole = monte_carlo(draw, key, estimate.samples, draws_per_key=10)
    np.testing.assert_allclose(estimate[:2], whole[:2], rtol=1e-12)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("shape", [(8,), (2, 4), (3,)])
def test_draws_are_the_same_inside_any_mesh(key, kind, shape):
    axes = (getattr(jax.sharding.AxisType, kind),) * len(shape)
    devices = jax.devices()[: np.prod(shape)]
    mesh = jax.make_mesh(shape, ("a", "b")[: len(shape)], axis_types=axes, devices=devices)
    functions = {
        f: jax.tree.map(np.asarray, f(skewed_pair, key, 100))
        for f in (monte_carlo, monte_carlo_moments)
    }
    with jax.set_mesh(mesh):
        for f, expected in functions.items():
            assert_same(f(skewed_pair, key, 100), expected)
        inside = jax.jit(lambda: monte_carlo(skewed_pair, key, 100).mean)()
        np.testing.assert_allclose(inside, functions[monte_carlo].mean, rtol=1e-12)
        traced = jax.jit(lambda key: monte_carlo(skewed_pair, key, 100).mean)(key)
        np.testing.assert_allclose(traced, functions[monte_carlo].mean, rtol=1e-12)
        with pytest.raises(ValueError, match=r"devices must be one device or the \d devices"):
            monte_carlo(skewed_pair, key, 100, devices=jax.devices()[:2])
        alone = monte_carlo(skewed_pair, key, 100, devices=jax.devices()[:1])
    assert_same(alone, functions[monte_carlo])


@pytest.mark.parametrize("varying", ["keys", "numbers"])
def test_each_device_of_a_shard_map_draws_with_its_own_key_or_numbers(key, varying):
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("a",), axis_types=auto, devices=jax.devices()[:2])
    keys, numbers = jax.random.split(key), jnp.array([3.0, 7.0])

    def estimate(own):
        chosen = {"keys": key, "numbers": 5.0} | {varying: own}
        draw = lambda key, x: x * skewed_pair(key)  # noqa: E731
        return monte_carlo(draw, chosen["keys"], 100, parameters=(chosen["numbers"],)).mean

    own = {"keys": keys, "numbers": numbers}[varying]
    each = jax.shard_map(
        lambda x: estimate(x[0])[None], mesh=mesh, in_specs=P("a"), out_specs=P("a")
    )
    np.testing.assert_allclose(jax.jit(each)(own), [estimate(x) for x in own], rtol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draw": 3}, "draw must be a function, such as jax.random.normal; got 3"),
        ({"draw": lambda key: "three"}, "draw must return an array; got str"),
        ({"key": 0}, "key must be one random key, such as jax.random.key.0.; got int"),
        ({"key": jnp.zeros(2)}, r"key must be one random key, .* got float64 of shape \(2,\)"),
        (
            {"key": jax.random.split(jax.random.key(0))},
            r"key must be one random key, .* of shape \(2,\)",
        ),
        ({"samples": 1e5}, "samples must be an int; got 100000.0"),
        ({"samples": "10"}, "samples must be an int; got '10'"),
        ({"batch_size": 2.5}, "batch_size must be an int; got 2.5"),
        ({"parameters": "x"}, "parameters must be a list or a tuple, such as .x,.; got 'x'"),
        ({"devices": "cpu"}, "devices must be a list or a tuple, such as .*; got 'cpu'"),
    ],
)
@pytest.mark.parametrize("function", [monte_carlo, monte_carlo_moments])
def test_wrong_arguments_get_one_sentence(function, change, message):
    options: dict[str, Any] = {"draw": skewed_pair, "key": jax.random.key(0), "samples": 10}
    with pytest.raises(TypeError, match=f"^{message}"):
        function(**(options | change))


def test_impossible_arguments(key):
    for wrong in (3, 0, -2):
        with pytest.raises(ValueError, match=f"draws_per_key must divide samples, 10; got {wrong}"):
            monte_carlo(jax.random.uniform, key, 10, draws_per_key=wrong)
    with pytest.raises(ValueError, match=r"draw must return 5 draws .* got shape \(2, 3\)"):
        monte_carlo(uniform_pair, key, 10, draws_per_key=5)
    with pytest.raises(ValueError, match="target_stderr must be positive; got -1"):
        monte_carlo(jax.random.uniform, key, 10, target_stderr=-1.0)
    with pytest.raises(ValueError, match="devices must name at least one device"):
        monte_carlo(jax.random.uniform, key, 10, devices=[])
    with pytest.raises(ValueError, match="keys must be below 2,147,483,648; got 2,147,483,648"):
        monte_carlo(jax.random.uniform, key, 2**31)
    with pytest.raises(ValueError, match="a key and parameters that are not traced"):
        jax.jit(lambda key: monte_carlo(jax.random.uniform, key, 10, target_stderr=1.0))(key)


@pytest.mark.parametrize("scale", [1e10, 1e15, 1e18])
@pytest.mark.parametrize("devices", [1, 3])
def test_powers_that_overflow_are_not_computed(scale, devices, key):
    """The squares of draws are at most 10³⁷ and fit float32; their higher powers do not."""

    def draw(key):
        return jnp.float32(scale) * jax.random.normal(key, (2,), "float32")

    with jax.debug_nans(True):
        found = monte_carlo(draw, key, 300, batch_size=50, devices=jax.devices()[:devices])
    draws = jax.vmap(draw)(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(300)))
    draws = np.asarray(draws, "float64")
    np.testing.assert_allclose(found.mean, draws.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.stderr, draws.std(0, ddof=1) / 300**0.5, rtol=1e-5)
