"""Settings of Table 3 on a small network: their parts, and the tests of their filters."""

import json
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import filter_settings as command
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.measures import analysis, filter_settings, filter_tests, filter_training
from experiments.measures.filter_training import Setting
from experiments.pages import filter_settings as settings_page
from tests.support.recorded import assert_as_recorded, condense
from tests.support.web import Page
from tools.results import FOLDER

pytestmark = pytest.mark.usefixtures("users_jax")


def digits():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 8, 8, 1)).astype(np.float32)
    y = (np.arange(40) % 10).astype(np.int32)
    return Images("made", "", 10, x[:30], y[:30], x[30:], y[30:])


def test_settings_have_names_of_their_own_and_differ_from_the_base_in_one_thing():
    settings = filter_settings.settings()
    assert len(settings) >= 40
    base = Setting()
    for name, setting in settings.items():
        changed = [
            field for field in Setting._fields if getattr(setting, field) != getattr(base, field)
        ]
        assert len([field for field in changed if field not in ("group", "name")]) == (
            name != "base"
        )


def test_the_page_has_all_settings():
    content = json.loads((FOLDER / "settings" / "results.json").read_text(encoding="utf-8"))
    assert sorted(content["settings"]) == sorted(filter_settings.settings())


def test_a_product_with_patches_is_a_convolution(key):
    x = jax.random.normal(key, (2, 8, 6, 3), jnp.float32)
    kernel = jax.random.normal(key, (3, 3, 3, 4), jnp.float32)
    expected = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(filter_training.convolve(x, kernel), expected, atol=1e-4)


def test_a_square_of_an_image_is_cut_out_or_of_another_one(key):
    x = jnp.arange(1.0, 5.0)[:, None, None, None] * jnp.ones((4, 8, 8, 1))
    y = jnp.eye(4)
    cut, same = filter_settings.cutout(key, (x, y))
    np.testing.assert_array_equal((cut == 0).sum((1, 2, 3)), [9] * 4)
    assert (same == y).all()
    mixed, labels = filter_settings.cutmix(key, (x, y))
    np.testing.assert_array_equal((mixed == x[::-1]).sum((1, 2, 3)), [16] * 4)
    np.testing.assert_allclose(labels, 0.75 * y + 0.25 * y[::-1])


def test_a_square_can_be_at_every_place_of_an_image(key):
    """An image of 5 by 7 pixels has 15 places for a square of 3 by 3, all equally likely."""
    inside = np.asarray(filter_settings.square(key, (3000, 5, 7, 2), 3))
    assert inside.shape == (3000, 5, 7, 1)
    counts = np.zeros((3, 5))
    for image in inside[..., 0]:
        rows, columns = np.nonzero(image)
        assert len(rows) == 9
        assert np.ptp(rows) == np.ptp(columns) == 2
        counts[rows.min(), columns.min()] += 1
    # Each count is binomial, with mean 200 and standard deviation 13.7.
    assert abs(counts - 200).max() < 5 * 13.7


def test_a_random_relu_divides_negative_values_by_3_to_8(key):
    h = jnp.linspace(-1, 1, 20_001, dtype=jnp.float32)
    found = np.asarray(filter_settings.random_relu(key, h))
    np.testing.assert_array_equal(found[h > 0], h[h > 0])
    divisors = np.asarray(h)[h < 0] / found[h < 0]
    assert 3 <= divisors.min() < 3.01
    assert 7.99 < divisors.max() <= 8.0001
    assert abs(divisors.mean() - 5.5) < 0.1


@pytest.mark.parametrize(
    # The fan-in is 3 · 3 · 64 = 576, and the fan-out is 3 · 3 · 32 = 288.
    ("name", "variance"),
    [
        ("base", 2 / 576),
        ("Kaiming uniform", 2 / 576),
        ("Kaiming truncated normal", 2 / 576),
        ("Xavier normal", 2 / (576 + 288)),
        ("Xavier uniform", 2 / (576 + 288)),
        ("orthogonal", 1 / 576),
        ("a tenth of Kaiming normal", 0.02 / 576),
    ],
)
def test_filters_start_with_the_published_variance(name, variance, key):
    initializer = filter_settings.settings()[name].initializer
    drawn = np.asarray(initializer(key, (3, 3, 64, 32), jnp.float32))
    assert abs(drawn.var() / variance - 1) < 0.05
    assert abs(drawn.mean()) < 0.03 * variance**0.5
    limit = abs(drawn).max() / drawn.std()
    assert ("uniform" in name) == (limit < 3**0.5 * 1.02)
    assert ("truncated" in name) == (2 < limit < 2.4)


def test_penalties_are_of_the_strength_that_is_named():
    kernels: Any = [jnp.array([1.0, -2.0]), jnp.array([3.0])]
    settings = filter_settings.settings()
    for strength in (1e-4, 1e-3):
        found = settings[f"L1 {strength:g}"].penalty(kernels)
        np.testing.assert_allclose(found, 6 * strength, rtol=1e-6)
    ratio = settings["L2 0.01"].penalty(kernels) / settings["L2 0.001"].penalty(kernels)
    np.testing.assert_allclose(ratio, 10, rtol=1e-6)
    # The penalty is ½ λ‖w‖², whose gradient is λ w.
    gradient = jax.grad(lambda w: settings["L2 0.01"].penalty([w]))(kernels[0])
    np.testing.assert_allclose(gradient, 0.01 * kernels[0], rtol=1e-6)
    assert settings["L2 0"].penalty(kernels) == 0


def test_a_fifth_of_the_activations_is_dropped_and_the_mean_stays(key):
    found = np.asarray(filter_settings.drop(key, jnp.ones(20_000, jnp.float32)))
    assert set(np.unique(found)) == {0, np.float32(1.25)}
    assert abs((found == 0).mean() - 0.2) < 0.02


def test_a_small_setting_learns_and_its_accuracy_is_of_the_test_images():
    setting = Setting(width=8, depth=2, steps=150)
    images = datasets.load("digits", None)
    before, after, accuracy = filter_training.run(setting, images, 1)
    assert [kernel.shape for kernel in before] == [(1, 3, 3, 1, 8), (1, 3, 3, 8, 8)]
    assert all((a != b).any() for a, b in zip(before, after, strict=True))
    assert float(accuracy[0]) > 0.7


def scores_by_hand(params, x, *, normalized, lowered=0):
    """The logits of a network in NumPy; layer i has the activation max(h − i · `lowered`, 0)."""
    x = x.astype(float)
    layers = zip(params["kernels"], params["scales"], params["biases"], strict=True)
    for i, (kernel, scale, bias) in enumerate(layers):
        _, height, width, _ = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        h = np.zeros((*x.shape[:3], kernel.shape[3]))
        for row, column in np.ndindex(3, 3):
            h += padded[:, row : row + height, column : column + width] @ kernel[row, column]
        if normalized:
            h = scale * (h - h.mean((0, 1, 2))) / np.sqrt(h.var((0, 1, 2)) + 1e-5)
        x = np.maximum(h + bias - i * lowered, 0)
        if i == 0:
            x = (x[:, ::2] + x[:, 1::2]) / 2
            x = (x[:, :, ::2] + x[:, :, 1::2]) / 2
    return x.mean((1, 2)) @ params["head"] + params["head_bias"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_a_network_is_tested_as_its_setting_says_without_noise(normalized, depth, monkeypatch):
    """The first network predicts the labels; the second network has another bias of the head."""
    rng = np.random.default_rng(1)
    x = (1 + rng.standard_normal((300, 8, 8, 1))).astype(np.float32)
    params: Any = {
        "kernels": [rng.standard_normal((3, 3, n, 5)) for n in (1, 5)[:depth]],
        "scales": [rng.uniform(0.5, 2, 5) for _ in range(depth)],
        "biases": [rng.standard_normal(5) for _ in range(depth)],
        "head": rng.standard_normal((5, 10)),
    }
    scores = scores_by_hand(params | {"head_bias": 0}, x, normalized=normalized)
    # The mean of each class's scores is removed, so that no class is the largest for all images.
    draws = [rng.standard_normal(10) * scores.std(0) - scores.mean(0) for _ in range(2)]
    predicted = [(scores + draw).argmax(1) for draw in draws]
    setting = Setting(width=5, depth=depth, is_normalized=normalized)
    own = params | {"head_bias": np.zeros(10)}
    lowered = scores_by_hand(own, x, normalized=normalized, lowered=1)
    own = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), own)
    found = filter_training.logits(own, jnp.asarray(x), setting, lambda i, h: jnp.maximum(h - i, 0))
    np.testing.assert_allclose(found, lowered, rtol=1e-3, atol=1e-3 * abs(lowered).max())

    def train(key, *_):
        first = (jax.random.key_data(key) == jax.random.key_data(keys[0])).all()
        trained = own | {"head_bias": jnp.where(first, *jnp.asarray(draws, jnp.float32))}
        return own["kernels"], own["kernels"], trained

    keys = jax.random.split(jax.random.key(0), 2)
    monkeypatch.setattr(filter_training, "train", train)
    setting = setting._replace(
        activation=filter_settings.random_relu, augment=filter_settings.cutout
    )
    images = digits()._replace(x_test=x, y_test=predicted[0])
    _, _, accuracy = filter_training.run(setting, images, 2)
    same = (predicted[0] == predicted[1]).mean()
    assert same < 0.9
    np.testing.assert_allclose(accuracy, [1, same], atol=0.005)


def test_the_averaged_optimizer_has_the_mean_of_the_second_half(key):
    params: Any = jnp.array([3.0])
    optimizer = filter_settings.averaged(4)
    state: Any = optimizer.init(params)
    seen, p = [], params
    for gradient in (1.0, -2.0, 4.0, 8.0):
        updates, state = optimizer.update(jnp.array([gradient]), state, p)
        p = optax.apply_updates(p, updates)
        seen.append(p)
    np.testing.assert_allclose(state.mean, np.mean(seen[2:], 0), rtol=1e-6)


def test_a_network_has_the_mean_of_an_averaging_optimizer(key):
    """The mean of this optimizer remains that of the first parameters."""
    inner = optax.sgd(0.1)

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        return inner.update(gradient, state.inner, params)[0], state

    init: Any = lambda p: filter_training.Averaged(inner.init(p), p, jnp.int32(0))  # noqa: E731
    optimizer = optax.GradientTransformation(init, cast(Any, update))
    setting = Setting(optimizer=lambda steps: optimizer, width=2, depth=1, steps=2, batch=4)
    x, y = map(jnp.asarray, digits()[3:5])
    before, after, _ = filter_training.train(key, setting, x, y)
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_only_scaled_filters_have_small_p_values_of_the_rank_correlation():
    gaussian = np.random.default_rng(0).standard_normal((4, 3, 3, 32, 32), np.float32)
    scaled = gaussian * np.linspace(0.5, 1.5, 32, dtype=np.float32)
    found = [
        [row["p_values"]["spearman"] for row in filter_tests.run_tests([kernels, kernels])]
        for kernels in (gaussian, scaled)
    ]
    assert all(0 < p <= 1 for p in found[0] + found[1])
    assert max(found[0]) > 0.3
    assert max(found[1]) < 0.05


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("SGD", 2 * filter_settings.RATE),
        ("Adam", 3e-3),
        ("Adagrad", 0.05 / 1.1**0.5),  # the running sum of squares starts at 0.1
        ("Adamax", 5e-3),
        ("AdamW", 3e-3),
        ("RMSprop", 1e-3 / 0.1**0.5),
        ("Lion", 5e-4),
        ("Adadelta", (1e-6 / 0.1) ** 0.5),  # √(eps / mean square of gradients)
    ],
)
def test_the_first_step_of_an_optimizer_has_its_rate(name, step):
    optimizer = filter_settings.settings()[name].optimizer(10)
    zero = jnp.zeros(1, jnp.float32)
    updates, _ = optimizer.update(zero + 1.0, optimizer.init(zero), zero)
    np.testing.assert_allclose(jnp.asarray(updates), -step, rtol=1e-4)


def test_adamw_decays_a_weight_by_a_tenth_of_its_rate():
    optimizer = filter_settings.settings()["AdamW"].optimizer(10)
    w = jnp.full(1, 2.0, jnp.float32)
    updates, _ = optimizer.update(jnp.ones_like(w), optimizer.init(w), w)
    np.testing.assert_allclose(jnp.asarray(updates), -3e-3 * (1 + 0.1 * 2), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "steps", "ends"),
    [
        ("base", 8, (4, 6)),
        ("82-164 of 200", 100, (41, 82)),
        ("60-120 of 160", 16, (6, 12)),
        ("constant", 4, ()),
    ],
)
def test_rates_fall_after_the_steps_of_their_name(name, steps, ends):
    """All gradients are 1, so with momentum 0.9 the velocity is 10 (1 − 0.9ᵗ) at step t."""
    optimizer = filter_settings.settings()[name].optimizer(steps)
    w = jnp.zeros((), jnp.float32)

    def step(state, _):
        update, state = optimizer.update(jnp.ones_like(w), state, w)
        return state, update

    _, updates = jax.lax.scan(step, optimizer.init(w), None, steps)
    rates = -np.asarray(updates) / (10 * (1 - 0.9 ** np.arange(1, steps + 1)))
    expected = [0.05 * 0.1 ** sum(i >= end for end in ends) for i in range(steps)]
    np.testing.assert_allclose(rates, expected, rtol=1e-4)


def test_constant_rates_are_those_of_their_names():
    settings, w = filter_settings.settings(), jnp.zeros(1, jnp.float32)
    for name, rate in (("constant 0.01", 0.01), ("constant 0.2", 0.2)):
        optimizer = settings[name].optimizer(4)
        updates, _ = optimizer.update(jnp.ones_like(w), optimizer.init(w), w)
        np.testing.assert_allclose(jnp.asarray(updates), -rate, rtol=1e-5)


def test_a_square_may_lie_at_every_place_of_an_image(key):
    inside = np.asarray(filter_settings.square(key, (600, 7, 9, 1), 3))[..., 0]
    corners = {tuple(np.argwhere(image)[0]) for image in inside}
    assert corners == set(np.ndindex(5, 7))
    assert (inside.sum((1, 2)) == 9).all()


def test_a_cosine_falls_from_the_rate_to_zero():
    rates = [filter_settings._cosine(200)(step) for step in (0, 100, 200)]
    np.testing.assert_allclose(jnp.array(rates) / filter_settings.RATE, [1, 0.5, 0], atol=1e-6)


def test_gaussian_filters_fail_nothing_and_others_what_they_are_made_to(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    shape = (2, 3, 3, 32, 32)
    gaussian = rng.standard_normal(shape)
    uniform = rng.uniform(-1, 1, shape)
    scaled = gaussian * np.linspace(0.5, 1.5, 32)  # each filter has its own standard deviation
    made = {"g": gaussian, "u": uniform, "s": scaled}
    runs = []

    def run(setting, images, seeds):
        runs.append(setting.name)
        kernels = [made["g"], made[setting.name].astype(np.float32)]
        return kernels, kernels, np.array([0.5, 0.7])

    monkeypatch.setattr(filter_training, "run", run)
    settings = {name: Setting(name=name) for name in made}
    options: dict[str, Any] = {"path": tmp_path / "settings.json", "log": lambda name: None}
    found = filter_tests.measure(settings, digits(), 2, **options)
    fails = {name: {t for t, n in found[name]["after"]["fails"].items() if n == 2} for name in made}
    assert fails["g"] == set()
    assert fails["u"] >= {"normal"}
    assert fails["s"] >= {"homogeneity", "spherical"}
    assert found["u"]["after"]["ks"]["mean"] == pytest.approx(0.0572, abs=0.005)
    assert found["g"]["after"]["shape"]["mean"] == pytest.approx(2, abs=0.15)
    assert found["g"]["after"]["std_spread"]["mean"] == pytest.approx(1, abs=0.3)
    assert found["s"]["after"]["std_spread"]["mean"] > 5
    assert found["u"]["accuracy"]["mean"] == pytest.approx(0.6)
    assert filter_tests.measure(settings, digits(), 2, **options) == found
    assert runs == ["g", "u", "s"]  # the second call reads the file
    filter_tests.measure({"g": settings["g"]}, digits(), 3, **options)
    assert runs == ["g", "u", "s", "g"]  # another number of networks needs a new run


def test_tests_are_corrected_for_the_layers_of_all_settings():
    sizes = dict.fromkeys((*filter_tests.SIZES, "mean_equivalence_p_value"), 0.0)

    def setting(p):
        rows = [sizes | {"seed": 0, "p_values": dict.fromkeys(analysis.TESTS, p)}]
        own = {"group": "g", "seconds": 1.0, "accuracy": [0.5]}
        return own | {"before": rows, "after": [dict(row) for row in rows]}

    both = {"a": setting(0.03), "b": setting(0.5)}
    # With two settings, the corrected p-value is 2 · 0.03, which is above 0.05.
    for part, count in ((both, 0), ({"a": both["a"]}, 1)):
        found = filter_tests.summaries(part)["a"]
        for when in ("before", "after"):
            assert found[when]["fails"] == dict.fromkeys(analysis.TESTS, count)


def test_every_layer_of_a_step_has_a_key_of_its_own(key):
    keys: list[Any] = []
    setting = Setting(activation=lambda key, h: keys.append(key) or h, depth=4, width=2, steps=1)
    images = digits()
    jax.eval_shape(lambda k, x, y: filter_training.train(k, setting, x, y), key, *images[3:5])
    assert len(keys) == len(set(map(id, keys))) >= 4


def test_measures_of_a_layer_are_of_its_own_shape_and_seed(monkeypatch):
    """The filters of layers 2 and 3 have 9 · 4 and 9 · 7 dims. Made-up measures differ by seed."""
    names = ("ks", "shape", "std_spread", "mean", "largest_eigenvalue", "high_edge", "l1_l2")
    names += ("mean_equivalence_p_value", *(f"p_{test}" for test in analysis.TESTS))
    values = {name: np.array([-1.0, 1.0]) * (i + 2) for i, name in enumerate(names)}

    def measured(filters, drawn):
        assert filters.shape == (2, *drawn)
        return values

    monkeypatch.setattr(filter_tests, "_measure", measured)
    monkeypatch.setattr(filter_tests, "gaussian", lambda n, dims: ((n, dims), n / dims))
    kernels = [np.zeros((2, 3, 3, *channels), np.float32) for channels in ((1, 4), (4, 7), (7, 5))]
    rows = list(filter_tests.run_tests(kernels))
    shapes = [(2, 7, 36), (3, 5, 63)]
    for row, (layer, n, dims, seed) in zip(
        rows, [(*shape, seed) for shape in shapes for seed in range(2)], strict=True
    ):
        own = {name: value[seed] for name, value in values.items()}
        assert row["p_values"] == {test: own[f"p_{test}"] for test in analysis.TESTS}
        expected = {"layer": layer, "seed": seed, "ks": own["ks"], "shape": own["shape"]}
        expected |= {"mean": abs(own["mean"]), "spearman": own["l1_l2"] - n / dims}
        expected |= {"largest": own["largest_eigenvalue"] / own["high_edge"]}
        expected |= {"std_spread": own["std_spread"] * (2 * dims) ** 0.5}
        assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_the_command_writes_a_page_of_small_networks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command.cli, "compiled_in", lambda path: None, raising=False)
    changes: dict[str, dict[str, Any]] = {
        "base": {},
        "ASGD": {"optimizer": filter_settings.averaged},
        "mixed": {
            "augment": filter_settings.cutmix,
            "activation": filter_settings.random_relu,
            "group": "penalties",
            "penalty": filter_training.l2(1.0),
            "depth": 2,
        },
    }
    settings = {
        name: Setting(name=name, width=6, steps=5, batch=4)._replace(**change)
        for name, change in changes.items()
    }
    monkeypatch.setattr(filter_settings, "settings", lambda: settings)
    start = time.perf_counter()
    command.main(seeds=2, out=tmp_path)
    elapsed = time.perf_counter() - start
    results = json.loads((tmp_path / "results.json").read_text())
    assert_as_recorded("runs/filter_settings", condense(results), rtol=5e-3, atol=1e-4)
    assert results["base"] == {"depth": 3, "width": 32, "steps": 300, "batch": 32}
    seconds = [part["seconds"] for part in results["settings"].values()]
    assert results["seconds"] == pytest.approx(
        sum(seconds), 1e-8
    )  # the file's numbers have nine digits
    assert elapsed > results["seconds"] > min(seconds) > 0
    assert "of 3 settings" in capsys.readouterr().out
    text = (tmp_path / "index.html").read_text()
    assert settings_page.render(results) == text
    assert Page(text)
