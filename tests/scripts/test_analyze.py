"""The command that analyzes a network: one tiny run, and the input that the command refuses."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import analyze
from experiments import cli
from experiments.cli import InputError
from experiments.measures import analysis
from experiments.pages import analysis as analysis_page
from experiments.training import trained
from tests.support.recorded import assert_as_recorded, condense


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A file with four convolutions: Gaussian kernel, unequal scales, all zeros, and a NaN."""
    rng = np.random.default_rng(1)
    drawn = rng.normal(size=(3, 3, 8, 16)).astype(np.float32)
    broken = drawn.copy()
    broken[0, 0, 0, 0] = np.nan
    path = tmp_path_factory.mktemp("network") / "small.npz"
    np.savez(
        path,
        **{
            "a.kernel": drawn,
            "b.kernel": 0.1 * drawn * np.linspace(1, 3, 16, dtype=np.float32),
            "c.kernel": 0 * drawn,
            "d.kernel": broken,
            "dense.kernel": drawn.reshape(-1, 16),
            "norm.scale": np.ones(64, np.float32),
        },
    )
    return path


def test_a_run_writes_a_page_and_its_numbers(network, tmp_path, capsys):
    analyze.main(network, out=tmp_path, gaussian_layers=20, ratio=0.3)
    page = (tmp_path / "index.html").read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    printed = capsys.readouterr().out
    assert_as_recorded("runs/analyze", condense(results), rtol=1e-3, atol=1e-5)
    normal, scaled = results["layers"]
    # This layer has too few weights to show that its mean is near 0, so it can fail this test.
    assert set(normal["fails"]) <= {"mean"}
    assert {"homogeneity", "spherical"} <= set(scaled["fails"])
    assert set(results["left_out"]) == {"c", "d"}
    assert "holds nothing but zeros" in page
    assert "not finite" in page
    assert str(tmp_path) not in page + json.dumps(results)
    assert {parameter["layer"] for parameter in results["others"]} == {"dense", "norm.scale"}
    np.testing.assert_allclose(results["others"][1]["ks"], 0.841, atol=1e-3)
    expected = np.argsort(np.abs(np.load(network)["a.kernel"]).sum((0, 1, 2)))[:8]
    assert normal["first"]["l1"] == expected.tolist()
    assert len(re.findall("<svg role", page)) == 6 + 12 + 2 + 2 + 2
    assert "Spearman of l1 and l2 above 0.9 in" in printed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ratio": 0.0}, r"--ratio must lie in \(0, 1\]; got 0"),
        ({"gaussian_layers": 3}, "--gaussian-layers must be at least 20; got 3"),
        ({"layers": ("x",)}, "--layers must be the beginning of a name among the convolutions"),
    ],
)
def test_options_out_of_range_are_refused(network, tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        analyze.main(network, out=tmp_path, **options)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is none"):
        analyze.main(tmp_path / "none.pt", out=tmp_path)


def test_names_from_files_control_neither_terminal_nor_page(tmp_path, capsys):
    drawn = np.random.default_rng(0).normal(size=(8, 4, 3, 3)).astype(np.float32)
    names = ("conv[/red]", "[bold]x", "a\x1b]0;owned\x07", "b\u202egnp", "<script>c")
    path = tmp_path / "w[red].safetensors"
    safetensors.numpy.save_file(dict.fromkeys(names, drawn), path)
    analyze.main(path, out=tmp_path / "out", gaussian_layers=20)
    said, page = capsys.readouterr().out, (tmp_path / "out" / "index.html").read_text()
    for text in (said, page):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    for name in (path.name, "conv[/red]", "[bold]x", "a\\x1b]0;owned\\x07", "b\\u202egnp"):
        assert name in said
        assert name in page
    assert "<script" not in page


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_run_is_analyzed_by_the_network_of_its_seed(seed, tmp_path, monkeypatch):
    """All elements of the kernel of the network of seed k are k + 1."""

    def load_network(run, seed=0):
        assert run == tmp_path
        network = nnx.Conv(2, 4, 3, rngs=nnx.Rngs(0))
        network.kernel[...] = jnp.full((3, 2, 4), seed + 1.0)
        return nnx.List([network])

    monkeypatch.setattr(trained, "load_network", load_network)
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    found = analyze.load(tmp_path, (), seed)
    assert sorted(w.shape for w in found.values()) == [(3, 2, 4), (4,)]
    (kernel,) = (w for w in found.values() if w.ndim == 3)
    np.testing.assert_array_equal(kernel, np.full((3, 2, 4), seed + 1.0))


def test_a_file_of_vectors_is_refused_without_naming_an_option(tmp_path):
    np.savez(tmp_path / "w.npz", scale=np.ones(4, np.float32))
    with pytest.raises(
        InputError, match=r"w\.npz must have convolutions or dense layers; it has neither$"
    ):
        analyze.main(tmp_path / "w.npz", out=tmp_path)


def test_without_convolutions_the_neurons_of_dense_layers_are_ranked(tmp_path, capsys):
    drawn = np.random.default_rng(2).normal(size=(30, 12)).astype(np.float32)
    path = tmp_path / "w.npz"
    np.savez(path, **{"a.kernel": drawn, "a.bias": drawn[:2].ravel(), "b.kernel": 2 * drawn})
    analyze.main(path, out=tmp_path, gaussian_layers=20)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["kind"] == "dense layers"
    assert [layer["name"] for layer in results["layers"]] == ["a", "b"]
    assert [layer["filters"] for layer in results["layers"]] == [12, 12]
    expected = np.argsort(np.abs(drawn).sum(0))[:8]
    assert results["layers"][0]["first"]["l1"] == expected.tolist()
    assert [parameter["layer"] for parameter in results["others"]] == ["a.bias"]
    assert "2 dense layers" in capsys.readouterr().out


@pytest.fixture
def committed():
    path = Path(analyze.__file__).parents[1] / "docs/results/resnet20/results.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("inside", ["checkpoints-1", "checkpoints-1/3/state"])
def test_a_folder_anywhere_inside_a_run_is_refused(inside, tmp_path):
    (tmp_path / inside).mkdir(parents=True)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(InputError, match=r"^path must be the folder of a run"):
        analyze.load(tmp_path / inside, (), 0)


def test_layers_are_chosen_by_the_beginning_of_their_name(network, tmp_path, capsys):
    analyze.main(network, layers=("a", "norm"), ratio=0.375, out=tmp_path, gaussian_layers=20)
    results = json.loads((tmp_path / "results.json").read_text())
    (layer,) = results["layers"]
    assert layer["name"] == "a"
    filters = np.load(network)["a.kernel"].reshape(-1, 16)
    lowest = [set(np.argsort(np.linalg.norm(filters, k, axis=0))[:6]) for k in (1, 2)]
    assert layer["overlap"]["l1-l2"] == pytest.approx(len(lowest[0] & lowest[1]) / 6)
    assert [parameter["layer"] for parameter in results["others"]] == ["norm.scale"]
    assert results["settings"] == {"ratio": 0.375, "gaussian layers": 20, "level": analysis.LEVEL}
    assert results["file"] == "small.npz"
    assert results["command"].startswith("python scripts/analyze.py")
    assert 0 < results["seconds"]["analysis"] <= cli.seconds()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0].strip() == "small.npz: 1 convolutions"
    assert lines[-1] == f"Open {tmp_path / 'index.html'}"
    with pytest.raises(InputError, match=r"--layers must be .* convolutions; .* small\.npz"):
        analyze.main(network, layers=("norm",), out=tmp_path)


def test_the_table_has_a_row_for_each_layer_and_what_was_left_out(committed, capsys):
    results = committed | {"left_out": {"stem": "holds nothing but zeros"}}
    analyze.summarize(results)
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert f"{results['file']}: {len(results['layers'])} convolutions" in text
    columns = analysis_page.layer_columns(results["layers"])
    for i, layer in enumerate(results["layers"]):
        (row,) = (line for line in lines if layer["name"] in line.replace("│", " ").split())
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        assert cells == [columns[name][i] for name in columns if name != "dead"]
    below = lines.index(analysis_page.LEGEND) + 1  # the conclusions follow the legend
    sentences = list(analysis_page.conclusion(results))
    assert lines[below : below + len(sentences)] == sentences
    assert "stem holds nothing but zeros" in lines
    n = len(results["layers"])
    count = sum(layer["spearman"]["l1-l2"] > 0.9 for layer in results["layers"])
    assert f"Spearman of l1 and l2 above 0.9 in {count} of {n} layers" in lines


@pytest.mark.parametrize(
    ("alike", "words"), [(8, "nearly alike"), (7, "not rank the filters alike")]
)
def test_criteria_agree_where_four_fifths_of_the_layers_do(alike, words, committed):
    layers = [
        layer | {"spearman": dict.fromkeys(analysis.PAIRS, 0.95 if i < alike else 0.5)}
        for i, layer in enumerate(committed["layers"][:10])
    ]
    first, _ = analysis_page.conclusion(committed | {"layers": layers})
    assert words in first
    assert f"{alike} of 10 layers" in first
