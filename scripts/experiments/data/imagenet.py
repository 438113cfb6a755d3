"""Large data sets as streams of batches.

A batch depends on the seed and on the number of the batch, and not on earlier batches. Worker
processes decode the images. As in section 4.3 of the unitization paper, the views (resized and
cropped images) follow Simonyan and Zisserman (2015) and He et al. (2016a).
"""

import gc
import io
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import grain
import numpy as np
from absl import flags
from jaxtyping import Int32, UInt8
from PIL import Image

from experiments.cli import InputError

Pixels = UInt8[np.ndarray, "h w 3"]
# The largest ratio of an image's sides. Images are resized by the shorter side, so an image with a
# larger ratio could fill the memory.
MAX_ASPECT = 32
# The networks' total stride. The longer side of an image becomes a multiple of this stride.
STRIDE = 32
PREFETCHED = 4  # The number of batches that each worker reads ahead.


class Records(NamedTuple):
    """A data set of encoded images with labels from 0; a record is read when its index is used."""

    name: str
    note: str
    classes: int
    train: Sequence
    test: Sequence
    version: str = ""


class Shard(NamedTuple):
    """The part of every batch that the process with the number `process` reads."""

    process: int = 0
    processes: int = 1

    def positions(self, batch_size: int) -> range:
        """The positions, in a batch, of the images that this process reads."""
        size = batch_size // self.processes
        return range(self.process * size, (self.process + 1) * size)


def decode(record: dict) -> Image.Image:
    """The image of a record, converted to three channels.

    Raises:
      InputError: The record is not an image, or one side is more than 32 times as long as the other
        side.
    """
    try:
        image = Image.open(io.BytesIO(record["image"]))
        if max(image.size) > MAX_ASPECT * min(image.size):
            raise ValueError(
                f"its sides {image.size} must differ by a factor of at most {MAX_ASPECT}"
            )
        return image.convert("RGB")
    except Exception as error:  # Pillow raises many types of exceptions for damaged images
        name = record.get("file_name", b"")
        reason = " ".join(re.sub(r" <_io\.BytesIO.*>", "", str(error)).split())[:200]
        raise InputError(
            f"every record must be an image; {name!r} is none ({type(error).__name__}: {reason})"
        ) from error


@contextmanager
def name_record(split: str, index: int) -> Iterator[None]:
    """A context that names the split and the record's index in the error if reading fails.

    Raises:
      InputError: The body of the `with` statement raised an exception.
    """
    try:
        yield
    except Exception as error:
        raise InputError(f"record {index} of {split}: {error}") from error


def resize(image: Image.Image, shorter: int) -> Image.Image:
    """Resize an image bilinearly, so that its shorter side has `shorter` pixels."""
    scale = shorter / min(image.size)
    width, height = (max(shorter, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def scale_crop(
    image: Image.Image, rng: np.random.Generator, *, crop: int, scales: tuple[int, int]
) -> Pixels:
    """Augment an image: draw its shorter side from `scales`, then crop and flip it at random."""
    pixels = np.asarray(resize(image, int(rng.integers(scales[0], scales[1] + 1))))
    top, left = (int(rng.integers(side - crop + 1)) for side in pixels.shape[:2])
    cropped = pixels[top : top + crop, left : left + crop]
    return cropped[:, ::-1] if rng.integers(2) else cropped


def center(image: Image.Image, *, crop: int) -> list[Pixels]:
    """The central crop of an image whose shorter side is resized to 8/7 of the crop's side."""
    return [_crops(resize(image, round(crop * 8 / 7)), crop)[-1]]


def ten_crops(image: Image.Image, *, crop: int) -> list[Pixels]:
    """The crops at the corners and at the center, and the mirror images of these five crops."""
    crops = _crops(image, crop)
    return [*crops, *(pixels[:, ::-1] for pixels in crops)]


def multi_scale_crops(image: Image.Image, *, crop: int, scales: Sequence[int]) -> list[Pixels]:
    """The crops of an image at several scales, for evaluation 1 in the unitization paper's Table 3.

    If a scale equals the crop's side, there are two crops at this scale: the center and its mirror
    image. There are ten crops at every other scale. At the five scales of the paper, an image has
    42 crops.
    """
    views = []
    for shorter in scales:
        crops = ten_crops(resize(image, shorter), crop=crop)
        views += [crops[4], crops[9]] if shorter == crop else crops
    return views


def whole_images(image: Image.Image, *, scales: Sequence[int]) -> list[Pixels]:
    """The whole image at each scale, for evaluation 2 in the unitization paper's Table 3.

    The shorter side is resized to the scale. The longer side is rounded to a multiple of 32, but is
    at least the scale. Therefore, images of nearly equal shapes get equal shapes, and the network
    is compiled only once for these images.
    """
    views = []
    for shorter in scales:
        sides = (
            max(shorter, STRIDE * round(side * shorter / min(image.size) / STRIDE))
            if side > min(image.size)
            else shorter
            for side in image.size
        )
        width, height = sides
        views.append(np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)))
    return views


def _crops(image: Image.Image, crop: int) -> list[Pixels]:
    """The crops at the four corners and at the center."""
    pixels = np.asarray(image)
    bottom, right = (side - crop for side in pixels.shape[:2])
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    return [pixels[top : top + crop, left : left + crop] for top, left in corners]


def batches(
    records: Sequence,
    *,
    batch_size: int,
    crop: int,
    scales: tuple[int, int],
    seed: int,
    start: int,
    stop: int,
    shard: Shard,
    workers: int,
) -> Generator[tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, " n"]]]:
    """Yield one process's part of the batches `start` to `stop` − 1, counted over all epochs.

    A batch depends on the seed, on the number of the batch and on the shard, but not on earlier
    batches or on `workers`.

    Args:
      records: The encoded images with their labels.
      batch_size: The number of images in a batch, over all processes. An incomplete last batch of
        an epoch is left out.
      crop: The side of the cropped images, in pixels.
      scales: The smallest and the largest length of an image's shorter side before it is cropped.
      seed: The seed for the order of the images and for the crops.
      start: The number of the first batch, counted over all epochs.
      stop: One more than the number of the last batch.
      shard: The part of each batch that is read.
      workers: The number of processes that read and decode images; with 0, a thread of this process
        reads and decodes.
    """
    read = partial(_read, records, shard, crop=crop, scales=scales)
    numbered = (
        grain.MapDataset.range(len(records))
        .seed(seed)
        .shuffle()
        .batch(batch_size, drop_remainder=True)
        .repeat()
        .random_map(read)[start:stop]
    )
    return iterate(numbered, workers)


def iterate(elements: grain.MapDataset, workers: int) -> Generator[Any]:
    """Yield the elements in order; `workers` processes compute the elements.

    If `workers` is 0, a thread of this process computes the elements. If a caller does not exhaust
    the generator, the caller must close the generator to end the processes.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads absl's flags, which must be parsed before
    threads = 0 if workers else 1
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads * PREFETCHED)
    stream = elements.to_iter_dataset(options)
    if workers:
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=PREFETCHED)
        )
    iterator = iter(stream)
    try:
        yield from iterator
    finally:
        iterator.close()
        # Grain's last exception refers to itself and to the last element, so only the garbage
        # collector frees the memory of the element.
        gc.collect()


def _read(
    records: Sequence,
    shard: Shard,
    indices: Int32[np.ndarray, " n"],
    rng: np.random.Generator,
    *,
    crop: int,
    scales: tuple[int, int],
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, " n"]]:
    images, labels = [], []
    draws = rng.integers(2**63, size=len(indices))  # one number for each image of the whole batch
    for position in shard.positions(len(indices)):
        draw = np.random.default_rng(draws[position])
        with name_record("train", int(indices[position])):
            record = records[int(indices[position])]
            images.append(scale_crop(decode(record), draw, crop=crop, scales=scales))
            labels.append(np.int32(record["label"]))
    return np.stack(images), np.array(labels, np.int32)
