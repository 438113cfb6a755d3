"""The sentences of claims about our networks have the numbers in the files of docs/results."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from claims import ALL
from claims.bn_decomposed import figures
from claims.cwda import _networks, accuracies, assumption, rankings, redundancy
from claims.unitization import experiments
from experiments.measures.claims import sentence_of
from jaxnorm import rescale_rms, standardize

ROOT = Path(__file__).parents[2]
RESULTS = [(claim, result) for claim in ALL for result in claim.results]


def layer(l1_l2: float, l2_gm: float, **options: Any) -> dict[str, Any]:
    similar = {"l1-l2": l1_l2, "l2-gm": l2_gm}
    return {"filters": 16, "fails": ["normal"], "spearman": similar, **options}


@pytest.mark.parametrize(
    ("claim", "result"), RESULTS, ids=lambda x: getattr(x, "page", getattr(x, "name", ""))
)
def test_every_sentence_is_filled_from_its_file(claim, result):
    sentence = sentence_of(result)
    assert (ROOT / result.page).is_file()
    assert callable(result.ours), f"{claim.name}: a number is written twice"
    assert re.search(r"\d", sentence["ours"])
    assert not re.search(r"nan|inf\b|None|\{", sentence["ours"])


def test_layers_have_a_mean_and_a_spread():
    layers = [layer(0.7, 0.9), layer(0.9, 0.9), layer(0.8, 0.9)]
    found = _networks.pairs_of("spearman", "l1-l2", "l2-gm")(layers)
    assert found == (
        "Spearman's ρ is 0.800 (spread 0.100) for l1 and l2, 0.900 (spread 0.000) for l2 and GM"
    )


def test_networks_have_a_mean_and_its_error():
    # The two networks have the means 0.6 and 0.9.
    of_two = {"spearman": {"l2-gm": [[0.5, 0.7], [0.8, 1.0]]}}
    found = _networks.pairs_in_the_report("spearman", "l2-gm")(of_two)
    assert (
        found == "Spearman's ρ is 0.750 ± 0.150 for l2 and GM"
    )  # the standard error is 0.3/√2, the deviation of the two means, divided by √2


def test_layers_above_a_limit_are_counted():
    found = _networks.above(0.9, {"l1-l2": [0.91, 0.9, 0.95], "l1-gm": [0.1, 0.2, 0.3]})
    assert found == (
        "Spearman's ρ is above 0.9 in 2 of 3 layers for l1 and l2, in 0 of 3 layers for l1 and GM"
    )


def test_only_layers_of_one_size_count_in_the_dense_network():
    result = next(r for r in _networks.of_networks("", lambda x: str(len(x))) if "mnist" in r.page)
    sentence: Any = result.ours
    found = {"layers": [layer(1, 1, filters=n) for n in (100, 10, 100)]}
    assert sentence(found) == (
        "2; 2 layers of 100 neurons of one dense network on MNIST, which has no convolutions, "
        "unlike the networks of the paper"
    )


def test_shared_filters_are_of_the_first_eight():
    first = {"first": {"l1": [1, 2, 3], "l2": [3, 4, 1]}}
    assert rankings.first_shared(first) == 2


def test_distances_to_a_gaussian_and_rejections():
    layers = [{"ks": ks, "fails": fails} for ks, fails in ((0.1, ["normal"]), (0.2, []), (0.4, []))]
    found = assumption.distances_to_a_gaussian(layers)
    assert found == (
        "a Gaussian is rejected in 1 layers; the Kolmogorov-Smirnov distance of the weights from "
        "a Gaussian is between 0.100 and "
        "0.400, with the median 0.200"
    )


def test_settings_that_reject_nowhere_and_everywhere():
    def setting(normal: int, spherical: int) -> dict:
        return {"after": {"fails": {"normal": normal, "spherical": spherical}, "layers": 4}}

    settings = {"a": setting(0, 4), "b": setting(4, 4), "c": setting(2, 0)}
    found = assumption.rejections_of_settings({"settings": settings})
    assert found.startswith("3 settings of a small network on digits, 3 networks for each setting")
    assert "in no trained layer of 1 settings, and in all layers of 1 settings (b)" in found
    assert found.endswith("in no layer of 1 settings, and in all layers of 2 settings")


def test_spreads_of_criteria_are_in_points():
    spread = {"fine-tuned": {"values": [0.01, 0.03]}, "pruned": {"values": [0.2, 0.2]}}
    shares = (("fine-tuned", 0.9), ("pruned", 0.5))
    criterion = {stage: {"mean": share} for stage, share in shares}
    found = {
        "accuracy": {"spread": spread, "by criterion": {"l1": criterion, "gm": criterion}},
        "settings": {"seeds": 2},
        "data": {"test": 2500},
    }
    assert accuracies.difference_of_criteria("digits", found) == (
        "the accuracies with the best and the worst criterion differ by 2.0 ± 1.0 points after "
        "fine-tuning and by 20.0 ± 0.0 points before; 2 ResNet-8 networks on digits. With 2,500 "
        "test images, the binomial standard error of an accuracy is 0.6 points after fine-tuning "
        "and 1.0 points before"
    )


def test_layers_where_the_width_changes():
    layers = [layer(0.9, 1), layer(0.5, 1, filters=32), layer(0.8, 1, filters=32)]
    assert redundancy.sensitivity_of_transitions({"layers": layers}) == (
        "Spearman's ρ of l1 and l2 is 0.500 in the 1 layers where the number of filters changes; "
        "the median in the 2 other layers is 0.850; one trained ResNet-20"
    )


def test_falls_of_the_distance_at_the_drops():
    def drop(norm: str, kind: str, ratio: float) -> dict:
        of = {"normalization": norm, "kind": kind, "schedule": "drops", "order": "norm first"}
        return of | {"ratio": {"mean": ratio}}

    drops = [drop("batch_norm", "whole set", r) for r in (0.2, 0.3)]
    drops += [drop("unitized", "whole set", 0.25), drop("unitized", "running", 0.9)]
    found = {"runs": [{"seed": 0}, {"seed": 1}], "data": {"train": 60_000}}
    sentence = experiments.falls(found | {"findings": {"drops": drops}})
    assert "is 0.20, 0.30 (batch norm, norm first); 0.25 (unitization, norm first)" in sentence
    assert "2 networks of each kind" in sentence


def test_quotients_of_the_critic_have_their_powers_of_ten():
    def pair(name: str, values: list[float], distance: float) -> dict:
        estimates = {"Algorithm 3": {"values": values}}
        return {"name": name, "distance": distance, "estimates": estimates}

    growth = ((1, 4e-7), (8, 6e-7), (64, 8e-7), (512, 2e-6))  # d/W at W = 8; 2e-7 at W = 1/2
    pairs = [pair(f"Gaussians, d = {d}, shift 0.5", [5e-8, 1e-7, 1.5e-7], 0.5) for d, _ in growth]
    pairs += [pair(f"Gaussians, d = {d}, shift 8", [8 * part] * 3, 8.0) for d, part in growth]
    sentence = experiments.part_of_the_distance({"pairs": pairs})
    assert sentence.startswith("for 8 pairs of distributions")
    assert "is between 2.0·10⁻⁷ and 2.0·10⁻⁶. The quotient d/W is 2 to 10 times" in sentence


def test_a_sample_activates_a_neuron_above_a_tenth_of_the_neuron_s_largest_activity(
    key, monkeypatch
):
    """Half of the samples activate the first neuron, and a quarter the second neuron."""
    few = jnp.array([[1.0, 0.0], [0.05, 3.0], [0.5, 0.2], [0.0, 0.0]])
    most = jnp.ones((9, 2)).at[0, 0].set(0)  # 8 of 9 samples activate the first neuron
    given = {standardize: few, rescale_rms: most}
    monkeypatch.setattr(figures, "_activities", lambda key, part: given[part])
    found = {name: float(value) for name, value in figures.activities(key).items()}
    expected = {"negligible": 5 / 8, "broad": 0.0, "broad_without": 1.0, "zeros": 3 / 8}
    assert found == pytest.approx(expected)


def test_the_page_on_pruning_says_how_alike_criteria_are():
    text = " ".join((ROOT / "docs/pruning.md").read_text(encoding="utf-8").split())
    for name in ("resnet20", "cifar10-preact20"):
        path = f"results/{name}/results.json"
        layers = json.loads((ROOT / "docs" / path).read_text(encoding="utf-8"))["layers"]
        rho = statistics.mean(one["spearman"]["l2-gm"] for one in layers)
        assert re.search(rf"\b{rho:.2f} in (?:\w+ )?\[[^]]+\]\({path}\)", text)


@pytest.mark.parametrize(
    ("seeds", "phrase"),
    [((0, 1, 0, 1), "2 networks of each kind"), ((3, 3), "1 network of each kind")],
)
def test_networks_of_each_kind_are_counted_by_their_seeds(seeds, phrase):
    assert experiments._runs({"runs": [{"seed": seed} for seed in seeds]}) == phrase
