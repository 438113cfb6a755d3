"""Make the page of `scripts/prune_lm.py`, on a language model's removed units and perplexity."""

from typing import Any

from experiments.pages import page
from experiments.pages.page import cards, paragraphs, provenance, table
from experiments.pages.sentences import duration

STAGES = {
    "whole": "whole",
    "cut": "cut, not repaired",
    "repaired": "cut and repaired by least squares",
}


def render(results: dict[str, Any]) -> str:
    parameters = results["parameters"]
    share = parameters["pruned"] / parameters["whole"]
    return page.render(
        results,
        title=f"Pruned {results['family']}",
        about=f"{results['family']}, {parameters['whole']:,} parameters",
        heading=f"{100 * share:.0f} % of a language model",
        summary=paragraphs(summary(results)) + cards(headline(results, share)),
        sections=[
            ("perplexity", "Perplexity of held-out text", perplexities(results)),
            ("counts", "What remains", counts(results)),
            ("layers", "Layer by layer", layers(results)),
        ],
        made=provenance(results, results["settings"] | {"time": duration(results["seconds"])}),
    )


def summary(results: dict[str, Any]) -> str:
    """A sentence that names the score by which units were selected, and the repair."""
    chosen = results["settings"]
    repair = (
        "did not change the remaining weights"
        if chosen["repair"] == "none"
        else "fitted the kernels that read the remaining units by least squares"
    )
    return (
        f"We removed the units with the smallest scores ({chosen['score']}), and {repair}. Nothing "
        "was trained."
    )


def headline(results: dict[str, Any], share: float) -> list[tuple[str, str, str]]:
    """The main results for the top of the page, each as a name, a value and a note."""
    found = [("parameters", f"{results['parameters']['pruned']:,}", f"{100 * share:.1f} %")]
    for name, value in results["perplexity"].items():
        found.append((f"perplexity, {name}", f"{value['value']:.3f}", "held-out text"))
    found.append(("memory", f"{results['peak_gib']:.2f} GiB", "largest memory of the process"))
    return found


def perplexities(results: dict[str, Any]) -> str:
    """A table of the perplexity after each stage, with its standard error."""
    if not results["perplexity"]:
        return paragraphs("No text was given, so no perplexity was measured.")
    rows = [
        [STAGES[name], f"{found['value']:.3f}", error(found["stderr"])]
        for name, found in results["perplexity"].items()
    ]
    caption = (
        "Perplexity on held-out text, which is the exponential of the mean cross entropy in nats. "
        "Standard errors are over sequences."
    )
    return table(["decoder", "perplexity", "standard error"], rows, caption)


def error(value: float | None) -> str:
    """A standard error as text, which says "unknown" if there is only one sequence."""
    return "unknown" if value is None or value != value else f"{value:.3f}"


def counts(results: dict[str, Any]) -> str:
    """A table of the numbers of units before and after pruning."""
    before, after = (results["counts"][name] for name in ("whole", "pruned"))
    rows = [
        [name, f"{n:,}", f"{after[name]:,}"]
        for name, n in before.items()
        if name != "experts" or n > 1  # experts are shown only for a mixture of experts
    ]
    rows.append(["queries", *(f"{results['heads'][name]:,}" for name in ("whole", "pruned"))])
    rows.append(["parameters", *(f"{results['parameters'][n]:,}" for n in ("whole", "pruned"))])
    return table(
        ["", "whole", "pruned"],
        rows,
        "Number of units in every layer of the decoder, before and after pruning",
    )


def layers(results: dict[str, Any]) -> str:
    """A table with the remaining key-value heads and experts and the influence of each layer.

    The influence of a layer is 1 − cos α, where α is the angle between the residual streams before
    and after the layer.
    """
    remaining, influences = results["remaining"], results["influences"]
    mixture = results["counts"]["whole"]["experts"] > 1
    rows = []
    for i, (groups, experts) in enumerate(
        zip(remaining["groups"], remaining["experts"], strict=True)
    ):
        parts = (groups, experts) if mixture else (groups,)
        here = [", ".join(map(str, part)) for part in parts]
        here = here if i in remaining["layers"] else ["removed"] * len(parts)
        rows.append([str(i), *here, f"{influences[i]:.4f}" if influences else ""])
    caption = (
        "The units that remain in each layer. The column “1 − cos” shows one minus the "
        "cosine between the residual streams before and after the layer. If layers are removed, "
        "the layers with the smallest values are removed."
    )
    heads = ["layer", "key-value heads that remain", *["experts that remain"] * mixture, "1 − cos"]
    return table(heads, rows, caption)
