"""Make the smaller decoder layer by layer: remove units, fold scales and repair kernels."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from experiments.language import removal, repair, streams
from experiments.language.architecture import Architecture
from experiments.language.choice import (
    Model,
    Params,
    Text,
    gram,
    in_float32,
    make_ends,
    product,
    rows,
)
from experiments.language.removal import Selection
from experiments.language.repair import Equations
from experiments.language.streams import Ends, Layer, Perplexity, Stream

ATTENTION = [f"self_attn.{x}_proj.weight" for x in "qkv"]
PERCEPTRON = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
EXPERTS = ["mlp.gate.weight", *(f"mlp.experts.{x}_proj.weight" for x in ("gate", "up"))]
EXPERTS_OUT = "mlp.experts.down_proj.weight"


class Plan(NamedTuple):
    """How a smaller decoder is made from a whole decoder.

    Attributes:
      model: The whole decoder.
      small: The architecture of the smaller decoder.
      selection: The units that remain.
      text: The calibration and held-out sequences, if there are any.
      repaired: Whether kernels are fitted to the calibration text.
    """

    model: Model
    small: Architecture
    selection: Selection
    text: Text | None
    repaired: bool


class State(NamedTuple):
    """The residual streams between two layers; None for a stream that is not needed.

    Attributes:
      whole: The residual stream of the whole decoder for the calibration text.
      repaired: The residual stream of the repaired decoder for the calibration text.
      cut_held_out: The residual stream of the smaller decoder without repair for held-out text.
      repaired_held_out: The residual stream of the repaired decoder for held-out text.
    """

    whole: Stream | None = None
    repaired: Stream | None = None
    cut_held_out: Stream | None = None
    repaired_held_out: Stream | None = None


def plan(model: Model, selection: Selection, text: Text | None, *, repaired: bool) -> Plan:
    """The plan for a selection of units; if all units remain, kernels are not repaired."""
    small = removal.smaller_architecture(model.architecture, selection)
    changed = selection.counts != removal.counts(model.architecture)
    return Plan(model, small, selection, text, repaired and changed and text is not None)


def arrays(
    plan: Plan, found: dict[str, Perplexity], log: Callable[[str], None]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of the smaller decoder, each in the dtype of the whole decoder's tensor.

    Args:
      plan: How to make the smaller decoder.
      found: A dictionary to which two perplexities on held-out text are added: "cut" for the
        smaller decoder without repair, and "repaired" for the repaired decoder.
      log: A function that is called with a line for each layer.
    """
    names = removal.end_names(plan.model.tensors)
    outer = {name: small_array(plan, name, plan.model.read(name), -1) for name in names}
    yield from outer.items()
    ends = make_ends(outer)
    state, position = start(plan, ends), 0
    for i in range(plan.model.architecture.layers):
        p = plan.model.layer(i)
        if i in plan.selection.layers:
            small, state = step(plan, p, i, position, state)
            for name, full in removal.layer_names(plan.model.tensors, i):
                dtype = plan.model.tensors[full].dtype
                yield f"model.layers.{position}.{name}", small[name].astype(dtype)
            position += 1
        elif state.whole is not None:
            layer = streams.make_layer(plan.model.architecture, p, i, state.whole.shape[1])
            state = state._replace(whole=layer.run("layer", state.whole))
        log(f"layer {i + 1} of {plan.model.architecture.layers} cut")
    stages = {"cut": state.cut_held_out, "repaired": state.repaired_held_out}
    for name, x in stages.items():
        if plan.text is not None and x is not None:
            found[name] = streams.perplexity(plan.small, ends, x, plan.text.held_out[:, 1:])


def small_array(plan: Plan, name: str, array: np.ndarray, layer: int) -> np.ndarray:
    """Remove units from a tensor, and multiply the rest by the scale that the new width needs.

    The dtype does not change.
    """
    whole, hidden = plan.model.architecture, len(plan.selection.hidden)
    small = removal.cut(name, array, removal.indices(whole, plan.selection, layer))
    if hidden == whole.hidden:
        return small
    folded = removal.fold(whole, name, in_float32(small), hidden, tied=plan.model.tied)
    return folded.astype(array.dtype)


def start(plan: Plan, ends: Ends) -> State:
    """The residual streams of the plan's decoders before the first layer."""
    if plan.text is None:
        return State()
    calibration, held_out = (part[:, :-1] for part in plan.text)
    cut = streams.embed(plan.small, ends, held_out)
    if not plan.repaired:
        return State(cut_held_out=cut)
    return State(
        streams.embed(plan.model.architecture, plan.model.ends(), calibration),
        streams.embed(plan.small, ends, calibration),
        cut,
        cut,
    )


def step(plan: Plan, p: Params, i: int, position: int, state: State) -> tuple[Params, State]:
    """Make a layer of the smaller decoder; return the layer and the residual streams after it."""
    small = {name: small_array(plan, name, array, i) for name, array in p.items()}
    if state.cut_held_out is None:
        return small, state
    tokens = state.cut_held_out.shape[1]
    cut = streams.make_layer(plan.small, small, position, tokens)
    state = state._replace(cut_held_out=cut.run("layer", state.cut_held_out))
    if state.whole is None or state.repaired is None or state.repaired_held_out is None:
        return small, state
    whole = streams.make_layer(plan.model.architecture, p, i, tokens)
    layer, x, y = repair_layer(plan, i, whole, cut, state.whole, state.repaired)
    held_out = layer.run("layer", state.repaired_held_out)
    params = {name: np.asarray(array) for name, array in layer.params.items()}
    return params, state._replace(whole=x, repaired=y, repaired_held_out=held_out)


def repair_layer(
    plan: Plan, i: int, whole: Layer, small: Layer, x: Stream, y: Stream
) -> tuple[Layer, Stream, Stream]:
    """Fit a layer of the smaller decoder; return the layer and both decoders' streams after it.

    Here x and y are the residual streams of the whole and of the smaller decoder before the layer.
    """
    first, second = streams.norm_names(whole.model)
    small = solve_readers(plan, i, small, ATTENTION, whole, (x, y), first)
    inner, inner_small = whole.run("attend", x), small.run("attend", y)
    between = whole.run("add_attention", x, inner)
    small = solve_writer(plan, whole, small, "self_attn.o_proj", (inner, between), (inner_small, y))
    y = small.run("add_attention", y, inner_small)
    readers = EXPERTS if whole.model.traits.mixture else PERCEPTRON
    small = solve_readers(plan, i, small, readers, whole, (between, y), second)
    if whole.model.traits.mixture:
        after = whole.run("add_experts", between)
        small = solve_experts(plan, small, after, y)
        return small, after, small.run("add_experts", y)
    inner, inner_small = whole.run("activate", between), small.run("activate", y)
    after = whole.run("add_activations", between, inner)
    small = solve_writer(plan, whole, small, "mlp.down_proj", (inner, after), (inner_small, y))
    return small, after, small.run("add_activations", y, inner_small)


def solve_experts(plan: Plan, small: Layer, after: Stream, y: Stream) -> Layer:
    """Fit the down projections of the smaller layer's experts by least squares.

    Each expert in turn is fitted to the difference that remains: `after`, minus `y`, minus the
    outputs of all other experts.

    Args:
      after: The residual stream of the whole decoder after the layer.
      y: The residual stream of the smaller decoder before its experts.
    """
    kernels = np.array(small.params[EXPERTS_OUT])
    left = after[..., plan.selection.hidden] - small.run("add_experts", y)
    for expert, kernel in enumerate(kernels):
        inputs = small.run_expert(y, expert)
        wanted = left + product(inputs, kernel.T)
        kernels[expert] = solve_kernel(kernel, inputs, wanted)
        left = wanted - product(inputs, kernels[expert].T)
    return small.replace({EXPERTS_OUT: kernels})


def solve_readers(
    plan: Plan,
    i: int,
    small: Layer,
    names: list[str],
    whole: Layer,
    both: tuple[Stream, Stream],
    norm: str,
) -> Layer:
    """Fit the projections `names` if the stream has lost channels; return the smaller layer.

    The least-squares targets are the outputs of the same projections in the unpruned decoder.
    """
    model, hidden = plan.model.architecture, len(plan.selection.hidden)
    if hidden == model.hidden:
        return small
    h, h_small = whole.normalize(norm, both[0]), small.normalize(norm, both[1])
    remaining = removal.indices(model, plan.selection, i)
    del remaining["hidden"]  # the large model's decoder reads all channels of the stream
    cut = [removal.cut(name, np.asarray(whole.params[name]), remaining) for name in names]
    wanted = [
        rows(removal.fold(model, name, kernel, hidden, tied=plan.model.tied))
        for name, kernel in zip(names, cut, strict=True)
    ]
    old = [np.asarray(small.params[name]) for name in names]
    kernel = np.concatenate([rows(part) for part in old])
    solution = solve_kernel(kernel, h_small, product(h, np.concatenate(wanted).T))
    parts = np.split(solution, np.cumsum([len(part) for part in wanted])[:-1])
    new = [part.reshape(kernel.shape) for part, kernel in zip(parts, old, strict=True)]
    return small.replace(dict(zip(names, new, strict=True)))


def solve_writer(
    plan: Plan,
    whole: Layer,
    small: Layer,
    name: str,
    of_whole: tuple[Stream, Stream],
    of_small: tuple[Stream, Stream],
) -> Layer:
    """Fit the smaller layer's output projection `name` to the whole decoder's residual stream.

    If a norm follows the projection, the target is the output of the whole decoder's projection.

    Args:
      of_whole: The inputs of the projection in the whole decoder, and the stream after the
        projection.
      of_small: The inputs of the projection in the smaller decoder, and the stream before the
        projection's outputs are added.
    """
    inner, after = of_whole
    inputs, before = of_small
    hidden, weight, bias = plan.selection.hidden, f"{name}.weight", f"{name}.bias"
    if plan.small.traits.gemma:
        wanted = product(inner, np.asarray(whole.params[weight])[hidden].T)
    else:
        wanted = after[..., hidden] - before
        if bias in small.params:
            wanted = wanted - np.asarray(small.params[bias])
    return small.replace({weight: solve_kernel(np.asarray(small.params[weight]), inputs, wanted)})


def solve_kernel(kernel: np.ndarray, inputs: Stream, wanted: Stream) -> np.ndarray:
    """Fit a kernel by ridge regression; every fourth sequence is held out to select the penalty."""
    last = np.arange(len(inputs)) % repair.HELD_OUT == repair.HELD_OUT - 1
    parts = [
        Equations(gram(x, x), gram(x, y))
        for x, y in ((rows(inputs[part]), rows(wanted[part])) for part in (~last, last))
    ]
    return repair.solve(kernel, *parts)
