"""Formulas between dollar signs become MathML and Unicode."""

import re

import pytest

from claims import ALL
from experiments.measures.claims import sentence_of
from experiments.pages import mathematics
from experiments.pages.theorem_findings import HIGHLIGHTS


@pytest.mark.parametrize(
    ("latex", "unicode"),
    [
        (r"W \le \sqrt{S + S' + D^2}", "W ≤ √(S + S′ + D²)"),
        (r"\frac{\pi - 3}{2n} + O(1/n^2)", "(π − 3)/2n + O(1/n²)"),
        (r"\frac{6}{\pi}\arcsin\frac{1}{2\sqrt{\pi-2}}", "(6/π) arcsin (1/(2√(π − 2)))"),
        (r"(n-1)^2 \mathbb{E}\|\hat\nu\|^2 = 1", "(n − 1)²𝔼‖ν̂‖² = 1"),
        (r"x_{ij}^{2k} e^{-x}", "xᵢⱼ^(2k)e^(−x)"),
        (r"C_0^{p-1}\sqrt d", "C₀^(p − 1)√d"),
        (r"\operatorname{Var}(a), \log n", "Var(a), log n"),
        (r"\bar x, 90^\circ, X^\top", "x̄, 90°, Xᵀ"),
        (r"\sqrt[3]{x}", "³√x"),
        (r"\sqrt{2d} = \sqrt{12} d_1", "√(2d) = √12d₁"),
        (r"s \leftarrow s/n", "s ← s/n"),
        (r"\max_i x_i < \infty", "maxᵢ xᵢ < ∞"),
        (r"\partial^2 f \ll \text{CV}^2 \cong L_p^{(\alpha)}", "∂²f ≪ CV² ≅ Lₚ^(α)"),
        (r"1/\sqrt{2\pi} \simeq \frac{2n}{5}", "1/√(2π) ≃ 2n/5"),
        (r"\{a + b\}^{2} \|\log a\|", "{a + b}²‖log a‖"),
        (r"X^{(t+1)} \coloneqq d^{-t}", "X⁽ᵗ⁺¹⁾ ≔ d⁻ᵗ"),
        (r"P(y = 0 \mid x)", "P(y = 0 ∣ x)"),
    ],
)
def test_a_formula_in_unicode(latex, unicode):
    assert mathematics.plain(f"of ${latex}$.") == f"of {unicode}."


def test_text_is_escaped_outside_formulas_alone():
    html = mathematics.html(r"a < b & $a < \frac{1}{2}$")
    assert html.startswith('a &lt; b &amp; <span class="formula"><math ')
    assert "<mfrac><mn>" in html.replace("<mrow>", "")
    assert html.endswith("</math></span>")
    assert "xmlns" not in html
    assert mathematics.plain("W ≤ √(S + S′), alpha_i") == "W ≤ √(S + S′), alpha_i"


@pytest.mark.parametrize("wrong", [r"\frac{a", r"\nocommand x", r"\left( x", r"x^"])
def test_what_is_no_formula_is_refused(wrong):
    with pytest.raises(ValueError, match="not a formula"):
        mathematics.html(f"${wrong}$")
    with pytest.raises(ValueError, match="not a formula"):
        mathematics.plain(f"${wrong}$")


@pytest.mark.parametrize("wrong", ["$a$ and $b", "$$$a$"])
def test_a_dollar_sign_without_its_pair_is_refused(wrong):
    with pytest.raises(ValueError, match="dollar signs must come in pairs"):
        mathematics.html(wrong)


def texts_of(claim):
    yield from (claim.statement, claim.covers, claim.printed, claim.corrected)
    yield from (claim.why, claim.reason, *(check.what for check in claim.checks))
    yield claim.remark.text if claim.remark else ""
    for result in claim.results:
        yield from (sentence_of(result)["ours"], result.printed)


def test_every_formula_of_every_claim_converts():
    texts = [text for claim in ALL for text in texts_of(claim)]
    for text in (*texts, *(item.sentence for item in HIGHLIGHTS)):
        assert "$" not in mathematics.html(text)
        assert not re.search(r"[$\\]", mathematics.plain(text)), text
