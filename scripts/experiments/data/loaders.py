"""Loaders that take training images from the devices' memory, or as a stream of batches.

With both loaders, the batch of a step depends only on the seed and on the number of the step.
"""

from collections.abc import Generator, Iterator
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key, Num, UInt8

from experiments.data import imagenet
from experiments.data.datasets import Images
from experiments.data.imagenet import Records, Shard
from experiments.recipes import Recipe

PAD = 4  # The number of pixels that are added on each side of an image before the crop.
# The means and standard deviations of ImageNet's channels, for pixels in [0, 1].
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Batch = tuple[Float[Array, "n h w c"], Int[Array, " n"]]


class InMemoryLoader:
    """A loader that holds all training images on every device.

    The images of an epoch are permuted, and a batch is a slice of the permuted images.

    Attributes:
      count: The number of training images.
      classes: The number of classes.
      shape: The height, width and number of channels of the images.
      scannable: Whether one compiled program can take several steps.
      in_axes: The axes over which `vmap` maps the arrays of `device_batch` if several seeds are
        trained.
    """

    scannable = True
    in_axes = (None, None, 0)

    def __init__(self, images: Images, recipe: Recipe, mesh: Mesh):
        self.count, self.classes = len(images.x_train), images.classes
        self.shape = images.x_train.shape[1:]
        self._augment = recipe.augment
        self._mesh, self._host = mesh, (images.x_train, images.y_train)
        self._replicated = NamedSharding(mesh, P())
        self._order = jax.jit(self._permutations, out_shardings=self._replicated)

    @cached_property
    def _images(self) -> tuple[Array, ...]:
        return replicate(self._mesh, *self._host)

    def _permutations(self, seed: Int[Array, "*seeds"], epoch: int) -> Int[Array, "*seeds n"]:
        def permutation(seed: Int[Array, ""]) -> Int[Array, " n"]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2), epoch)
            return jax.random.permutation(key, self.count)

        return jax.vmap(permutation)(seed) if seed.ndim else permutation(seed)

    def epoch(self, seed: Int[Array, "*seeds"], epoch: int, step: int) -> Array:
        """The indices of the images of an epoch, in the order of training."""
        return self._order(seed, epoch)

    def device_batch(self, order: Array) -> tuple[Array, ...]:
        """The arrays on the devices from which `batch` selects, made from the result of `epoch`."""
        return (*self._images, order)

    def batch(self, arrays: tuple[Array, ...], step: Int[Array, ""], size: int) -> Batch:
        """The batch of one step, selected from the result of `device_batch`.

        JAX traces the function `batch`.
        """
        x, y, order = arrays
        index = jax.lax.dynamic_slice(order, (step * size,), (size,))
        return x[index], y[index]

    def shapes(self, seed: Int[Array, "*seeds"]) -> tuple[Any, ...]:
        """The shapes and shardings of the result of `device_batch`."""
        order = jax.eval_shape(self._permutations, seed, 0)
        return tuple(
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._replicated)
            for a in (*self._host, order)
        )

    def draw(self, key: Key[Array, ""], count: int) -> tuple[Array, ...]:
        """Random numbers for augmenting `count` images; each array has one entry for each image."""
        return draw_crops(key, count) if self._augment else ()

    def augment(self, x: Float[Array, "n h w c"], *draws: Array) -> Float[Array, "n h w c"]:
        """The images for the network, augmented by the random numbers of `draw`."""
        return crop(x, *draws) if draws else x

    def close(self) -> None:
        """Do nothing, because this loader has no worker processes."""


class StreamingLoader:
    """A loader of batches that worker processes read and crop.

    Each host reads its shard of every batch. The loader has the attributes and methods of
    `InMemoryLoader`.
    """

    scannable = False
    in_axes = None

    def __init__(self, records: Records, recipe: Recipe, mesh: Mesh, workers: int):
        self.count, self.classes = len(records.train), records.classes
        self.shape = (recipe.crop, recipe.crop, 3)
        self._steps, self._size = self.count // recipe.batch_size, recipe.batch_size
        self._sharded = NamedSharding(mesh, P("data"))
        self._read = partial(
            imagenet.batches,
            records.train,
            batch_size=recipe.batch_size,
            crop=recipe.crop,
            scales=recipe.scales,
            stop=recipe.epochs * self._steps,
            shard=local_shard(),
            workers=workers,
        )
        self._stream: Generator[Any] | None = None
        self._next: tuple[int, int] | None = None  # the seed and the number of the next batch

    def epoch(self, seed: Int[Array, ""], epoch: int, step: int) -> Iterator[Any]:
        """An iterator over batches from a step of an epoch on; later epochs follow."""
        wanted = (int(seed), epoch * self._steps + step)
        if wanted != self._next:
            self.close()
            self._stream, self._next = self._read(seed=wanted[0], start=wanted[1]), wanted
        assert self._stream is not None
        return self._stream

    def close(self) -> None:
        """End all worker processes."""
        if self._stream is not None:
            self._stream.close()

    def device_batch(self, batches: Iterator[Any]) -> tuple[Array, ...]:
        assert self._next is not None  # `epoch` must be called before this method
        self._next = (self._next[0], self._next[1] + 1)
        return tuple(
            jax.make_array_from_process_local_data(self._sharded, part) for part in next(batches)
        )

    def shapes(self, seed: Int[Array, ""]) -> tuple[Any, ...]:
        return tuple(
            jax.ShapeDtypeStruct((self._size, *shape), dtype, sharding=self._sharded)
            for shape, dtype in ((self.shape, jnp.uint8), ((), jnp.int32))
        )

    def batch(
        self, arrays: tuple[Array, ...], step: Int[Array, ""], size: int
    ) -> tuple[UInt8[Array, "n h w c"], Int[Array, " n"]]:
        x, y = arrays
        return x, y

    def draw(self, key: Key[Array, ""], count: int) -> tuple[()]:
        return ()

    def augment(self, x: UInt8[Array, "n h w c"]) -> Float[Array, "n h w c"]:
        return standardize(x)


Loader = InMemoryLoader | StreamingLoader


def sharded(mesh: Mesh, spec: P, tree: Any) -> Any:
    """The arrays of `tree`, with a sharding that `jax.shard_map` accepts.

    If the mesh has Auto axes, `jax.shard_map` accepts any sharding, and `tree` is returned.
    """
    if mesh.axis_types == (AxisType.Auto,):
        return tree
    return jax.sharding.reshard(tree, NamedSharding(mesh, spec))


def replicate(mesh: Mesh, *arrays: np.ndarray) -> tuple[Array, ...]:
    """Copy arrays to every device; every process must have the same arrays."""
    sharding = NamedSharding(mesh, P())
    return tuple(
        jax.make_array_from_process_local_data(sharding, np.asarray(a), a.shape) for a in arrays
    )


def local_shard() -> Shard:
    """The shard of every batch that this process reads."""
    return Shard(jax.process_index(), jax.process_count())


def standardize(x: Num[Array, "n h w 3"]) -> Float[Array, "n h w 3"]:
    """Standardize pixels in 0 to 255 by means and standard deviations of ImageNet's pixels."""
    mean, deviation = (255 * np.array([[[c]]], np.float32) for c in (MEAN, DEVIATION))
    return (x.astype(jnp.float32) - mean) / deviation


def draw_crops(
    key: Key[Array, ""], count: int
) -> tuple[Int[Array, "{count} 2"], Bool[Array, "{count} 1"]]:
    """Random offsets of crops in padded images, and random flags that say which images to flip."""
    offset, flip = jax.random.split(key)
    offsets = jax.random.randint(offset, (count, 2), 0, 2 * PAD + 1)
    return offsets, jax.random.bernoulli(flip, shape=(count, 1))


def crop(
    x: Float[Array, "n h w c"], offsets: Int[Array, "n 2"], flips: Bool[Array, "n 1"]
) -> Float[Array, "n h w c"]:
    """Add 4 pixels of value 0 on each side of each image, then crop the image to its old size.

    Cropped images for which `flips` is true are mirrored.
    """
    n, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    rows = offsets[:, :1] + jnp.arange(height)[None]
    columns = offsets[:, 1:] + jnp.arange(width)[None]
    flipped = jnp.where(flips, columns[:, ::-1], columns)
    return padded[jnp.arange(n)[:, None, None], rows[:, :, None], flipped[:, None, :]]
