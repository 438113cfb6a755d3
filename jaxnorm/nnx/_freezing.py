"""The parameters of normalizations, told from others: to freeze them, or to train nothing else."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from jaxnorm.nnx._surgery import batch_norms


def norm_parameters(model: nnx.Module) -> Callable[[tuple[Any, ...], Any], bool]:
    """A filter of `flax.nnx` for scale, bias and alpha of every batch norm in `model`.

    Of ours and of Flax's, by the paths that they have now: for a changed model ask again. To train
    all but these, give `nnx.All(nnx.Param, nnx.Not(norm_parameters(model)))` to `nnx.Optimizer` as
    `wrt` and to `nnx.DiffState`; together with `nnx.PathContains("encoder")`, also in `nnx.All`,
    they are those of one part. Running statistics are no parameters. They are used and never
    updated after `model.set_attributes(BatchNorm, use_running_average=True)`, to be called
    again after `model.train()`.

    Args:
      model: Any module; without a batch norm the filter lets nothing through.

    Example:
      >>> from jaxnorm.models import MLP
      >>> model = MLP(inputs=4, widths=(3,), classes=2, rngs=nnx.Rngs(0))
      >>> frozen = nnx.state(model, norm_parameters(model))
      >>> print(nnx.to_flat_state(frozen).paths)
      (('norms', 0, 'bias'), ('norms', 0, 'scale'))
    """
    parameters = {
        id(variable)
        for norm in batch_norms(model)
        for variable in vars(norm).values()
        if isinstance(variable, nnx.Param)
    }
    paths = {path for path, node in nnx.iter_graph(model) if id(node) in parameters}
    return lambda path, _: tuple(path) in paths
