"""Choose how many units (layers, heads, channels, experts) of a language model remain."""

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.cli import InputError
from experiments.language.architecture import Architecture
from experiments.language.naming import Sources
from experiments.language.removal import Counts, counts, parameters

SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9}
STEPS = 200  # Shares k / STEPS of the units are tried, for k from 1 to STEPS.
GPT2 = (
    "for gpt2, of which only layers and intermediate units can be removed, because config.json has "
    "no width of heads, and norms subtract a mean over hidden channels"
)
MIXTURE = "for a mixture of experts, which are removed whole by --experts"
WIDTHS = ("hidden", "intermediate")
REASONS = {"gpt2": GPT2, "mixtral": MIXTURE, "qwen3_moe": MIXTURE}


@dataclass(frozen=True)
class Wanted:
    """What a user requests for the smaller model; None stands for no request.

    Attributes:
      layers, heads, intermediate, hidden, experts: The numbers of units that remain.
      budget: The largest number of parameters.
      gigabytes: The largest memory traffic of a forward pass over a sequence on the chip `target`,
        in gigabytes (10⁹ bytes). Traffic counts reads and writes.
      target: The name of a chip, "v5e" or "h100".
      units: The kinds of units that may be removed to meet a budget: heads, intermediate, hidden
        and experts. A kind has no effect if the model family fixes its number.
      round_to: Chosen widths are multiples of `round_to`.
    """

    layers: int | None = None
    heads: int | None = None
    intermediate: int | None = None
    hidden: int | None = None
    experts: int | None = None
    budget: int | None = None
    gigabytes: float | None = None
    target: str = "v5e"
    units: tuple[str, ...] = ("heads", "intermediate", "experts")
    round_to: int = 32


def number(text: str) -> int:
    """The number that a text such as 500M or 0.5B stands for.

    Raises:
      InputError: `text` is not a number above zero.
    """
    factor = SUFFIXES.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    try:
        value = int(float(digits) * factor)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise InputError(f"--parameters must be a number above 0, such as 500M or 0.5B; got {text}")
    return value


def choose(model: Architecture, tensors: Sources, wanted: Wanted) -> Counts:
    """The numbers of units that the smaller decoder keeps.

    Raises:
      InputError: A number is outside the decoder's range, `transformers` does not accept the
        numbers, or no numbers meet the budget.
    """
    given = explicit(model, wanted)
    if wanted.budget is None:
        if not allowed(model, given):
            raise InputError(
                f"the number of heads of a {model.family} must divide its hidden width, because "
                f"transformers requires this; got {heads(model, given)} heads and width "
                f"{given.hidden}"
            )
        return given
    check_units(model, wanted)
    smallest = None
    for found in candidates(model, given, wanted):
        if not allowed(model, found):
            continue
        smallest = parameters(model, tensors, found)
        if smallest <= wanted.budget:
            return fill_up(model, tensors, found, wanted)
    raise InputError(
        f"the budget must be at least the size of the smallest model; got {wanted.budget:,} "
        f"parameters, and the model with the fewest {', '.join(free_units(model, wanted))} has "
        f"{smallest or parameters(model, tensors, given):,}"
    )


def check_units(model: Architecture, wanted: Wanted) -> None:
    """Raise an error if no kind of unit in `wanted.units` can be removed from the model.

    Raises:
      InputError: The model's family fixes the number of units of every kind in `wanted.units`.
    """
    if not set(wanted.units) & set(model.traits.units):
        raise InputError(
            "--units must name a kind of unit that a budget can remove from a "
            f"{model.family} ({', '.join(model.traits.units)}); got {', '.join(wanted.units)}"
        )


def explicit(model: Architecture, wanted: Wanted) -> Counts:
    """The numbers of units that the options give.

    For every kind without an option, the result has the number of units in the whole decoder.

    Raises:
      InputError: A number is outside the decoder's range, or would split a group of heads.
    """
    queries = model.heads // model.groups
    limits = {
        "layers": model.layers,
        "heads": model.heads,
        "intermediate": model.intermediate,
        "hidden": model.hidden,
        "experts": model.experts,
    }
    chosen = {name: getattr(wanted, name) or limit for name, limit in limits.items()}
    for name, limit in limits.items():
        if not 1 <= chosen[name] <= limit:
            raise InputError(f"--{name} must lie in 1..{limit}; got {chosen[name]}")
        if chosen[name] < limit and name not in ("layers", *model.traits.units):
            raise InputError(
                f"--{name} must be {limit} {REASONS[model.family]}; got {chosen[name]}"
            )
    if chosen["heads"] % queries:
        raise InputError(
            f"--heads must be a multiple of {queries}, because a key-value head is removed with "
            f"all its query heads; got {chosen['heads']}"
        )
    groups = chosen["heads"] // queries
    del chosen["heads"]
    return Counts(**chosen, groups=groups)


def candidates(model: Architecture, given: Counts, wanted: Wanted) -> Iterator[Counts]:
    """Yield candidates for the numbers of units, in decreasing order.

    In each candidate, approximately the same share of units remains in every kind that may be
    removed to meet a budget.
    """
    free = free_units(model, wanted)
    for step in range(STEPS, 0, -1):
        found = given
        for name in free:
            field = "groups" if name == "heads" else name
            size = getattr(counts(model), field)
            unit = min(wanted.round_to, size) if name in WIDTHS else 1
            found = found._replace(**{field: max(unit, size * step // STEPS // unit * unit)})
        # for some families, `transformers` requires that the number of heads divides the hidden
        # width
        if "heads" in free:
            while found.groups > 1 and not allowed(model, found):
                found = found._replace(groups=found.groups - 1)
        yield found


def free_units(model: Architecture, wanted: Wanted) -> list[str]:
    """The kinds of units that may be removed to meet a budget, if no option gives their number."""
    asked = [name for name in model.traits.units if name in wanted.units]
    return [name for name in asked if getattr(wanted, name) is None]


def fill_up(model: Architecture, tensors: Sources, found: Counts, wanted: Wanted) -> Counts:
    """The counts `found`, with as many added intermediate units or experts as the budget allows."""
    name = "experts" if model.traits.mixture else "intermediate"
    if name not in free_units(model, wanted):
        return found
    unit, budget = wanted.round_to if name in WIDTHS else 1, wanted.budget or 0
    while (more := getattr(found, name) + unit) <= getattr(counts(model), name):
        larger = found._replace(**{name: more})
        if parameters(model, tensors, larger) > budget:
            break
        found = larger
    return found


def heads(model: Architecture, found: Counts) -> int:
    """The number of query heads if `found.groups` key-value heads remain."""
    return found.groups * (model.heads // model.groups)


def allowed(model: Architecture, found: Counts) -> bool:
    """Whether `transformers` accepts the numbers of units in `found` for the decoder's family."""
    return not model.traits.divides or found.hidden % heads(model, found) == 0
