"""Invented results of runs, for tests of the pages that show results."""

from typing import Any

import numpy as np

import pruning
from claims import ALL
from experiments import files
from experiments.measures import claims as claim_measures, pruned
from experiments.measures.networks import mean as over_seeds
from experiments.measures.pruned import STAGES
from experiments.measures.shift import FREE
from experiments.pages import shift as shift_page, theorem_plots
from experiments.pages.series import MOMENTS, NORMALIZATIONS
from geometry import claims

EPOCHS, LAYERS = 24, 19
DROPS = [9, 15, 20]
NETWORK = {"points": 40, "width": 300, "depth": 100, "index": 17}
TREE = {"points": 16, "depth": 400, "index": 0, "norm_ratio": 13.84, "angle_ends_degrees": 90.0}


def made_up(seeds=3) -> dict[str, Any]:
    """Invented results of networks, as `measures.report` returns them."""
    rng = np.random.default_rng(7)
    training = made_up_training(rng, seeds)
    steps = 20 * np.array(training["learning_rate"])
    layers = [("stem", 144), ("stage 1, conv 2", 2304), ("stage 3, conv 19", 36864)]
    stages = {"data": 0.4, "train": 171.0, "pruning": 8.5, "claims": 6.25, "odd point": 3.1}
    return {
        "command": "python scripts/reproduce.py --epochs 24 --out '<here>'",
        "date": "2025-11-21 05:10",
        "settings": {"dataset": "digits", "epochs": EPOCHS, "seeds": seeds, "batch_size": 64}
        | {"learning_rate": 0.1, "weight_decay": 5e-4, "momentum": 0.9},
        "data": {"name": "digits", "train": 1437, "test": 360, "probe": 200, "classes": 10}
        | {"shape": [8, 8, 1], "note": "The images were recompressed as JPEG."},
        "environment": {"python": "3.11.2", "jax": "0.10.2", "flax": "0.12.8", "optax": "0.2.8"}
        | {"orbax-checkpoint": "0.12.1", "device": "CPU", "cores": 2, "jaxnorm": "0.1.0"}
        | {"system": "Linux-6.1.0-x86_64-with-glibc2.36"},
        "seconds": stages | {"total": 192.4},
        "training": training,
        "moments": made_up_moments(rng, seeds),
        "distances": {
            name: steps * rng.uniform(0.8, 1.2, (seeds, EPOCHS))
            for name in ("batch_norm", "unitized")
        },
        "pruning": made_up_pruning(rng, seeds),
        "histograms": [made_up_histogram(rng, *layer) for layer in layers],
        "claims": made_up_claims(),
        "odd_point": made_up_odd_point(rng),
    }


def made_up_theorems():
    """Invented results of the checks of every claim, with computed figures."""
    return files.plain(
        {
            "claims": [claim_measures.result(made_up_verdict(claim)) for claim in ALL],
            "curves": theorem_plots.curves(),
        }
        | made_up_settings()
    )


def made_up_settings() -> dict[str, Any]:
    """Invented settings of a run that checked all claims."""
    return {
        "command": "python scripts/check_theorems.py",
        "date": "2025-11-21 05:10",
        "environment": {"python": "3.11.2", "device": "CPU"},
        "seed": 0,
        "precision": 1.0,
        "devices": 1,
        "seconds": 80.0,
        "level": claims.LEVEL,
    }


def made_up_verdict(claim):
    return claims.Verdict(
        claim, tuple(map(made_up_finding, claim.checks)), None, None, True, claim.standing
    )


def made_up_finding(part):
    sampled = isinstance(part, claims.Sampled)
    z, power = (0.5, 0.99996) if sampled else (np.nan, np.nan)
    must_fail = part.form in ("rejected", "overread")
    stderr = 0.002 if sampled else 0.0
    return claims.Finding(part, 1.001, stderr, 1.0, z, z, 20_000, not must_fail, power)


def made_up_training(rng, seeds):
    rates = [0.1 * 0.2 ** sum(epoch >= drop for drop in DROPS) for epoch in range(1, EPOCHS + 1)]
    normalizations = {}
    for name in ("batch_norm", "unitized"):
        noise = rng.normal(0, 0.01, (seeds, EPOCHS)) * np.array(rates) * 10
        accuracy = 0.975 - 0.5 * np.exp(-np.arange(EPOCHS) / 2) + noise
        accuracy = np.round(360 * (accuracy + rng.normal(0, 0.004, (seeds, 1)))) / 360
        loss = 2 * np.exp(-np.arange(EPOCHS) / 3) + 0.002 + abs(noise) / 20
        final = over_seeds(accuracy[:, -1])
        normalizations[name] = {"accuracy": final, "test_accuracy": accuracy, "train_loss": loss}
    normalizations["unitized"]["alpha"] = {"min": -0.31, "max": 0.42, "outside": 0.483}
    paired = [normalizations[n]["test_accuracy"][:, -1] for n in ("unitized", "batch_norm")]
    return normalizations | {
        "difference": over_seeds(paired[0] - paired[1]),
        "learning_rate": rates,
        "drops": DROPS,
    }


def made_up_moments(rng, seeds):
    normalizations = {}
    for name in ("batch_norm", "unitized"):
        normalizations[name] = {}
        for quantity, level in {"mean": -0.2, "var": 1.1, "skewness": 0.4, "kurtosis": 3.6}.items():
            median = level + rng.normal(0, 0.05, EPOCHS + 1)
            normalizations[name][quantity] = {
                "median": median,
                "low": median - 0.3,
                "high": median + 0.4,
            }
    change = {}
    for quantity in ("skewness", "kurtosis"):
        runs = rng.normal(0.02, 0.002, (2, seeds))
        means = dict(zip(normalizations, map(over_seeds, runs), strict=True))
        change[quantity] = means | {"difference": over_seeds(runs[1] - runs[0])}
    layer = {"layer": "stage 3, block 3, norm 2", "channels": 64}
    return layer | {"change": change} | normalizations


def made_up_pruning(rng, seeds):
    names = ["l1", "l2", "fermat", "gm"]
    expected = {"l1-l2": 0.926, "l1-fermat": 0.91, "l1-gm": 0.905, "l2-fermat": 0.978}
    expected |= {"l2-gm": 0.975, "fermat-gm": 0.9998}
    widths = [16] * 7 + [32] * 6 + [64] * 6

    def normalization():
        spread = {p: (1 - e) * rng.random((seeds, LAYERS)) for p, e in expected.items()}
        left = {"0.1": 0.95, "0.3": 0.7, "0.5": 0.3}
        masked = {
            n: {r: over_seeds(rng.normal(a, 0.03, seeds)) for r, a in left.items()} for n in names
        }
        return {
            "spearman": {p: (1 - s).tolist() for p, s in spread.items()},
            "overlap": {p: 1 - 1.5 * s for p, s in spread.items()},
            "unmasked": over_seeds(rng.normal(0.98, 0.002, seeds)),
            "masked": masked,
        }

    return {
        "layers": [
            {"name": f"stage {i // 7 + 1}, conv {i + 1}", "filters": w, "dims": 9 * w}
            for i, w in enumerate(widths)
        ],
        "pairs": list(expected),
        "expected_spearman": {p: np.full(LAYERS, e) for p, e in expected.items()},
        "overlap_ratio": 0.5,
        "batch_norm": normalization(),
        "unitized": normalization(),
    }


def made_up_histogram(rng, layer, weights) -> dict[str, Any]:
    sample = rng.normal(0, 0.05, weights)
    density, edges = np.histogram(sample, 40, density=True)
    return {
        "layer": layer,
        "edges": edges.tolist(),
        "density": density.tolist(),
        "sigma": 0.05,
        "ks": 0.9 / weights**0.5,
        "p_value": 0.4,
        "weights": weights,
    }


def made_up_claims():
    def claim(paper, name, printed, right, verdict, holds):
        check = {"estimate": right * 1.001, "stderr": right * 2e-3, "draws": 20_000}
        check |= {"side": "=", "relation": "moment", "z": 0.5, "tolerance": 0.0}
        return {
            "paper": paper,
            "name": name,
            "statement": "The variance of the ratio l1/l2, both scaled to mean 1, of a Gaussian "
            "filter of d = 64 weights is below 1/d.",
            "printed": "Var < 1/d",
            "corrected": "Var = (π − 3)/(2d) + O(1/d²)",
            "standing": "false",
            "fault": "false",
            "reason": "",
            "verdict": verdict,
            "printed_holds": holds == "printed",
            "corrected_holds": holds != "neither",
            "as_recorded": holds != "neither",
            "checks": [
                check | {"form": "rejected", "prediction": printed},
                check | {"form": "corrected", "prediction": right},
            ],
        }

    return [
        claim("unitization", "Theorem 1", 1.21, 0.87, "the corrected form holds", "corrected"),
        claim("unitization", "Algorithm 2", 7.76, 7.76, "true", "printed"),
        claim("pruning", "Theorem 1", 1 / 64, 0.001068, "the corrected form holds", "corrected"),
        claim("pruning", "Lemma 3", 3.1e-7, 6.2e-7, "the corrected form holds", "corrected"),
        claim("parts", "Theorem 14, <item> 2", 0.111, 0.0123, "neither & nor", "neither"),
        claim("parts", "Equation 111", 0.302, 0.302, "true", "printed"),
    ]


def made_up_odd_point(rng):
    projection = rng.normal(0, 0.3, (NETWORK["points"], 2))
    projection[NETWORK["index"]] = 5, -3
    norms = np.abs(np.linspace(-1, 1, TREE["points"])) ** 8
    return {
        "network": NETWORK
        | {
            "projection": projection,
            "norm_ratio": 1 + 38 / (1 + np.exp(5 - np.arange(NETWORK["depth"]) / 6)),
            "angle_degrees": 89.93,
            "spread_degrees": 13.4,
            "is_odd": True,
        },
        "tree": TREE
        | {"norms": norms / norms.max(), "inputs": np.sort(rng.normal(size=TREE["points"]))},
    }


SHIFT_EPOCHS = 8
RATES = [0.1, 0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02]  # the rate drops after four epochs


def made_up_shift(seeds=3) -> dict[str, Any]:
    """Invented results of `covariate_shift.py`, in which no two numbers are equal."""
    rng = np.random.default_rng(0)

    def numbers():
        return rng.uniform(2, 3, SHIFT_EPOCHS).tolist()

    def layer(kind):
        bounds = ("lower", "upper", "baseline")
        return {n: numbers() for n in ("exact", *(bounds if kind == "whole set" else ["floor"]))}

    def run(norm, order, schedule, seed):
        moments = {"moments": {name: [numbers() for _ in range(8)] for name in MOMENTS}}
        return {
            "normalization": norm,
            "order": order,
            "schedule": schedule,
            "seed": seed,
            "loss": numbers(),
            "accuracy": numbers(),
            "shift": {kind: {"a": layer(kind), "b": layer(kind)} for kind in shift_page.KINDS},
            "movement": {k: {name: numbers() for name in FREE} for k in shift_page.KINDS},
            "floor": {k: {name: numbers() for name in FREE} for k in ("running", "batch")},
        } | (moments if seed == 0 else {})

    results: dict[str, Any] = {
        "command": "python scripts/covariate_shift.py",
        "date": "2026-11-23T10:00:00",
        "environment": {"device": "TPU v5e", "jax": "0.10.2"},
        "settings": {"dataset": "digits", "epochs": SHIFT_EPOCHS, "seeds": seeds, "exact": 400},
        "data": {"name": "digits", "train": 1437, "probe": 360, "note": "A note."},
        "seconds": 125.0,
        "learning_rate": RATES,
        "runs": [
            run(norm, order, schedule, seed)
            for seed in range(seeds)
            for schedule in ("drops", "constant")
            for order in ("norm first", "ReLU first")
            for norm in NORMALIZATIONS
        ],
    }
    results["findings"] = files.plain(shift_page.findings(results))
    return results


def made_up_accuracies(values):
    """Accuracies of networks by criterion. Accuracies of consecutive stages differ by 0.1."""
    return [
        {
            c: [{s: v + i / 10 for i, s in enumerate(STAGES)}]
            for c, v in zip(pruning.CRITERIA, row, strict=True)
        }
        for row in values
    ]


PRUNED = np.array([[0.5, 0.6, 0.55, 0.4], [0.52, 0.58, 0.5, 0.44], [0.51, 0.61, 0.6, 0.42]])


def pruned_networks() -> dict[str, Any]:
    """Invented results of three networks, each pruned by every criterion."""
    timings = {"1": {"milliseconds": 1.0, "samples_per_second": 1000.0, "memory": 400}}
    cost = {"parameters": 100, "macs": 800, "size": 400, "timings": timings}
    faster = {"1": timings["1"] | {"milliseconds": 0.5, "samples_per_second": 2000.0}}
    return {
        "accuracy": pruned.accuracies([0.9, 0.92, 0.91], made_up_accuracies(PRUNED)),
        "ratios": [0.25, 0.5],
        "settings": {"seeds": 3, "depth": 8},
        "options": {"ratio": 0.5, "scope": "layerwise"},
        "data": {"name": "digits", "note": "Of <scikit-learn>."},
        "cost": {"trained": cost, "pruned": cost | {"macs": 200, "timings": faster}},
        "widths": {"trained": {"stem": 16}, "pruned": {"stem": 8}},
        "checkpoint": 1234,
        "environment": {"device": "cpu", "cores": 2},
        "seconds": 61.0,
        "command": "python scripts/prune.py --x <y>",
        "date": "2026-11-21T00:00:00",
    }
