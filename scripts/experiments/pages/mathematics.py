"""Convert LaTeX between dollar signs to MathML for a page, and to Unicode for other texts.

`latex2mathml` reads the LaTeX for pages and terminals, so that both show the same formula. Texts
without dollar signs remain unchanged.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert

from experiments import texts

_FORMULA = re.compile(r"\$([^$]+)\$")
_OPERATORS = frozenset("=≔≠≤≥<>≪≫≲≳≈≅≃∼∝≡→←↦∈∉⊂⊆∪∩∣+−±×·∘")
_ACCENTS = {"^": "\u0302", "~": "\u0303", "\u00af": "\u0304", "\u2015": "\u0304", "˙": "\u0307"}
_CHILDREN = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "mroot": 2, "munderover": 3}
_SUPERSCRIPTS = str.maketrans("0123456789+−()dijnt′", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ᵈⁱʲⁿᵗ′")
_SUBSCRIPTS = str.maketrans("0123456789+−()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")


def html(text: str) -> str:
    """Escape `text` for HTML, and convert its formulas to MathML.

    Raises:
      ValueError: A formula is not LaTeX that can be converted.
    """
    return _converted(text, texts.html, _mathml)


def plain(text: str) -> str:
    """Put `text` on one line, and convert its formulas to Unicode.

    Example:
      >>> print(plain(r"at most $\\frac{\\pi - 3}{2n}$, and $\\sqrt{S + S'}$"))
      at most (π − 3)/2n, and √(S + S′)
    """
    return _converted(text, str, lambda latex: _text(_tree(latex)).strip())


def _converted(text: str, outside: Callable[[str], str], inside: Callable[[str], str]) -> str:
    pieces = _FORMULA.split(text)
    if "$" in "".join(pieces[::2]):
        raise ValueError(f"dollar signs must come in pairs; got {text}")
    return "".join(inside(piece) if i % 2 else outside(piece) for i, piece in enumerate(pieces))


def _mathml(latex: str) -> str:
    tree = _tree(latex)
    for node in tree.iter():
        node.tag = "mo" if node.text == "′" else _kind(node)
        if node.tag == "mover" and node[1].text in _ACCENTS:
            # without `accent`, browsers draw bars as small as superscripts
            node.set("accent", "true")
    # Browsers do not break formulas across lines. If a formula is wider than the page, it scrolls.
    return f'<span class="formula">{ElementTree.tostring(tree, encoding="unicode")}</span>'


def _tree(latex: str) -> Element:
    """Convert a LaTeX formula to a MathML tree; raise ValueError for invalid LaTeX."""
    try:
        tree = ElementTree.fromstring(convert(latex))
    except Exception as error:  # different mistakes raise different types of exceptions
        raise ValueError(f"not a formula: ${latex}$") from error
    incomplete = any(len(node) < _CHILDREN.get(_kind(node), 0) for node in tree.iter())
    if incomplete or "\\" in "".join(tree.itertext()):
        raise ValueError(f"not a formula: ${latex}$")
    return tree


def _kind(node: Element) -> str:
    return node.tag.rpartition("}")[2]


def _text(node: Element) -> str:
    """Convert a node of a MathML tree to Unicode text."""
    parts = list(node)
    match _kind(node):
        case "mfrac" if node.get("linethickness") == "0":
            return " over ".join(map(_text, parts))
        case "mfrac":
            return "/".join(_grouped(part, product=True) for part in parts)
        case "msqrt":
            return "√" + _grouped(*parts)
        case "mroot":
            return _script(parts[1], _SUPERSCRIPTS, "^") + "√" + _grouped(parts[0])
        case "msup":
            return _grouped(parts[0], base=True) + _script(parts[1], _SUPERSCRIPTS, "^")
        case "msub" | "munder":
            return _text(parts[0]) + _script(parts[1], _SUBSCRIPTS, "_")
        case "msubsup" | "munderover":
            below = _text(parts[0]) + _script(parts[1], _SUBSCRIPTS, "_")
            return below + _script(parts[2], _SUPERSCRIPTS, "^")
        case "mover":
            above = _text(parts[1]).strip()
            return _text(parts[0]) + _ACCENTS.get(above, f"^({above})")
        case "mtable":
            return "; ".join(", ".join(_text(cell).strip() for cell in row) for row in parts)
        case "mspace":
            return " "
        case "mo" | "mi" | "mn" | "mtext":
            return (node.text or "").replace("\N{NO-BREAK SPACE}", " ")
        case _:
            return _row(parts)


def _row(parts: Sequence[Element]) -> str:
    """The text of adjacent nodes of a formula.

    Operators have spaces around them, and fractions that are factors have parentheses.
    """
    line = ""
    for i, part in enumerate(parts):
        text, named = _text(part), i > 0 and _is_name(_text(parts[i - 1])) and _is_word(part)
        token = text.replace("-", "−") if _kind(part) == "mo" else text
        if _kind(part) == "mfrac" and (_is_factor(parts[i - 1 : i]) or _is_factor(parts[i + 1 :])):
            token = f"({text})"
        first = not line.strip() or line.rstrip()[-1] in _OPERATORS | set("([{,/")
        if token in _OPERATORS and not (first and token in "+−±"):
            line = f"{line.rstrip()} {token} "
        elif token == ",":
            line += ", "
        elif line and line[-1] not in " ([{|‖/" and (_is_name(token) or named):
            line += f" {token}"
        else:
            line += token
    return line


def _is_word(part: Element) -> bool:
    """Whether a node's text begins with a letter or a number."""
    return _text(part)[:1].isalnum()


def _is_name(token: str) -> bool:
    """Whether a node is the name of a function, such as log, or max with a subscript."""
    return len(token) > 1 and token[0].isalpha() and token[1].isalpha() and token[1] < "ʰ"


def _is_factor(neighbors: Sequence[Element]) -> bool:
    """Whether a fraction is multiplied by a node next to it."""
    beside = _text(neighbors[0]).strip()[:1] if neighbors else ""
    return bool(beside) and beside not in _OPERATORS | set(",;-()[]{}|‖")


def _grouped(*parts: Element, base: bool = False, product: bool = False) -> str:
    """The text of nodes in parentheses; a single letter or number gets no parentheses.

    With `product`, a product such as 2n gets no parentheses either.
    """
    text = _row(parts).strip()
    single = re.fullmatch(r"[\d.]+|\w[\u0300-\u036f]?[₀-₉ₐ-ₜᵢⱼ⁰-⁹²³]*", text)
    single = single or (product and re.fullmatch(r"\d*\w", text))
    enclosed = re.fullmatch(r"[(‖|][^()‖|]*[)‖|]", text)
    return text if single or enclosed or (base and not len(parts[0])) else f"({text})"


def _script(node: Element, letters: Mapping[int, int], mark: str) -> str:
    """The text of a subscript or superscript, in Unicode's small characters if all exist."""
    text = _text(node).replace("-", "−").strip()
    compact = text.replace(" ", "")
    if all(ord(letter) in letters or letter == "′" for letter in compact):
        return compact.translate(letters)
    if compact in "∘∗*⊤+" or len(compact) == 1:
        return {"∘": "°", "⊤": "ᵀ"}.get(compact, mark + compact)
    return mark + (text if re.fullmatch(r"\([^()]*\)", text) else f"({text})")
