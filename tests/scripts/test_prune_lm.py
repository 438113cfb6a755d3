"""The command that prunes a language model's folder: its output and its errors."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prune_lm
from experiments.cli import InputError
from experiments.language import architecture, pruning_run, removal, tokens, training
from experiments.language.choice import Text
from prune_lm import Amounts, Options
from tests.support import language_models, smaller_language_models
from tests.support.recorded import assert_as_recorded, condense


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 8}
    config = language_models.random_config("qwen3", rng) | sizes | {"num_key_value_heads": 4}
    weights = language_models.random_weights(config, rng)
    folder = tmp_path_factory.mktemp("models") / "model"
    language_models.write(folder, config, weights, shards=2)
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, language_models.WORDS, 2000))
    return path


CELL = re.compile(r"(?s)<t[dh](?: [^>]*)?>(.*?)</t[dh]>")


def options(folder, text_file, out, **changes: Any):
    amounts = Amounts(keep=0.7, round_to=4)
    sizes: dict[str, Any] = {"sequences": 16, "length": 16, "held_out": 4, "seed": 3}
    small = Options(folder, amounts, text_file, **sizes, out=out)
    return replace(small, **changes)


def assert_recorded(name, out):
    """Compare a smaller model's results, tables and weights with those recorded under `name`."""
    config, weights = language_models.read(out)
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    arrays = {name: condense(weights[name].ravel())["moments"] for name in sorted(weights)}
    page = (out / "index.html").read_text(encoding="utf-8")
    cells = [CELL.findall(section) for section in page.split("<section id=")[1:4]]
    found = {"results": condense(results, "peak_gib"), "config": config, "weights": arrays}
    found["cells"] = list(map(" | ".join, cells))
    assert_as_recorded(f"runs/prune_lm_{name}", found, rtol=5e-3, atol=1e-4)


def names(out):
    return {path.name for path in out.iterdir()} if out.is_dir() else set()


def test_a_smaller_model_its_page_and_its_numbers_are_written(folder, text, tmp_path, users_jax):
    out = tmp_path / "out"
    prune_lm.main(options(folder, text, out))
    assert names(out) == {
        ".in-use",
        "config.json",
        "generation_config.json",
        "index.html",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
        "results.json",
    }
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert_recorded("qwen3", out)
    config, weights = language_models.read(out)
    whole = sum(a.size for a in language_models.read(folder)[1].values())
    small = sum(a.size for a in weights.values())
    assert results["parameters"] == {"whole": whole, "pruned": small}
    assert 0.6 * whole < small <= 0.7 * whole
    assert config["intermediate_size"] == results["counts"]["pruned"]["intermediate"]
    model = smaller_language_models.read(out)
    numbers = np.load(text).astype(np.int32)
    _, held_out = tokens.divide(numbers, 16, 16, 4, 0)
    logits = [language_models.logits(config, weights, list(row[:-1])) for row in held_out]
    losses = [
        np.log(np.exp(row).sum()) - row[token]
        for rows, sequence in zip(logits, held_out, strict=True)
        for row, token in zip(rows, sequence[1:], strict=True)
    ]
    assert model.architecture.layers == config["num_hidden_layers"]
    assert abs(results["perplexity"]["repaired"]["value"] / np.exp(np.mean(losses)) - 1) < 1e-5
    page = (out / "index.html").read_text(encoding="utf-8")
    for found in results["perplexity"].values():
        assert f"{found['value']:.3f}" in page
    assert f"{small:,}" in page
    assert "the remaining units by least squares" in page
    with pytest.raises(InputError, match="must be a folder without a model"):
        prune_lm.main(options(folder, text, out))


@pytest.mark.parametrize("family", ["mixtral", "gpt2"])
def test_experts_and_gpt2_are_pruned_repaired_and_shown(family, text, tmp_path, users_jax):
    rng = np.random.default_rng(0)
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "n_inner": 24}
    config = language_models.random_config(family, rng) | sizes
    weights = language_models.random_weights(config, rng)
    model, out = language_models.write(tmp_path / "model", config, weights), tmp_path / "out"
    amounts = Amounts(experts=3) if family == "mixtral" else Amounts(intermediate=16)
    prune_lm.main(options(model, text, out, amounts=amounts))
    assert_recorded(family, out)
    config, weights = language_models.read(out)
    page = (out / "index.html").read_text(encoding="utf-8")
    assert ("experts that remain" in page) == (family == "mixtral")
    if family == "mixtral":
        assert (config["num_local_experts"], config["num_experts_per_tok"]) == (3, 2)
        assert weights["model.layers.1.block_sparse_moe.gate.weight"].shape[0] == 3
        assert not [name for name in weights if ".experts.3." in name]
    else:
        assert config["n_inner"] == 16
        assert weights["transformer.h.1.mlp.c_proj.weight"].shape[0] == 16
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))["perplexity"]
    assert set(found) == {"whole", "cut", "repaired"}
    small = smaller_language_models.read(out)
    first = np.load(text)[:12]
    expected = language_models.logits(config, weights, list(first))
    ours = smaller_language_models.ours(out, first)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    assert small.architecture.experts_per_token <= small.architecture.experts


def test_without_a_repair_kernels_are_only_cut(folder, text, tmp_path, users_jax):
    prune_lm.main(options(folder, text, tmp_path / "out", score="wanda", repair="none"))
    assert_recorded("cut", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert set(found["perplexity"]) == {"whole", "cut"}
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "smallest scores (wanda), and did not change the remaining weights. Nothing" in page


def test_every_score_is_repaired_if_asked(folder, text, tmp_path, users_jax):
    given = options(folder, text, tmp_path / "out", score="wanda", repair="least_squares")
    prune_lm.main(given)
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert set(found["perplexity"]) == {"whole", "cut", "repaired"}


def test_a_share_of_the_parameters_is_met_from_below(folder):
    total = sum(a.size for a in language_models.read(folder)[1].values())
    for below in (0.4, 0.6):
        keep = (total - 100 - below) / total
        assert pruning_run.budget_of(folder, keep, None, None) == total - 101
    assert pruning_run.budget_of(folder, None, "2k", None) == 2000
    assert pruning_run.budget_of(folder, None, None, 1.0) is None


def test_magnitudes_and_random_choice_need_no_text(folder, tmp_path, users_jax):
    whole, _ = language_models.read(folder)
    for score, layers in (("magnitude", None), ("random", 1)):
        amounts = Amounts(layers=layers, heads=4, hidden=12)
        out = tmp_path / score
        given = options(folder, None, out, amounts=amounts, score=score, repair="none")
        prune_lm.main(given)
        assert_recorded(score, out)
        config, _ = language_models.read(out)
        assert (config["num_attention_heads"], config["hidden_size"]) == (4, 12)
        assert config["num_hidden_layers"] == (layers or whole["num_hidden_layers"])
        assert "No text was given" in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 16, "intermediate_size": 24, "head_dim": 8},  # 4 heads have 32 queries
        {"hidden_size": 16, "intermediate_size": 32, "head_dim": 4},
        {"hidden_size": 32, "intermediate_size": 24, "head_dim": 4},
    ],
)
def test_a_text_needs_as_many_tokens_as_the_largest_of_all_kernels_has_inputs(sizes):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = architecture.parse(training.CONFIG | heads | sizes)
    settings = pruning_run.Settings()

    def check(tokens: int) -> None:
        rows = np.zeros((1, tokens + 1), np.int32)
        pruning_run.check_text(model, removal.counts(model), Text(rows, rows), settings)

    check(32)
    with pytest.raises(InputError, match="kernel has inputs, 32; --sequences and --length give 31"):
        check(31)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": Path("missing")}, "the model must be a folder; there is none at missing"),
        ({"text": None}, "--text must be given for --score reconstruction"),
        ({"text": None, "score": "magnitude"}, "--text must be given for --score magnitude"),
        *(
            ({"text": None, "score": score, "repair": "none"}, f"must be given for --score {score}")
            for score in ("reconstruction", "wanda", "activation")
        ),
        (
            {"text": None, "score": "magnitude", "repair": "none", "amounts": Amounts(layers=1)},
            "--text must be given for --layers",
        ),
        ({"text": Path("missing.txt")}, "--text must be a file; there is none at missing.txt"),
        ({"sequences": 200}, "--text must hold [0-9]+ tokens for 200 sequences of 16"),
        ({"sequences": 2, "length": 8}, "as many tokens as the largest kernel .*give 16"),
        ({"amounts": Amounts(keep=0.01)}, "the budget must be at least the"),
        ({"amounts": Amounts(keep=0.5, parameters="1M")}, "only one of .* got --keep 0.5, --para"),
        ({"amounts": Amounts(heads=3)}, "--heads must be a multiple of 2"),
        (
            {"amounts": Amounts()},
            "the command must remove a part .* keep all of it; give a smaller --keep",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    changes, message, folder, text, tmp_path, users_jax
):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=message):
        prune_lm.main(options(folder, text, out, **changes))
    assert not names(out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(2000), r"must hold one row of whole numbers; got float64 of shape \(2000,\)"),
        (np.zeros((2, 1000), int), "must hold one row of whole numbers"),
        (np.arange(2000) % 41, r"tokens must lie in 0\.\.39; .* has 40"),
        (np.arange(2000) - 1, r"tokens must lie in 0\.\.39; .* has -1"),
        (np.zeros(0, int), r"--text must hold \d+ tokens for .*; it holds 0"),
    ],
)
def test_what_are_no_tokens_is_refused(content, message, folder, tmp_path, users_jax):
    np.save(tmp_path / "text.npy", content)
    with pytest.raises(InputError, match=message):
        prune_lm.main(options(folder, tmp_path / "text.npy", tmp_path / "out"))


@pytest.mark.parametrize("results", [None, {"command": "python scripts/prune_lm.py models/large"}])
def test_a_model_is_not_replaced_by_its_smaller_model(results, folder, text, tmp_path, users_jax):
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    if results:
        (model / "results.json").write_text(json.dumps(results), encoding="utf-8")
    before = {path: path.read_bytes() for path in model.glob("*")}
    with pytest.raises(InputError, match=r"--out must be (another|a new) folder"):
        prune_lm.main(options(model, text, tmp_path / "missing" / ".." / "model"))
    assert {path: path.read_bytes() for path in before} == before


def test_text_without_a_tokenizer_is_refused(folder, tmp_path, users_jax):
    (tmp_path / "text.txt").write_text("text", encoding="utf-8")
    with pytest.raises(InputError, match=r"must have a tokenizer\.json to read text\.txt"):
        prune_lm.main(options(folder, tmp_path / "text.txt", tmp_path / "out"))


def test_a_disk_without_room_is_named_and_nothing_is_left(folder, tmp_path):
    out, script = tmp_path / "out", 'ulimit -f 20; exec "$0" "$@"'
    amounts = ["--heads", "4", "--score", "magnitude", "--repair", "none"]
    command = [sys.executable, prune_lm.__file__, str(folder), "--out", str(out), *amounts]
    ended = subprocess.run(
        ["bash", "-c", script, *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "must be within the limit of a file's size; File too large" in ended.stderr
    assert names(out) == {".in-use"}
