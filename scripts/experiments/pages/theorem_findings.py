"""The findings that matter most to the papers' readers, with their claims and sentences."""

from typing import NamedTuple


class Highlight(NamedTuple):
    """A finding that is shown at the top of the page.

    Attributes:
      paper: Short title of the paper, as in the claims.
      claim: Name of the claim, or the beginning of the name up to a comma.
      sentence: The finding in a few sentences; formulas are LaTeX between dollar signs.
      figure: The key of a figure in `theorem_plots.FIGURES`.
    """

    paper: str
    claim: str
    sentence: str
    figure: str

    def is_about(self, paper: str, name: str) -> bool:
        """Whether the finding is about the claim `name` of `paper`."""
        return paper == self.paper and f"{name},".startswith(f"{self.claim},")


UNITIZATION, CWDA, PARTS = "Unitization", "CWDA", "Batch Normalization Decomposed"
HIGHLIGHTS = (
    Highlight(
        UNITIZATION,
        "Theorem 1",
        r"The bound $W \le S + S' + D + 2$ holds but mixes units, so it is far too large for "
        r"short and for long distances. $\sqrt{S + S' + D^2}$ has the unit of the distance $W$ "
        "and is attained.",
        "bounds",
    ),
    Highlight(
        UNITIZATION,
        "Abstract and Section 5, low dimensions",
        "A bound that grows with the dimension does not show that batch norm fails to control "
        r"the shift. The shift is at most $\sqrt{2d}$. In units of the size of the outputs, the "
        "bound is the same in every dimension.",
        "dimensions",
    ),
    Highlight(
        UNITIZATION,
        "Equation 10",
        "Theorem 3.2 does not cover the trained layer, Equation 10: its outputs for the inputs "
        r"$\pm R$ are $2(\alpha + (1 - \alpha)R)$ apart, which $2/\alpha$ does not bound. The "
        "outputs of Equation 9 obey Theorem 3.2.",
        "unbounded",
    ),
    Highlight(
        CWDA,
        "Theorem 1",
        r"The variance of $\ell_1/\ell_2$ is far below the $1/n$ of the theorem: the proof ends "
        r"with $(\pi - 1)/2n$, but the variance is less than $(\pi - 3)/2n$, 15 times smaller.",
        "ratio-variance",
    ),
    Highlight(
        CWDA,
        "Conclusion from Theorem 1",
        r"It does not follow that $\ell_1$ and $\ell_2$ rank filters the same in the limit: as the "
        r"dimension grows, Spearman's ρ of Gaussian filters falls to 0.93 and does not tend to 1.",
        "spearman",
    ),
    Highlight(
        CWDA,
        "Equation 8",
        r"Theorem 3 needs independent vectors, but differences from a shared point are dependent. "
        r"The variance is $(1 + 3/n)/8k$ instead of $1/2nk$, and tends to $1/8k$.",
        "shared-point",
    ),
    Highlight(
        PARTS,
        "Figure 3",
        r"A stable state has one odd point, as drawn. The other points do not collapse into one: "
        r"an angle remains between them, which is about $3\pi/n$ for many points and 10° for 50 "
        r"points.",
        "spread",
    ),
    Highlight(
        PARTS,
        "Stability, before Theorem 14",
        r"A layer does not bring a batch closer to an invariant one: at the variance of Theorem 13 "
        r"distances in the cluster grow by $\sqrt{\alpha} > 1$ a layer, up to an angle of "
        r"about $3\pi/n$. Theorem 14 holds for one layer and cannot be iterated.",
        "growth",
    ),
    Highlight(
        PARTS,
        "Theorem 3, independence of the steps",
        "The steps of the proof are not independent: the longer the first sample waits for an "
        "active row, the more likely the second sample already has one. Theorem 3 still holds.",
        "waiting",
    ),
)
