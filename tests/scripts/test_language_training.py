"""Language models: optimizer, text and measurements, compared with NumPy."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from experiments.language import (
    choice,
    comparison,
    cutting,
    export,
    python_text,
    removal,
    repair,
    streams,
    training,
    training_run,
)
from experiments.language.architecture import parse
from experiments.language.repair import Equations
from tests.support import language_models
from tests.support.smaller_language_models import random_model

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")

TINY: dict[str, Any] = training.CONFIG | {
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}
MODEL = parse(TINY)


def test_adam_has_a_clipped_gradient_a_warm_up_and_decays_kernels_alone():
    """Two of 40 steps are warm-up. Gradients are small at first; later, they are clipped."""
    steps, rate = 40, 0.3
    optimizer = training.make_optimizer(rate, steps)
    w = {"kernel": np.array([[1.0, -2.0]]), "norm": np.array([3.0])}
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), w)
    state = optimizer.init(params)
    rng = np.random.default_rng(0)
    m, v = ({name: 0 * a for name, a in w.items()} for _ in range(2))
    for t in range(steps):
        size = 0.05 if t < 3 else 4.0
        g = {name: size * rng.normal(size=a.shape) for name, a in w.items()}
        updates, state = optimizer.update(
            jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), g), state, params
        )
        params = jax.tree.map(lambda a, b: a + b, params, updates)
        norm = np.sqrt(sum(np.square(a).sum() for a in g.values()))
        share = (t - 2) / (steps - 2)
        low = rate / 20
        now = rate * t / 2 if t < 2 else low + (rate - low) * (1 + np.cos(np.pi * share)) / 2
        for name in w:
            a = g[name] / max(norm, 1)
            m[name], v[name] = 0.9 * m[name] + 0.1 * a, 0.95 * v[name] + 0.05 * a**2
            step = (
                m[name] / (1 - 0.9 ** (t + 1)) / (np.sqrt(v[name] / (1 - 0.95 ** (t + 1))) + 1e-8)
            )
            w[name] = w[name] - now * (step + 0.1 * w[name] * (name == "kernel"))
        for name, a in params.items():
            np.testing.assert_allclose(a, w[name], rtol=1e-3, atol=1e-4, err_msg=f"{name} {t}")


def test_kernels_into_the_stream_start_smaller_and_no_two_alike():
    params = training.init(jax.random.key(0), MODEL, 500)
    kernels = {name: np.asarray(p) for name, p in params.items() if p.ndim > 1}
    for name, p in params.items():
        if name not in kernels:
            np.testing.assert_array_equal(p, 1)
    for name, p in kernels.items():
        into = name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = 0.02 / 4**0.5 if into else 0.02  # four kernels write to the residual stream
        assert p.std() == pytest.approx(deviation, rel=0.15), name
    firsts = [float(p.ravel()[0]) / float(p.std()) for p in kernels.values()]
    assert len(set(np.round(firsts, 4))) == len(firsts)


def test_a_layer_has_the_parameters_of_its_own_number():
    params = {"model.norm.weight": 0, "model.layers.1.a.weight": 1, "model.layers.11.a.weight": 2}
    assert training.layer_of(params, 1) == {"a.weight": 1}
    assert training.layer_of(params, 11) == {"a.weight": 2}


def test_letters_of_bytes_are_those_of_gpt2():
    """GPT-2 writes visible bytes as they are, and the others as the letters from U+0100 on."""
    letters = export.letters()
    assert len({*letters}) == 256
    for byte, letter in {"a": "a", "~": "~", " ": "Ġ", "\n": "Ċ", "\x7f": "ġ", "\xad": "Ń"}.items():
        assert letters[ord(byte)] == letter


@pytest.fixture(scope="module")
def tiny():
    """Random weights for all arrays of a tiny model, and 11 sequences of tokens from 0 to 10."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.normal(size=shape) * 0.4 + (len(shape) == 1)).astype(np.float32)
        for name, shape in training.shapes(MODEL, 11).items()
    }
    return weights, rng.integers(0, 11, (11, 6))


def losses_by_hand(weights, sequences):
    """The mean cross entropy of each sequence, by a loop over tokens in NumPy."""
    found = []
    for row in sequences:
        logits = language_models.logits(TINY, weights, list(row[:-1]))
        rows = [logsumexp(line) - line[t] for line, t in zip(logits, row[1:], strict=True)]
        found.append(np.mean(rows))
    return np.array(found)


def test_perplexity_is_over_all_sequences_of_which_the_last_part_is_smaller(tiny):
    weights, sequences = tiny
    losses = losses_by_hand(weights, sequences)  # 11 sequences, in parts of 8 and 3
    found = training.perplexity(MODEL, weights, sequences)
    assert found == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    loss = training.MEASURE(MODEL, weights, jnp.asarray(sequences[:3], jnp.int32))
    assert float(loss) == pytest.approx(losses[:3].mean(), rel=1e-4)


def test_a_step_has_the_loss_before_it_and_moves_every_array(tiny):
    weights, sequences = tiny
    optimizer = training.make_optimizer(1e-2, 30)
    step = training.make_step(MODEL, optimizer)
    params = {name: jnp.asarray(a) for name, a in weights.items()}
    state = training.State(params, optimizer.init(params))
    for rows in (sequences[:4], sequences[4:8]):
        before = {name: np.array(a) for name, a in state.params.items()}
        state, value = step(state, jnp.asarray(rows))
        assert float(value) == pytest.approx(losses_by_hand(before, rows).mean(), rel=1e-4)
    assert all((np.asarray(state.params[name]) != a).any() for name, a in weights.items())


def test_a_perplexity_has_the_error_of_its_sequences():
    """After the layers, the stream is normalized and multiplied by the kernel of the head."""
    rng = np.random.default_rng(1)
    x, head = rng.normal(3, 2, (3, 5, 16)), rng.normal(size=(11, 16))
    norm, tokens = rng.normal(2, 1, 16), rng.integers(0, 11, (3, 5))
    ends = streams.Ends(head, *(a.astype(np.float32) for a in (norm, head)))
    found = streams.perplexity(MODEL, ends, x.astype(np.float32), tokens)
    h = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + MODEL.eps) * norm
    logits = h @ head.T
    picked = np.take_along_axis(logits, tokens[..., None], 2)[..., 0]
    losses = (logsumexp(logits, axis=2) - picked).mean(1)
    assert found.value == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    # the standard error of exp(loss) is the error of the mean loss times the perplexity
    stderr = np.exp(losses.mean()) * losses.std(ddof=1) / 3**0.5
    assert found.stderr == pytest.approx(stderr, rel=1e-3)
    assert np.isnan(streams.perplexity(MODEL, ends, x[:1].astype(np.float32), tokens[:1]).stderr)


def settings(**changes) -> Any:
    given = {
        "steps": 50,
        "batch_size": 3,
        "length": 5,
        "learning_rate": 1e-3,
        "seed": 0,
        "every": 9,
    }
    return training_run.Settings(**given | changes)


def test_a_step_has_the_same_text_in_every_run_of_its_seed_and_no_other_step_has():
    text = np.arange(250, dtype=np.uint8)
    batches = {
        (seed, step): training_run.batch(text, settings(seed=seed), step)
        for seed in range(3)
        for step in range(4)
    }
    assert len({str(batch) for batch in batches.values()}) == 12
    for (seed, step), batch in batches.items():
        assert batch.shape == (3, 6)
        assert (np.diff(batch, axis=1) == 1).all()
        again = training_run.batch(text, settings(seed=seed, steps=99), step)
        np.testing.assert_array_equal(again, batch)


def test_the_log_has_a_loss_every_twenty_steps_and_the_time_of_every_step(capsys):
    notes: dict[str, Any] = {"step": 19, "seconds": 1.0, "losses": [[0, 9.0]]}
    training_run.log(notes, 7.0, settings(), 2.0)
    assert notes == {"step": 19, "seconds": 2.0, "losses": [[0, 9.0]]}
    notes["step"] = 20
    training_run.log(notes, 7.0, settings(), 3.4)
    assert notes == {"step": 20, "seconds": 3.4, "losses": [[0, 9.0], [20, 7.0]]}
    assert capsys.readouterr().out == "step 20 of 50: loss 7.0000, 3 s\n"


def test_one_document_of_twenty_is_held_out(monkeypatch):
    monkeypatch.setattr(python_text, "documents", lambda: iter(bytes([65 + i]) for i in range(41)))
    train, held_out = (part.tobytes().split(b"\0") for part in python_text.load())
    assert held_out == [bytes([65 + i]) for i in (0, 20, 40)]
    assert train == [bytes([65 + i]) for i in range(41) if i not in (0, 20, 40)]


def test_documents_are_in_the_order_of_their_names(monkeypatch, tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(name, encoding="utf-8")
    monkeypatch.setattr(python_text.sysconfig, "get_paths", lambda: {"stdlib": tmp_path})
    monkeypatch.setattr(python_text.topics, "topics", {"e": "E", "d": "D"})
    monkeypatch.setattr(Path, "rglob", lambda folder, _: (folder / f"{name}.py" for name in "cab"))
    assert list(python_text.documents()) == [b"a", b"b", b"c", b"D", b"E"]


def test_batches_are_of_four_in_an_order_of_the_seed():
    sequences = np.arange(11)[:, None]
    first, second = (comparison.batches_of(sequences, seed) for seed in (0, 1))
    assert [len(batch) for batch in first] == [4, 4]
    assert np.unique(np.concatenate(first)).size == 8
    assert (np.concatenate(first) != np.concatenate(second)).any()
    assert [len(batch) for batch in comparison.batches_of(sequences[:3], 0)] == [3]


def test_values_of_seeds_have_their_error():
    assert comparison.over_seeds([1.0, 2.0, 6.0]) == {
        "perplexity": [1.0, 2.0, 6.0],
        "mean": 3.0,
        "stderr": pytest.approx((7 / 3) ** 0.5),
    }
    assert comparison.over_seeds([4.0])["stderr"] is None


def test_a_comparison_has_a_row_for_each_share_score_and_repair(tmp_path, monkeypatch):
    """Fake perplexities depend on seed and size; that of the whole model is computed only once."""
    model = random_model(tmp_path / "model", **TINY)
    size = removal.parameters(model.architecture, model.tensors, removal.counts(MODEL))
    measured: list[Any] = []

    def variants(model, counts, text, seed, settings):
        parameters = removal.parameters(model.architecture, model.tensors, counts)
        for score, repaired, extra in (("wanda", "none", 0), ("magnitude", "least squares", 0.5)):
            yield score, repaired, streams.Perplexity(10 * text + seed + extra + parameters, 1.0)

    monkeypatch.setattr(comparison, "variants", variants)
    monkeypatch.setattr(comparison, "draw_text", lambda settings, seed: seed)
    monkeypatch.setattr(
        comparison, "whole_perplexity", lambda *of: measured.append(of) or {"value": 3.0}
    )
    said: list[str] = []
    given = comparison.Settings((0.9, 0.7), 3, sequences=3, length=4, held_out=2, epoch=0.5)
    found = comparison.compare(tmp_path / "model", given, said.append)
    assert (found["parameters"], found["whole"], len(measured)) == (size, {"value": 3.0}, 1)
    assert len(said) == 2 * 3 * 2
    assert [(r["keep"], r["score"], r["repair"]) for r in found["rows"]] == [
        (keep, *pair)
        for keep in (0.9, 0.7)
        for pair in (("wanda", "none"), ("magnitude", "least squares"))
    ]
    for row in found["rows"]:
        assert row["parameters"] <= row["keep"] * size
        start = row["parameters"] + 0.5 * (row["score"] == "magnitude")
        assert row["perplexity"] == [start, start + 11, start + 22]
        assert row["mean"] == start + 11
        assert row["stderr"] == pytest.approx(11 / 3**0.5)
    assert found["rows"][0]["parameters"] > found["rows"][2]["parameters"]


def test_every_variant_has_its_own_kernels_and_is_trained_on_its_own_text(monkeypatch):
    """A fake kernel is the flag `repaired`. No two of the three texts share a token."""
    text = choice.Text(np.arange(40).reshape(8, 5), 100 + np.arange(15).reshape(3, 5))
    pieces, trained = 200 + np.arange(20).reshape(4, 5), []

    def arrays(plan, found, log):
        found |= {"cut": streams.Perplexity(2.0, 0.1), "repaired": streams.Perplexity(1.0, 0.1)}
        yield "w", plan.repaired

    def plan(model, selection, text, *, repaired):
        return cutting.Plan(model, model, selection, text, repaired)

    def fine_tune(model, params, measured, batches):
        trained.append((params["w"], measured is text, sorted(np.unique(batches))))
        return streams.Perplexity(3.0, float("nan"))

    monkeypatch.setattr(comparison, "part_of_epoch", lambda *_: pieces)
    monkeypatch.setattr(choice, "choose", lambda *_: SimpleNamespace(selection=None))
    for name, function in (("arrays", arrays), ("plan", plan)):
        monkeypatch.setattr(cutting, name, function)
    monkeypatch.setattr(comparison, "fine_tune", fine_tune)
    given: Any = comparison.Settings((0.5,), 1, sequences=8, length=4, held_out=3, epoch=0.5)
    rows = list(comparison.variants(given, given, text, 0, given))
    for score in comparison.SCORES:
        own = {repair: p.value for of, repair, p in rows if of == score}
        assert (own.pop("none"), own.pop("least squares")) == (2.0, 1.0)
        names = ["once on the text", "50% of an epoch"] if score == comparison.FINE_TUNED else []
        assert list(own) == [before + name for name in names for before in ("", "least squares, ")]
    expected = [[*range(40)]] * 2 + [[*range(200, 220)]] * 2
    assert trained == [(w, True, part) for w, part in zip([False, True] * 2, expected, strict=True)]


def test_fine_tuning_takes_one_step_on_each_batch(tiny, monkeypatch):
    weights, sequences = tiny
    taken: list[Any] = []
    optimizer = SimpleNamespace(init=lambda params: "fresh")

    def step(state, rows):
        taken.append((state.optimizer, rows.tolist()))
        return training.State(state.params, len(taken)), 0.0

    asked: list[Any] = []
    monkeypatch.setattr(
        comparison, "make_training", lambda *given: asked.append(given) or (optimizer, step)
    )
    batches = [sequences[:4], sequences[4:8], sequences[8:]]
    text = choice.Text(sequences[:1], sequences[:5])
    found = comparison.fine_tune(MODEL, weights, text, batches)
    assert asked == [(MODEL, 3)]
    assert taken == list(zip(["fresh", 1, 2], [b.tolist() for b in batches], strict=True))
    by_hand = np.exp(losses_by_hand(weights, sequences[:5]).mean())
    assert found.value == pytest.approx(by_hand, rel=1e-4)


def test_an_influence_is_one_minus_the_mean_cosine_over_tokens():
    before = np.array([[[3.0, 4.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 5.0]]])
    after = np.array([[[6.0, 8.0], [0.0, 2.0]], [[-1.0, 0.0], [5.0, 5.0]]])
    assert choice.influence(before, after) == pytest.approx(1 - (1 + 0 - 1 + 0.5**0.5) / 4)


def test_by_magnitude_every_layer_keeps_its_own_largest_units(tmp_path):
    """The units with the largest sums of squared weights must remain.

    The channels of the stream that remain are the same in all layers.
    """
    model = random_model(tmp_path / "model", **TINY)
    weights = {name: model.read(name) for name in model.tensors}
    counts = removal.counts(MODEL)._replace(groups=1, intermediate=9, hidden=7)
    chosen = choice.choose(model, counts, "magnitude", None, 0, lambda _: None).selection
    hidden = np.square(weights["model.embed_tokens.weight"].astype(float)).sum(0)
    for i in range(2):
        p = {
            name.split(".")[-2]: np.square(a.astype(float))
            for name, a in weights.items()
            if name.startswith(f"model.layers.{i}.") and a.ndim > 1
        }
        inner = p["gate_proj"].sum(1) + p["up_proj"].sum(1) + p["down_proj"].sum(0)
        assert list(chosen.intermediate[i]) == sorted(np.argsort(-inner)[:9])
        queries = (p["q_proj"].sum(1) + p["o_proj"].sum(0)).reshape(2, -1).sum(1)
        keys = (p["k_proj"].sum(1) + p["v_proj"].sum(1)).reshape(2, -1).sum(1)
        assert list(chosen.groups[i]) == [np.argmax(queries + keys)]
        hidden += sum(p[f"{x}_proj"].sum(0) for x in ("q", "k", "v", "gate", "up"))
        hidden += p["o_proj"].sum(1) + p["down_proj"].sum(1)
    assert list(chosen.hidden) == sorted(np.argsort(-hidden)[:7])
    assert list(chosen.layers) == [0, 1]


def test_random_units_depend_on_the_seed_and_differ_between_layers(tmp_path):
    model = random_model(tmp_path / "model", **TINY)
    counts = removal.counts(MODEL)._replace(layers=1, intermediate=12, hidden=8)
    first, second, again = (
        choice.choose(model, counts, "random", None, seed, lambda _: None).selection
        for seed in (0, 1, 0)
    )
    rows = [tuple(part) for s in (first, second) for part in s.intermediate]
    assert len(set(rows)) == 4
    assert [tuple(part) for part in again.intermediate] == rows[:2]
    assert list(first.hidden) == list(again.hidden) != list(second.hidden)
    assert len(first.layers) == 1


def test_the_ridge_is_the_one_with_the_least_error_on_held_out_sequences():
    """NumPy's least squares with extra rows for the ridge gives the expected fit.

    Each of the three ridges has the smallest held-out error in some case.
    """
    rng, chosen = np.random.default_rng(4), set()
    for noise in (0.0, 0.5, 1.0, 3.0):
        for _ in range(6):
            x, kernel, start = (
                rng.normal(size=(8, 6, 5)),
                rng.normal(size=(3, 5)),
                rng.normal(size=(3, 5)),
            )
            y = x @ kernel.T + noise * rng.normal(size=(8, 6, 3))
            last = np.arange(8) % 4 == 3

            def fit(rows, ridge, x=x, y=y, start=start):
                a, b = x[rows].reshape(-1, 5), y[rows].reshape(-1, 3)
                weight = np.sqrt(ridge * np.square(a).sum() / 5)
                a_more, b_more = np.r_[a, weight * np.eye(5)], np.r_[b, weight * start.T]
                return np.linalg.lstsq(a_more, b_more, rcond=None)[0]

            errors = [
                np.square(x[last] @ fit(~last, ridge) - y[last]).sum()
                for ridge in (1e-3, 1e-2, 0.1)
            ]
            best = int(np.argmin(errors))
            chosen.add(best)
            expected = fit(np.full(8, fill_value=True), (1e-3, 1e-2, 0.1)[best])
            found = cutting.solve_kernel(start, x, y)
            np.testing.assert_allclose(found, expected.T, rtol=1e-3, atol=1e-4)
    assert chosen == {0, 1, 2}
    assert repair.RIDGES == (1e-3, 1e-2, 1e-1)


def test_sums_over_tokens_are_added():
    a, b = Equations(np.eye(2), np.ones((2, 3))), Equations(2 * np.ones((2, 2)), np.ones((2, 3)))
    np.testing.assert_array_equal(a.plus(b).xx, [[3, 2], [2, 3]])
    np.testing.assert_array_equal(a.plus(b).xy, 2 * np.ones((2, 3)))
