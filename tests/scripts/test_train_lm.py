"""Training, interrupting, exporting, comparing and pruning a tiny language model."""

import itertools
import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import compare_lm
import prune_lm
import train_lm
from experiments.cli import InputError, StoppedError
from experiments.language import (
    comparison,
    export,
    python_text,
    removal,
    tokens as tokens_of,
    training,
    training_run,
)
from experiments.language.architecture import parse
from tests.support import language_models, smaller_language_models

TINY = training.CONFIG | {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 4,
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch, users_jax):
    """Use a tiny model, and a text in which two letters alternate."""
    text = np.frombuffer(b"ab" * 2000, np.uint8)
    monkeypatch.setattr(python_text, "load", lambda: (text, text))
    for module in (training_run, export):
        monkeypatch.setattr(module, "CONFIG", TINY)
    monkeypatch.setattr(training_run, "MODEL", parse(TINY))
    monkeypatch.setattr(training_run, "HELD_OUT", 8)


def options(out, **changes):
    return train_lm.Options(batch_size=4, length=12, learning_rate=0.01, out=out, **changes)


def test_an_interrupted_training_ends_with_the_weights_of_a_whole_one(tmp_path, monkeypatch):
    train_lm.main(options(tmp_path / "whole", steps=6, every=2))
    log = training_run.log

    def interrupt(notes, *others):
        if notes["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        log(notes, *others)

    monkeypatch.setattr(training_run, "log", interrupt)
    with pytest.raises(StoppedError):
        train_lm.main(options(tmp_path / "again", steps=6, every=2))
    assert not (tmp_path / "again" / "model").exists()
    monkeypatch.setattr(training_run, "log", log)
    for _ in range(2):  # the second call finds a finished run
        train_lm.main(options(tmp_path / "again", steps=6, every=2))
    whole, again = (language_models.read(tmp_path / n / "model")[1] for n in ("whole", "again"))
    for name, array in whole.items():
        np.testing.assert_array_equal(again[name], array)


def test_checkpoints_of_other_settings_are_refused(tmp_path):
    train_lm.main(options(tmp_path, steps=2, every=1))
    changes = {"seed": 1, "steps": 3, "batch_size": 5, "length": 11, "learning_rate": 0.02}
    for name, value in changes.items():
        other = replace(options(tmp_path, steps=2, every=1), **{name: value})
        with pytest.raises(InputError, match=f" has {name} .*, not {value}: give another --out$"):
            train_lm.main(other)
    train_lm.main(options(tmp_path, steps=2, every=2))


def test_seconds_are_of_all_starts_together(tmp_path, monkeypatch):
    """Each step takes 10 seconds. The run is interrupted after two steps and resumed later."""
    clock = itertools.chain([0, 10, 20], [5000, 5010, 5020])
    monkeypatch.setattr(training_run, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    log = training_run.log

    def interrupt(notes, *others):
        if notes["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        log(notes, *others)

    settings = options(tmp_path, steps=4, every=1)
    monkeypatch.setattr(training_run, "log", interrupt)
    with pytest.raises(StoppedError):
        train_lm.main(settings)
    monkeypatch.setattr(training_run, "log", log)
    train_lm.main(settings)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["seconds"] == 40


def test_a_trained_model_is_compared_and_pruned(tmp_path):
    train_lm.main(options(tmp_path / "run", steps=60))
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert 1 <= results["perplexity"] < 4  # 1 would be perfect, because two letters alternate
    assert results["parameters"] == sum(
        a.size for a in language_models.read(tmp_path / "run" / "model")[1].values()
    )
    given = compare_lm.Options(
        tmp_path / "run" / "model",
        keep=(0.7,),
        seeds=2,
        sequences=8,
        length=12,
        held_out=4,
        epoch=0.05,
        out=tmp_path / "compared",
    )
    compare_lm.main(given)
    found = json.loads((tmp_path / "compared" / "results.json").read_text(encoding="utf-8"))
    rows = {(row["score"], row["repair"]): row for row in found["rows"]}
    assert len(rows) == 14
    assert all(row["parameters"] <= 0.7 * found["parameters"] for row in rows.values())
    for row in rows.values():
        assert row["mean"] == pytest.approx(np.mean(row["perplexity"]))
        error = abs(row["perplexity"][0] - row["perplexity"][1]) / 2
        assert row["stderr"] == pytest.approx(error, abs=1e-8)  # The file has nine digits.
    assert rows["magnitude", "none"]["stderr"] == 0  # Magnitudes are not random.
    starts = ("", "least squares, ")
    for text in ("once on the text", "5% of an epoch"):
        found = [rows["reconstruction", start + text]["perplexity"] for start in starts]
        # a repair before fine-tuning changes the perplexity of every seed
        assert all(a != b for a, b in zip(*found, strict=True))
    with pytest.raises(InputError, match="the model must be a folder"):
        compare_lm.main(compare_lm.Options(tmp_path / "missing", out=tmp_path / "other"))


def test_the_exported_model_gives_the_logits_that_were_trained(tmp_path):
    train_lm.main(options(tmp_path / "run", steps=2))
    config, weights = language_models.read(tmp_path / "run" / "model")
    tokens = np.array([97, 98, 97])
    found = smaller_language_models.ours(tmp_path / "run" / "model", tokens)
    expected = language_models.logits(config, weights, list(tokens))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    letters = json.loads((tmp_path / "run" / "model" / "tokenizer.json").read_text())
    vocabulary = letters["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    # GPT-2 writes each byte as a character. A printable character of Latin-1, other than the space,
    # stands for itself. The remaining bytes have the characters after Latin-1, in order.
    by_byte = {byte: letter for letter, byte in vocabulary.items()}
    own = {byte for byte in range(256) if chr(byte).isprintable()} - {ord(" ")}
    assert {byte for byte, letter in by_byte.items() if ord(letter) == byte} == own
    others = [ord(by_byte[byte]) for byte in range(256) if byte not in own]
    assert others == list(range(256, 256 + len(others)))
    assert prune_lm.Options().model.name == "model"
    (tmp_path / "text.txt").write_text("\u00e9 a", encoding="utf-8")
    read = tokens_of.read(tmp_path / "run" / "model", tmp_path / "text.txt", 256)
    # The text was read without the package `tokenizers`.
    assert bytes(read.tolist()) == "\u00e9 a".encode()


def test_a_whole_epoch_has_every_piece_of_the_text_once(monkeypatch):
    text = np.arange(103, dtype=np.uint8)
    monkeypatch.setattr(python_text, "load", lambda: (text, text))
    settings = comparison.Settings(
        keep=(0.5,), seeds=1, sequences=2, length=4, held_out=2, epoch=1.0
    )
    steps = comparison.batches_of(comparison.part_of_epoch(settings, 0), 0)
    assert [step.shape for step in steps] == [(4, 5)] * 5
    np.testing.assert_array_equal(np.sort(np.concatenate(steps).ravel()), text[:100])
    other, some = (comparison.part_of_epoch(replace(settings, epoch=0.3), s) for s in (0, 1))
    assert (other != some).any()
    assert some.shape == (6, 5)
    assert not np.isin(some[:, 0] % 5, range(1, 5)).any()  # pieces begin at multiples of 5


def test_every_seed_has_its_own_text(monkeypatch):
    rng = np.random.default_rng(0)
    text, held_out = rng.integers(0, 100, 500, np.uint8), rng.integers(100, 200, 90, np.uint8)
    monkeypatch.setattr(python_text, "load", lambda: (text, held_out))
    settings = comparison.Settings((0.5,), seeds=2, sequences=3, length=4, held_out=2, epoch=0.1)
    first, second, again = (comparison.draw_text(settings, seed) for seed in (0, 1, 0))
    np.testing.assert_array_equal(first.calibration, again.calibration)
    np.testing.assert_array_equal(first.held_out, second.held_out)
    assert (first.calibration.shape, first.held_out.shape) == ((3, 5), (2, 5))
    assert first.calibration.max() < 100 <= first.held_out.min()
    assert (first.calibration != second.calibration).any()


def test_a_perplexity_of_a_comparison_is_of_all_held_out_sequences(tmp_path):
    train_lm.main(options(tmp_path / "run", steps=20))
    model = smaller_language_models.read(tmp_path / "run" / "model")
    settings = comparison.Settings((0.7,), seeds=1, sequences=4, length=12, held_out=2, epoch=0.05)
    text, counts = comparison.draw_text(settings, 0), removal.counts(model.architecture)
    counts = counts._replace(intermediate=16)

    def log_perplexity(held_out):
        some = text._replace(held_out=held_out)
        _, _, perplexity = next(comparison.variants(model, counts, some, 0, settings))
        return np.log(perplexity.value)

    known, unknown = 97 + np.arange(13) % 2, np.arange(13)
    a, b = (log_perplexity(sequence[None]) for sequence in (known, unknown))
    assert b > a + 0.01
    assert log_perplexity(np.stack([known, unknown])) == pytest.approx((a + b) / 2, rel=1e-5)


def test_text_is_joined_and_drawn_in_whole_pieces():
    found = python_text.join([b"ab", b"c"])
    assert found.tobytes() == b"ab\0c"
    drawn = python_text.windows(np.arange(9, dtype=np.uint8), 4, 50, np.random.default_rng(0))
    assert drawn.shape == (50, 4)
    assert set(drawn[:, 0]) == set(range(6))
    assert (np.diff(drawn.astype(int), axis=1) == 1).all()
