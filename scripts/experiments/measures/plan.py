"""Options of a command line for pruning networks; this module imports no JAX."""

from dataclasses import dataclass
from typing import Literal

from experiments.cli import InputError
from experiments.options import Above, AtLeastTwo, Fraction, Positive


@dataclass(frozen=True)
class Plan:
    """How networks are pruned.

    Attributes:
      ratio: The fraction of the channels that is removed.
      budget: Cost of the smaller network, used in place of a ratio; a number below 1 is a share of
        the whole cost.
      unit: Unit of the cost: multiply-accumulates (macs), parameters with running statistics, their
        bytes, or milliseconds for one image.
      steps: Number of steps in which channels are removed.
      curve: How the ratio rises over the steps.
      scope: Whether the ratio holds for each layer (layerwise) or for the whole network (globally).
      fine_tune: Passes over the training images after each step.
      min_channels: The smallest number of channels that a layer keeps.
      round_to: Each number of kept channels is rounded up to a multiple of this number.
      exclude: Layers that keep their filters, such as stem or blocks/0.
      fold: Whether the constant outputs of removed channels are added to the next biases.
      repair: Repair of the layers that read removed channels, on training images. The repair
        replaces folding and comes before the stage "pruned". The repair merge needs no images.
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
        if self.budget is not None and self.steps > 1:
            raise InputError(f"--steps must be 1 if --budget is given; got {self.steps}")
