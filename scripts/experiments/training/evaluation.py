"""Exact counts over a whole test set, on any number of devices: no image is left out or doubled."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Num, UInt8
from PIL import Image

from experiments.data import imagenet
from experiments.data.datasets import Images
from experiments.data.imagenet import Records, Share
from experiments.data.loaders import everywhere, here, sharded, standardized
from experiments.training.recipes import Recipe

EVALUATED = 512  # images at a time
TOP = 5  # Table 3 counts an image whose label is among so many

Logits = Callable[[Any, Num[Array, "n h w c"]], Float[Array, "n classes"]]
Views = Callable[[Image.Image], Sequence[UInt8[np.ndarray, "h w 3"]]]


def of_arrays(
    logits: Logits, images: Images, mesh: Mesh, *, together: bool
) -> Callable[[Any], list[dict[str, float]]]:
    """A function of a network: its accuracy on the test images, which lie on the devices.

    Args:
      logits: Of a network and a batch.
      images: Of which the test images count.
      mesh: Over whose devices a chunk is spread.
      together: Networks have an axis of seeds.
    """
    count = len(images.x_test)
    chunk = -(-min(EVALUATED, count) // mesh.size) * mesh.size
    padded = _padded(images.x_test, images.y_test, chunk)
    placed = cache(lambda: everywhere(mesh, *padded))
    local = jax.shard_map(logits, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def right(network: Any, x: Array, y: Array, start: Int[Array, ""]) -> Int[Array, ""]:
        part, labels = (jax.lax.dynamic_slice_in_dim(a, start, chunk) for a in (x, y))
        found = local(sharded(mesh, P(), network), sharded(mesh, P("data"), part))
        return jnp.sum(jnp.argmax(found, -1) == labels)

    compiled = jax.jit(
        jax.vmap(right, (0, None, None, None)) if together else right,
        out_shardings=NamedSharding(mesh, P()),
    )

    def accuracies(network: Any) -> list[dict[str, float]]:
        x, y = placed()
        counts = [np.atleast_1d(compiled(network, x, y, i)) for i in range(0, len(y), chunk)]
        return [{"accuracy": int(total) / count} for total in np.sum(counts, 0)]

    return accuracies


def of_records(
    logits: Logits, records: Records, recipe: Recipe, mesh: Mesh, workers: int
) -> Callable[[Any, Views], dict[str, float]]:
    """A function of a network and of an image's views: fractions of images rightly classified.

    The logits of an image are the mean of those of its views, which may have any sizes: views of
    one size are brought together over images. Every process evaluates its own part of the images
    on its own devices, with a copy of the network.

    Args:
      logits: Of a network and a batch of standardized images.
      records: Of which the test images count.
      recipe: Its batch and crop tell how many pixels are computed at a time.
      mesh: On which networks lie.
      workers: Processes that decode.
    """
    share, local = here(), Mesh(np.array(jax.local_devices()), "data", axis_types=mesh.axis_types)
    if jax.process_count() == 1:
        local = mesh
    whole = jax.jit(lambda network: network, out_shardings=NamedSharding(mesh, P()))
    spread, copied = NamedSharding(local, P("data")), NamedSharding(local, P())
    at_once = recipe.batch_size // share.processes * recipe.crop**2

    @partial(jax.jit, in_shardings=(copied, spread), out_shardings=copied)
    @partial(jax.shard_map, mesh=local, in_specs=(P(), P("data")), out_specs=P("data"))
    def of_batch(network: Any, x: UInt8[Array, "n h w 3"]) -> Float[Array, "n classes"]:
        return logits(network, standardized(x))

    def fractions(network: Any, views: Views) -> dict[str, float]:
        network = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), whole(network))
        network = jax.device_put(network, copied)
        mine = range(share.process, len(records.test), share.processes)
        sums, labels = np.zeros((len(mine), records.classes)), np.zeros(len(mine), np.int64)
        waiting: dict[tuple[int, ...], list[tuple[int, np.ndarray, int]]] = defaultdict(list)

        def compute(shape: tuple[int, ...], chunk: int) -> None:
            ready = waiting.pop(shape)
            x = np.zeros((chunk, *shape), np.uint8)
            x[: len(ready)] = [view for _, view, _ in ready]
            found = np.asarray(of_batch(network, jax.device_put(x, spread)), np.float64)
            for (image, _, count), scores in zip(ready, found, strict=False):
                sums[image] += scores / count

        def chunk_of(shape: tuple[int, ...]) -> int:
            return max(at_once // (shape[0] * shape[1] * local.size), 1) * local.size

        for image, (pixels, label) in enumerate(_viewed(records.test, views, share, workers)):
            labels[image] = label
            for view in pixels:
                waiting[view.shape].append((image, view, len(pixels)))
                if len(waiting[view.shape]) == chunk_of(view.shape):
                    compute(view.shape, chunk_of(view.shape))
        for shape in list(waiting):
            compute(shape, chunk_of(shape))
        own = np.take_along_axis(sums, labels[:, None], 1)
        above = np.sum(sums > own, 1)
        counts = np.array([np.sum(np.argmax(sums, 1) == labels), np.sum(above < TOP)])
        if share.processes > 1:
            counts = np.asarray(multihost_utils.process_allgather(counts)).sum(0)
        accuracy, top = (int(count) / len(records.test) for count in counts)
        return {"accuracy": accuracy, f"top_{TOP}": top}

    return fractions


def _viewed(
    records: Sequence, views: Views, share: Share, workers: int
) -> Iterator[tuple[Sequence[UInt8[np.ndarray, "h w 3"]], int]]:
    """Views and label of each image of a share, in order."""
    mine = grain.MapDataset.range(len(records))[share.process :: share.processes]
    return imagenet.iterate(mine.map(partial(_view, records, views)), workers)


def _view(records: Sequence, views: Views, index: int) -> tuple[list[np.ndarray], int]:
    record = records[index]
    return list(views(imagenet.decoded(record))), int(record["label"])


def _padded(x: np.ndarray, y: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Images up to whole chunks; the label of padding is -1, which no network answers."""
    missing = -len(x) % chunk
    return (
        np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]),
        np.concatenate([y, np.full(missing, -1, y.dtype)]),
    )
