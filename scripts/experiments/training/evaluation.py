"""Measure the accuracy on a whole test set, with any number of devices.

Every image counts exactly once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, Int, Num, UInt8
from PIL import Image

import jaxnorm
from experiments.cli import InputError
from experiments.data import imagenet
from experiments.data.datasets import Images
from experiments.data.imagenet import Records, Shard
from experiments.data.loaders import local_shard, replicate, sharded, standardize
from experiments.recipes import Recipe
from experiments.training.networks import inference_graph
from experiments.training.step import cast

CHUNK = 512  # The largest number of test images in one forward pass, for data in memory.
TOP = 5  # Table 3 of the unitization paper has the top-5 accuracy.

Network = Any  # parameters and statistics of the network
Logits = Callable[[Network, Num[Array, "n h w c"]], Float[Array, "n classes"]]
Views = Callable[[Image.Image], Sequence[UInt8[np.ndarray, "h w 3"]]]


class View(NamedTuple):
    """One view of an image, such as a crop, with the image's number and its number of views."""

    image: int
    pixels: UInt8[np.ndarray, "h w 3"]
    views: int


def evaluator(
    recipe: Recipe,
    data: Images | Records,
    model: nnx.Module,
    mesh: Mesh,
    *,
    vmap_seeds: bool,
    workers: int,
) -> Callable[..., list[dict[str, float]]]:
    """Make a function that computes the accuracies of each seed.

    The function takes a network. If `data` has records, the function also takes an `Evaluation`,
    the name of the view of the test images.

    Args:
      recipe: The recipe of the trained network.
      data: Images or records; only the test images are used.
      model: The network, without its arrays.
      mesh: The mesh on which networks are placed.
      vmap_seeds: Whether the arrays of a network have an axis of seeds.
      workers: The number of processes that decode records.

    Raises:
      InputError: The network does not fit the images.
    """
    shape = data.x_train.shape[1:] if isinstance(data, Images) else (recipe.crop, recipe.crop, 3)
    # At any image size, unitized layers divide by the number of pixels of training images.
    example = jax.ShapeDtypeStruct((2 * recipe.statistics_groups, *shape), jnp.float32)
    try:
        model = jaxnorm.nnx.fix_pixels(model, example)
    except ValueError as error:
        raise InputError(f"--model {recipe.model} must fit the images; {error}") from error
    graph = inference_graph(model)

    def logits(network: Network, x: Num[Array, "n h w c"]) -> Float[Array, "n classes"]:
        params, statistics = network
        model: Any = nnx.merge(graph, cast(params, recipe), statistics)
        return model(cast(x, recipe)).astype(jnp.float32)

    if isinstance(data, Images):
        return array_evaluator(logits, data, mesh, vmap_seeds=vmap_seeds)
    fractions = RecordEvaluator(logits, data, recipe, mesh, workers)
    views = {
        "center": partial(imagenet.center, crop=recipe.crop),
        "crops": partial(imagenet.multi_scale_crops, crop=recipe.crop, scales=recipe.test_scales),
        "whole": partial(imagenet.whole_images, scales=recipe.test_scales),
    }
    return lambda network, view="center": [fractions(network, views[view])]


def array_evaluator(
    logits: Logits, images: Images, mesh: Mesh, *, vmap_seeds: bool
) -> Callable[..., list[dict[str, float]]]:
    """Make a function that takes a network and returns each seed's accuracy on images in memory.

    Args:
      logits: A function that takes a network and a batch, and returns logits.
      images: Data set; only its test images are used.
      mesh: The mesh over whose devices a chunk of images is sharded.
      vmap_seeds: Whether networks have an axis of seeds.
    """
    count = len(images.x_test)
    chunk = -(-min(CHUNK, count) // mesh.size) * mesh.size
    missing = -count % chunk
    x_padded = np.pad(images.x_test, ((0, missing), *3 * ((0, 0),)))
    # Padding images have the label −1, which no network predicts.
    y_padded = np.pad(images.y_test, (0, missing), constant_values=-1)
    placed = cache(lambda: replicate(mesh, x_padded, y_padded))
    local = jax.shard_map(logits, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def correct(network: Network, x: Array, y: Array, start: Int[Array, ""]) -> Int[Array, ""]:
        part, labels = (jax.lax.dynamic_slice_in_dim(a, start, chunk) for a in (x, y))
        scores = local(sharded(mesh, P(), network), sharded(mesh, P("data"), part))
        return jnp.sum(jnp.argmax(scores, -1) == labels)

    compiled = jax.jit(
        jax.vmap(correct, (0, None, None, None)) if vmap_seeds else correct,
        out_shardings=NamedSharding(mesh, P()),
    )

    def accuracies(network: Network) -> list[dict[str, float]]:
        x, y = placed()
        counts = [np.atleast_1d(compiled(network, x, y, i)) for i in range(0, len(y), chunk)]
        return [{"accuracy": int(total) / count} for total in np.sum(counts, 0)]

    return accuracies


class RecordEvaluator:
    """A callable object that takes a network and a function `views`, and returns accuracies.

    The function `views` returns the views of an image, such as crops. The logits of an image are
    the mean of its views' logits. Views can have different sizes, and views of equal size, also of
    several images, are computed as one batch. Every process evaluates its own part of the images on
    its own devices, with a copy of the network.
    """

    def __init__(self, logits: Logits, records: Records, recipe: Recipe, mesh: Mesh, workers: int):
        """Prepare the evaluation; JAX compiles a function once for each size of views.

        Args:
          logits: A function that takes a network and a batch of standardized images, and returns
            logits.
          records: Data set; only its test images are used.
          recipe: The recipe; its batch size and crop give the number of pixels in a batch of views.
          mesh: The mesh on which networks are placed.
          workers: Number of processes that decode.
        """
        self._records, self._workers, self._shard = records, workers, local_shard()
        local = mesh
        if jax.process_count() > 1:
            local = Mesh(np.array(jax.local_devices()), "data", axis_types=mesh.axis_types)
        self._devices = local.size
        self._pixels = recipe.batch_size // self._shard.processes * recipe.crop**2
        self._whole = jax.jit(lambda network: network, out_shardings=NamedSharding(mesh, P()))
        self._sharded, self._replicated = (NamedSharding(local, spec) for spec in (P("data"), P()))

        self._logits = jax.jit(
            jax.shard_map(
                lambda network, x: logits(network, standardize(x)),
                mesh=local,
                in_specs=(P(), P("data")),
                out_specs=P("data"),
            ),
            in_shardings=(self._replicated, self._sharded),
            out_shardings=self._replicated,
        )

    def __call__(self, network: Network, views: Views) -> dict[str, float]:
        """The top-1 and the top-5 accuracy on the test images."""
        network = self._whole(network)
        network = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), network)
        scores, labels = self._scores(jax.device_put(network, self._replicated), views)
        above = np.sum(scores > np.take_along_axis(scores, labels[:, None], 1), 1)
        counts = np.array([np.sum(np.argmax(scores, 1) == labels), np.sum(above < TOP)])
        if self._shard.processes > 1:
            counts = np.asarray(multihost_utils.process_allgather(counts)).sum(0)
        accuracy, top = (int(count) / len(self._records.test) for count in counts)
        return {"accuracy": accuracy, f"top_{TOP}": top}

    def _scores(self, network: Network, views: Views) -> tuple[np.ndarray, np.ndarray]:
        """The mean logits over views and the label of each image that this process evaluates."""
        images = range(self._shard.process, len(self._records.test), self._shard.processes)
        scores = np.zeros((len(images), self._records.classes))
        labels = np.zeros(len(images), np.int64)
        waiting: dict[tuple[int, ...], list[View]] = defaultdict(list)
        viewed = _views(self._records.test, views, self._shard, self._workers)
        for image, (pixels, label) in enumerate(viewed):
            labels[image] = label
            for view in pixels:
                waiting[view.shape].append(View(image, view, len(pixels)))
                if len(waiting[view.shape]) == self._batch_size(view.shape):
                    self._add_logits(scores, network, waiting.pop(view.shape))
        for batch in waiting.values():
            self._add_logits(scores, network, batch)
        return scores, labels

    def _batch_size(self, shape: tuple[int, ...]) -> int:
        return max(self._pixels // (shape[0] * shape[1] * self._devices), 1) * self._devices

    def _add_logits(self, scores: np.ndarray, network: Network, batch: list[View]) -> None:
        shape = batch[0].pixels.shape
        x = np.zeros((self._batch_size(shape), *shape), np.uint8)
        x[: len(batch)] = [view.pixels for view in batch]
        logits = np.asarray(self._logits(network, jax.device_put(x, self._sharded)), np.float64)
        for view, row in zip(batch, logits, strict=False):
            scores[view.image] += row / view.views


def _views(
    records: Sequence, views: Views, shard: Shard, workers: int
) -> Iterator[tuple[Sequence[UInt8[np.ndarray, "h w 3"]], int]]:
    """Yield the views and the label of each image in a shard, in order."""
    indices = grain.MapDataset.range(len(records))[shard.process :: shard.processes]
    return imagenet.iterate(indices.map(partial(_view, records, views)), workers)


def _view(records: Sequence, views: Views, index: int) -> tuple[list[np.ndarray], int]:
    with imagenet.name_record("validation", index):
        record = records[index]
        return list(views(imagenet.decode(record))), int(record["label"])
