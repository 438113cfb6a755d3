"""Folds batch norms in evaluation mode into the kernels that come before the norms."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxnorm.internal import check_on_host
from pruning._arguments import check_values
from pruning.channels._coupling.groups import describe
from pruning.channels._coupling.rules import rule_of
from pruning.channels._program.calls import (
    Apply,
    Equation,
    Leaf,
    Program,
    Tree,
    Variable,
    call_of,
    evaluate_equation,
    shape_of,
)
from pruning.channels._program.interpret import check_apply, interpret, is_literal, trace_apply
from pruning.channels._removal.removal import along_axis
from pruning.channels._repair.chains import (
    Chain,
    Value,
    extend_chain,
    fold_chain,
    nontrivial,
    start_chain,
    varying,
)

Arrays = dict[str, Array]
KernelAndShift = tuple[Array, Array]
ANOTHER = (
    "apply must have the program that was folded; at these inputs it has another program: call "
    "fold_batch_norms with these inputs"
)


def fold_batch_norms(apply: Apply, params: Tree, *inputs: Tree) -> tuple[Apply, Arrays]:
    """Fold the batch norms of a model into kernels and shifts.

    A batch norm with running statistics scales and shifts the outputs of a kernel.
    `fold_batch_norms` multiplies the kernel by the scale, and adds all shifts of the kernel's
    outputs, including the bias, into one vector. `fold_batch_norms` returns a function without the
    folded norms, and the arrays of this function. The kernel and the norm may be in different
    modules or calls, with transpositions and changes of dtype between them. Norms after grouped,
    depthwise and transposed convolutions are also folded. A norm cannot be folded if it comes
    before the kernel or after a nonlinearity, or if its input is also read elsewhere. Further, a
    norm cannot be folded inside a loop or a branch, or if the kernel has several axes of output
    channels. The outputs of the network do not change, up to rounding in the dtype of the kernels.

    Args:
      apply: A model in evaluation mode, as for `coupled_channels`.
      params: Any tree of arrays, running statistics included.
      inputs: The other arguments of `apply`, or their shapes, at any batch size.

    Returns:
      A pair of a function `run` and a dictionary `arrays`. The function `run(arrays, *inputs)`
      traces `apply`. The keys of the dictionary are paths in `params`. `cost`, `prune` and
      `jax.export` accept `run` and `arrays` like any other model. A folded kernel has the path of
      the kernel in `params`, or this path with a number if another array has the path. The shift of
      a kernel has the kernel's path with `_shift` at the end. `arrays` has only arrays that `run`
      needs.

    Raises:
      TypeError: `apply` is not a function.
      ValueError: No batch norm can be folded, or `apply` cannot be traced. `run` raises a
        ValueError if the program of `apply` at the inputs of `run` folds other kernels or needs
        other arrays than at `inputs`.

    Example:
      >>> def layer(p, x):
      ...     return (x @ p["w"] - p["mean"]) / jnp.sqrt(p["var"])
      >>> params = {"w": jnp.ones((2, 3)), "mean": jnp.ones(3), "var": jnp.full(3, 4.0)}
      >>> run, arrays = fold_batch_norms(layer, params, jnp.ones(2))
      >>> print({path: array.tolist() for path, array in arrays.items()})
      {'w': [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]], 'w_shift': [-0.5, -0.5, -0.5]}
      >>> print(run(arrays, jnp.ones(2)), layer(params, jnp.ones(2)))
      [0.5 0.5 0.5] [0.5 0.5 0.5]
    """
    check_on_host("fold_batch_norms", params, instead="fold first, and compile the result")
    check_apply(apply)
    check_values("fold_batch_norms", params)
    paths = describe(params).paths
    leaves = list(map(jnp.asarray, jax.tree.leaves(params)))
    kernels: list[int | None] = []
    new: list[KernelAndShift] = []

    def fold(chain: Chain) -> KernelAndShift:
        first = chain.links[0]
        kernel = first.values[first.side]
        with jax.ensure_compile_time_eval():
            new.append(fold_chain(chain, kernel.array()))
        kernels.append(kernel.leaf)
        return new[-1]

    network = Unfolded(leaves.__getitem__, fold, eager=True)
    jax.eval_shape(partial(_run, apply, network, params), *inputs)
    if not new:
        raise ValueError(
            "apply must have a batch norm in evaluation mode directly after a convolution or a "
            "product; none was found that can be folded"
        )
    arrays = {paths[i]: leaves[i] for i in sorted(network.used)}
    shifted = _paths([None if i is None else paths[i] for i in kernels], set(arrays))
    for path, (kernel, shift) in zip(shifted, new, strict=True):
        arrays |= {path: kernel, f"{path}_shift": shift}
    shapes = jax.eval_shape(lambda tree: tree, params)

    def run(arrays: Arrays, *inputs: Tree) -> Tree:
        left = list(zip(kernels, shifted, strict=True))

        def stored(chain: Chain) -> KernelAndShift:
            first = chain.links[0]
            if not left or left[0][0] != first.values[first.side].leaf:
                raise ValueError(ANOTHER)
            _, path = left.pop(0)
            return arrays[path], arrays[f"{path}_shift"]

        def parameter(i: int) -> Array:
            if i not in network.used:
                raise ValueError(ANOTHER)
            return arrays[paths[i]]

        return _run(apply, Unfolded(parameter, stored), shapes, *inputs)

    return run, arrays


def _run(apply: Apply, network: "Unfolded", params: Tree, *inputs: Tree) -> Tree:
    program, result = trace_apply(apply, params, inputs)
    leaves = [network.leaf(i, np.shape(leaf)) for i, leaf in enumerate(jax.tree.leaves(params))]
    values = [*leaves, *map(_compute, jax.tree.leaves(inputs))]
    outputs = [network.operand(value) for value in network.evaluate(program, values)]
    return jax.tree.unflatten(jax.tree.structure(result), outputs)


def _paths(kernels: Sequence[str | None], taken: set[str]) -> list[str]:
    """A path for each folded kernel.

    A kernel keeps its own path, unless another array has the path of the kernel or of the shift. A
    kernel that is not a parameter, such as a sum of two parameters, gets the path `kernel`.
    """
    found: list[str] = []
    for path in kernels:
        names = (f"{path or 'kernel'}{end}" for end in ("", *(f"_{k}" for k in range(2, 10**6))))
        found.append(next(name for name in names if taken.isdisjoint((name, f"{name}_shift"))))
        taken = taken | {found[-1], f"{found[-1]}_shift"}
    return found


def _compute(array: Leaf) -> Value:
    return Value(lambda: array)


class Unfolded:
    """Evaluates a program and folds its chains of scales; arrays are computed when first needed."""

    def __init__(
        self,
        parameter: Callable[[int], Array],
        fold: Callable[[Chain], KernelAndShift],
        *,
        eager: bool = False,
    ):
        self.parameter, self.fold, self.eager = parameter, fold, eager
        self.used: set[int] = set()  # indices of parameters that are needed outside folded chains
        self.reads: Counter[Variable] = Counter()
        self.seen: set[int] = set()

    def leaf(self, i: int, shape: Sequence[int]) -> Value:
        axes = frozenset(nontrivial(shape))
        return Value(partial(self.parameter, i), True, frozenset({i}), axes, i)

    def evaluate(self, program: Program, values: Sequence[Value]) -> list[Value]:
        jaxpr = program.jaxpr
        if id(jaxpr) not in self.seen:
            self.seen.add(id(jaxpr))
            read = [v for eqn in jaxpr.eqns for v in eqn.invars] + list(jaxpr.outvars)
            self.reads.update(v for v in read if not is_literal(v))
        values = self.unshare(jaxpr.invars, values)
        return interpret(program, values, _constant, self.step, enter_calls=False)

    def unshare(self, variables: Sequence[Variable], values: Sequence[Value]) -> list[Value]:
        """Remove the `chain` of each value that the program does not read exactly once."""
        pairs = zip(variables, values, strict=True)
        return [x if self.reads[v] == 1 else x._replace(chain=None) for v, x in pairs]

    def step(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        if (call := call_of(eqn)) is not None:
            results = self.evaluate(call.program, values)
        elif eqn.outvars and all(value.given for value in values):
            return self.given(eqn, values)
        elif (chain := start_chain(eqn, values) or extend_chain(eqn, values)) is not None:
            results = [Value(cache(partial(self.result, chain)), chain=chain)]
        else:
            results = list(map(_compute, evaluate_equation(eqn, self.operands(values))))
        return self.unshare(eqn.outvars, results)

    def given(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        """The results of an equation whose operands do not depend on inputs of the network."""

        @cache
        def arrays() -> list[Leaf]:
            operands = [value.array() for value in values]
            if not self.eager:
                return evaluate_equation(eqn, operands)
            with jax.ensure_compile_time_eval():
                return evaluate_equation(eqn, operands)

        leaves = frozenset().union(*(value.leaves for value in values))
        leaf = values[0].leaf if rule_of(eqn).layout else None
        first = Value(lambda: arrays()[0], True, leaves, varying(eqn, values), leaf)
        others = [
            Value(lambda k=k: arrays()[k], True, leaves, frozenset(range(len(shape_of(v)))))
            for k, v in enumerate(eqn.outvars)
        ]
        return [first, *others[1:]]

    def operand(self, value: Value) -> Leaf:
        self.used |= value.leaves
        return value.array()

    def operands(self, values: Sequence[Value]) -> list[Leaf]:
        return list(map(self.operand, values))

    def result(self, chain: Chain) -> Leaf:
        """The result of a chain of equations, folded if parameters scale the kernel's outputs."""
        first, *links = chain.links
        if not chain.scaled:
            (y,) = evaluate_equation(first.eqn, self.operands(first.values))
            for link in links:
                before = list(link.values)
                before[link.side] = _compute(y)
                (y,) = evaluate_equation(link.eqn, self.operands(before))
            return y
        kernel, shift = self.fold(chain)
        x = self.operand(first.values[1 - first.side])
        operands = (x, kernel) if first.side == 1 else (kernel, x)
        (y,) = evaluate_equation(first.eqn, operands)
        y = y + along_axis(shift, first.axis, y.ndim).astype(y.dtype)
        for link in links:
            if rule_of(link.eqn).layout:
                (y,) = evaluate_equation(link.eqn, [y])
        return y


def _constant(array: Leaf) -> Value:
    return Value(lambda: array, True, varies=frozenset(nontrivial(np.shape(array))))
