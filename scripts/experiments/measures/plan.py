"""The options of scripts that prune networks; this module does not import JAX."""

from dataclasses import dataclass
from typing import Literal

from experiments.cli import InputError
from experiments.options import Above, AtLeastTwo, Fraction, Positive


@dataclass(frozen=True)
class Plan:
    """Options that say how networks are pruned.

    Attributes:
      ratio: The fraction of the channels that is removed.
      budget: The largest cost of the smaller network. A number below 1 is a share of the cost of
        the whole network. The options ratio, steps, curve and scope hold only without a budget.
      unit: The unit of the budget: multiply-accumulates (macs), parameters with running statistics,
        their bytes, or milliseconds for one image.
      steps: The number of steps in which channels are removed.
      curve: How the ratio rises over the steps.
      scope: Whether the ratio holds for each layer (layerwise) or for the whole network (globally).
      fine_tune: The number of passes over the training images after each step.
      min_channels: The smallest number of channels that a layer keeps.
      round_to: Each number of kept channels is rounded up to a multiple of this number.
      exclude: Layers that keep their filters, such as stem or blocks/0.
      fold: Whether constant outputs of removed channels are added to the next layers' biases.
      repair: How the layers that read removed channels are repaired on training images. A repair
        replaces folding and takes place before the stage "pruned" is measured. The repair `merge`
        needs no images.
      repair_images: The largest number of training images that are used to repair.
    """

    ratio: Fraction = 0.5
    budget: Above | None = None
    unit: Literal["macs", "parameters", "bytes", "milliseconds"] = "macs"
    steps: Positive = 1
    curve: Literal["linear", "cubic", "geometric"] = "geometric"
    scope: Literal["layerwise", "globally"] = "layerwise"
    fine_tune: Positive = 3
    min_channels: Positive = 1
    round_to: Positive = 1
    exclude: tuple[str, ...] = ()
    fold: bool = True
    repair: Literal["none", "scale", "least_squares", "merge"] = "none"
    repair_images: AtLeastTwo = 1000

    def __post_init__(self) -> None:
        beside = self.budget is not None
        for name in ("ratio", "steps", "curve", "scope") if beside else ("unit",):
            if (value := getattr(self, name)) != getattr(Plan, name):
                word = "beside" if beside else "without"
                raise InputError(f"--{name} must not be given {word} --budget; got {value}")
