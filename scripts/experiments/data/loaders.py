"""How training images come to the devices: all of them at the start, or a batch at a time.

Either way the batch of a step follows from the seed and the number of the step alone.
"""

from collections.abc import Generator, Iterator
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key, Num, UInt8

from experiments.data import imagenet
from experiments.data.datasets import Images
from experiments.data.imagenet import Records, Share
from experiments.training.recipes import Recipe

PAD = 4  # pixels around an image, from which a crop is taken
# Of ImageNet's channels in [0, 1].
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Batch = tuple[Float[Array, "n h w c"], Int[Array, " n"]]


class Resident:
    """All training images on every device, a batch a slice of a permutation of them.

    Attributes:
      count: Training images.
      classes: Number of labels.
      shape: Height, width and channels of a batch's images.
      in_epoch: Whether any number of steps of an epoch can be one program.
      axes: Which of `take`'s arrays have an axis of seeds, where seeds run side by side.
    """

    in_epoch = True
    axes = (None, None, 0)

    def __init__(self, images: Images, recipe: Recipe, mesh: Mesh):
        self.count, self.classes = len(images.x_train), images.classes
        self.shape = images.x_train.shape[1:]
        self._augment = recipe.augment
        self._mesh, self._host = mesh, (images.x_train, images.y_train)
        self._placed = NamedSharding(mesh, P())
        self._order = jax.jit(self._permutation, out_shardings=self._placed)

    @cached_property
    def _images(self) -> tuple[Array, ...]:
        return everywhere(self._mesh, *self._host)

    def _permutation(self, seed: Int[Array, "*seeds"], epoch: int) -> Int[Array, "*seeds n"]:
        def of_one(seed: Int[Array, ""]) -> Int[Array, " n"]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2), epoch)
            return jax.random.permutation(key, self.count)

        return jax.vmap(of_one)(seed) if seed.ndim else of_one(seed)

    def epoch(self, seed: Int[Array, "*seeds"], epoch: int, step: int) -> Array:
        """Indices of the images of an epoch, in the order of training."""
        return self._order(seed, epoch)

    def take(self, batches: Any) -> tuple[Array, ...]:
        return (*self._images, batches)

    def batch(self, taken: tuple[Array, ...], place: Int[Array, ""], size: int) -> Batch:
        """The batch of step `place` of an epoch, from what `take` returned; traced."""
        x, y, order = taken
        index = jax.lax.dynamic_slice(order, (place * size,), (size,))
        return x[index], y[index]

    def shapes(self, seed: Int[Array, "*seeds"]) -> tuple[Any, ...]:
        """The shapes of what `take` returns."""
        order = jax.eval_shape(self._permutation, seed, 0)
        return tuple(
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._placed)
            for a in (*self._host, order)
        )

    def draws(self, key: Key[Array, ""], count: int) -> tuple[Array, ...]:
        """What is drawn at random for `count` images; the first axis is theirs."""
        return crops(key, count) if self._augment else ()

    def prepared(self, x: Float[Array, "n h w c"], *draws: Array) -> Float[Array, "n h w c"]:
        """Images for the network, by what was drawn for them."""
        return cropped(x, *draws) if draws else x

    def close(self) -> None:
        pass


class Streamed:
    """Batches that worker processes read and crop, each process its share; see `Resident`."""

    in_epoch = False
    axes = None

    def __init__(self, records: Records, recipe: Recipe, mesh: Mesh, workers: int):
        self.count, self.classes = len(records.train), records.classes
        self.shape = (recipe.crop, recipe.crop, 3)
        self._steps, self._size = self.count // recipe.batch_size, recipe.batch_size
        self._spread = NamedSharding(mesh, P("data"))
        self._read = partial(
            imagenet.batches,
            records.train,
            batch_size=recipe.batch_size,
            crop=recipe.crop,
            scales=recipe.scales,
            stop=recipe.epochs * self._steps,
            share=here(),
            workers=workers,
        )
        self._stream: Generator[Any] | None = None
        self._next: tuple[int, int] | None = None  # seed and number of the batch that comes

    def epoch(self, seed: Int[Array, ""], epoch: int, step: int) -> Iterator[Any]:
        """The batches from a step of an epoch on; workers go on into the next epoch."""
        at = (int(seed), epoch * self._steps + step)
        if at != self._next:
            self.close()
            self._stream, self._next = self._read(seed=at[0], start=at[1]), at
        assert self._stream is not None
        return self._stream

    def close(self) -> None:
        """End the processes that read."""
        if self._stream is not None:
            self._stream.close()

    def take(self, batches: Any) -> tuple[Array, ...]:
        assert self._next is not None  # `epoch` was called
        self._next = (self._next[0], self._next[1] + 1)
        return tuple(
            jax.make_array_from_process_local_data(self._spread, part) for part in next(batches)
        )

    def shapes(self, seed: Int[Array, ""]) -> tuple[Any, ...]:
        return tuple(
            jax.ShapeDtypeStruct((self._size, *shape), dtype, sharding=self._spread)
            for shape, dtype in ((self.shape, jnp.uint8), ((), jnp.int32))
        )

    def batch(
        self, taken: tuple[Array, ...], place: Int[Array, ""], size: int
    ) -> tuple[UInt8[Array, "n h w c"], Int[Array, " n"]]:
        x, y = taken
        return x, y

    def draws(self, key: Key[Array, ""], count: int) -> tuple[()]:
        return ()

    def prepared(self, x: UInt8[Array, "n h w c"]) -> Float[Array, "n h w c"]:
        return standardized(x)


Feed = Resident | Streamed


def sharded(mesh: Mesh, spec: P, tree: Any) -> Any:
    """`tree` as an argument of `jax.shard_map`, which itself moves it on Auto axes only."""
    if mesh.axis_types == (AxisType.Auto,):
        return tree
    return jax.sharding.reshard(tree, NamedSharding(mesh, spec))


def everywhere(mesh: Mesh, *arrays: np.ndarray) -> tuple[Array, ...]:
    """Arrays that every process has, a copy on every device."""
    placed = NamedSharding(mesh, P())
    return tuple(
        jax.make_array_from_process_local_data(placed, np.asarray(a), a.shape) for a in arrays
    )


def here() -> Share:
    return Share(jax.process_index(), jax.process_count())


def standardized(x: Num[Array, "n h w 3"]) -> Float[Array, "n h w 3"]:
    """Bytes in units of ImageNet's deviations from its mean."""
    mean, deviation = (255 * np.array([[[c]]], np.float32) for c in (MEAN, DEVIATION))
    return (x.astype(jnp.float32) - mean) / deviation


def crops(
    key: Key[Array, ""], count: int
) -> tuple[Int[Array, "{count} 2"], Bool[Array, "{count} 1"]]:
    """Offsets of random crops of padded images, and whether each is flipped."""
    at, turn = jax.random.split(key)
    offsets = jax.random.randint(at, (count, 2), 0, 2 * PAD + 1)
    return offsets, jax.random.bernoulli(turn, shape=(count, 1))


def cropped(
    x: Float[Array, "n h w c"], offsets: Int[Array, "n 2"], flips: Bool[Array, "n 1"]
) -> Float[Array, "n h w c"]:
    """Each image moved by up to 4 pixels on either axis, zeros coming in, and maybe flipped."""
    n, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    rows = offsets[:, :1] + jnp.arange(height)[None]
    columns = offsets[:, 1:] + jnp.arange(width)[None]
    flipped = jnp.where(flips, columns[:, ::-1], columns)
    return padded[jnp.arange(n)[:, None, None], rows[:, :, None], flipped[:, None, :]]
