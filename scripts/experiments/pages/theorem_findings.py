"""The findings that matter most to a reader of the three papers: each a claim, and a sentence."""

from typing import NamedTuple


class Highlight(NamedTuple):
    """A finding at the top of the page.

    Attributes:
      paper: Short title, as claims have it.
      claim: Name of the claim.
      sentence: What was found; formulas are LaTeX between dollar signs.
      figure: Of `theorem_plots.FIGURES`.
    """

    paper: str
    claim: str
    sentence: str
    figure: str


UNITIZATION, CWDA, PARTS = "Unitization", "CWDA", "Batch Normalization Decomposed"
HIGHLIGHTS = (
    Highlight(
        UNITIZATION,
        "Theorem 1",
        r"The bound $W \le S + S' + D + 2$ holds and has no unit, so it is far off for short "
        r"distances and for long ones. $\sqrt{S + S' + D^2}$ has one, and is attained.",
        "bounds",
    ),
    Highlight(
        UNITIZATION,
        "Equation 10, claimed to obey Theorem 3.2",
        r"The layer that is trained, Equation 10, does not obey Theorem 3.2: inputs $\pm R$ leave "
        r"it $2(\alpha + (1 - \alpha)R)$ apart, not at most $2/\alpha$. Equation 9 obeys it.",
        "unbounded",
    ),
    Highlight(
        UNITIZATION,
        "Section 4.1, Figure 2",
        "Skewness is said to be more stable when unitized. In our shorter training (60 epochs of "
        "200) it moves more than with batch norm, in each of five paired runs.",
        "skewness",
    ),
    Highlight(
        CWDA,
        "Theorem 1, Equations 3 and 25",
        r"The variance of $\ell_1/\ell_2$ is below $1/n$, as the theorem says. Its proof gives "
        r"$(\pi - 1)/2n$, that of independent norms; one filter has $(\pi - 3)/2n$, 15 times less.",
        "ratio-variance",
    ),
    Highlight(
        CWDA,
        "Conclusion from Theorem 1",
        r"It does not follow that $\ell_1$ and $\ell_2$ come to rank filters alike: as the "
        r"dimension grows, Spearman's ρ of Gaussian filters falls to 0.9301 and not to 1.",
        "spearman",
    ),
    Highlight(
        CWDA,
        "Equation 8",
        r"Theorem 3 is for independent vectors. Differences from a shared point are not: their "
        r"ratio has variance $(1 + 3/n)/8k$, which more vectors do not bring to 0.",
        "shared-point",
    ),
    Highlight(
        CWDA,
        "Section 2.1, test (3)",
        "The test of a mean near 0 compares it with a variance. The margin then has a wrong unit: "
        "for weights of σ = 0.02 it is 50 times narrower than meant.",
        "margins",
    ),
    Highlight(
        PARTS,
        "Figure 3",
        r"One point turns odd, as drawn. The others do not collapse into one: an angle stays "
        r"between them that tends to $3\pi/n$, which is 10° for 50 points.",
        "spread",
    ),
    Highlight(
        PARTS,
        "Figure 5, with recentering",
        "The angle after many layers is not 75° for every batch: at infinite width it depends on "
        "the number of samples, 75° for nine of them and 71.44° for many.",
        "angles",
    ),
    Highlight(
        PARTS,
        "Theorem 11, item 4, Equation 12",
        "Holds, and much more is true: for six samples in the recentering tree the bound on the "
        "angle of the inner ones with one of the ends is 26°, and 82° is attained.",
        "ends",
    ),
)
