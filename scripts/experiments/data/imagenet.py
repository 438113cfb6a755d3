"""Large data sets, read as they are needed: workers decode, and a batch follows from its number.

Views of an image are those of He et al. (2016a) and Simonyan and Zisserman (2015), as the
unitization paper, section 4.3, has them.
"""

import io
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import grain
import numpy as np
from absl import flags
from jaxtyping import Int32, UInt8
from PIL import Image

from experiments.cli import InputError

Pixels = UInt8[np.ndarray, "h w 3"]
STRIDE = 32  # of the networks: sides of whole images are multiples of it
LOADED = 4  # batches that a worker keeps ready


class Records(NamedTuple):
    """Encoded images and their labels, from 0, read by their number."""

    name: str
    note: str
    classes: int
    train: Sequence
    test: Sequence


class Share(NamedTuple):
    """Which part of every batch is read here: that of process `process` of `processes`."""

    process: int = 0
    processes: int = 1

    def of(self, count: int) -> range:
        """Positions in a batch of `count`."""
        each = count // self.processes
        return range(self.process * each, (self.process + 1) * each)


def decoded(record: dict) -> Image.Image:
    """The image of a record, three channels whatever was kept.

    Raises:
      InputError: It is no image.
    """
    try:
        return Image.open(io.BytesIO(record["image"])).convert("RGB")
    except OSError as error:
        name = record.get("file_name", b"")
        raise InputError(f"every record must be an image; {name!r} is none ({error})") from error


def resized(image: Image.Image, shorter: int) -> Image.Image:
    """Bilinearly, to a shorter side of `shorter` pixels."""
    scale = shorter / min(image.size)
    width, height = (max(shorter, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def scale_crop(
    image: Image.Image, rng: np.random.Generator, *, crop: int, scales: tuple[int, int]
) -> Pixels:
    """Scale augmentation: a shorter side at random from `scales`, a random crop, a random flip."""
    pixels = np.asarray(resized(image, int(rng.integers(scales[0], scales[1] + 1))))
    top, left = (int(rng.integers(side - crop + 1)) for side in pixels.shape[:2])
    found = pixels[top : top + crop, left : left + crop]
    return found[:, ::-1] if rng.integers(2) else found


def center(image: Image.Image, *, crop: int) -> list[Pixels]:
    """The middle of the image, of a shorter side of 8/7 of the crop, as 256 is of 224."""
    return [_crops(resized(image, round(crop * 8 / 7)), crop)[-1]]


def ten_crops(image: Image.Image, *, crop: int) -> list[Pixels]:
    """The corners and the middle, then the same of the mirrored image."""
    straight = _crops(image, crop)
    return [*straight, *(pixels[:, ::-1] for pixels in straight)]


def multi_scale_crops(image: Image.Image, *, crop: int, scales: Sequence[int]) -> list[Pixels]:
    """Evaluation 1 of Table 3: 42 crops for five scales, the first of which is the crop's side.

    At a shorter side as long as the crop, the middle and its mirror image; at others ten crops.
    """
    found = []
    for shorter in scales:
        at_scale = ten_crops(resized(image, shorter), crop=crop)
        found += [at_scale[4], at_scale[9]] if shorter == crop else at_scale
    return found


def whole_images(image: Image.Image, *, scales: Sequence[int]) -> list[Pixels]:
    """Evaluation 2 of Table 3: the whole image at every scale.

    The longer side is brought to the nearest multiple of 32, so that images of nearly the same
    shape share a compiled program.
    """
    found = []
    for shorter in scales:
        sides = (
            max(shorter, STRIDE * round(side * shorter / min(image.size) / STRIDE))
            if side > min(image.size)
            else shorter
            for side in image.size
        )
        width, height = sides
        found.append(np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)))
    return found


def _crops(image: Image.Image, crop: int) -> list[Pixels]:
    """Four corners and the middle."""
    pixels = np.asarray(image)
    bottom, right = (side - crop for side in pixels.shape[:2])
    places = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    return [pixels[top : top + crop, left : left + crop] for top, left in places]


def batches(
    records: Sequence,
    *,
    batch_size: int,
    crop: int,
    scales: tuple[int, int],
    seed: int,
    start: int,
    stop: int,
    share: Share,
    workers: int,
) -> Generator[tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, " n"]]]:
    """This process's share of the batches of numbers from `start` to `stop`, epoch after epoch.

    The same for a seed, a number and a share whatever came before and however many workers.

    Args:
      records: Encoded images with labels.
      batch_size: Over all processes; a remainder waits for another epoch's order.
      crop: Side of the images.
      scales: Range of the shorter sides from which crops are cut.
      seed: Of the order and the crops.
      start: Number of the first batch, counted over epochs.
      stop: Number of the first batch that is not read.
      share: Which part of each batch is read.
      workers: Processes that read and decode; 0: a thread of this one.
    """
    read = partial(_read, records, share, crop=crop, scales=scales)
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
    """Elements in order, made by so many processes, or by a thread of this one where it is 0.

    Whoever does not take all closes it: its processes end then.
    """
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads its own
    threads = 0 if workers else 1
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads * LOADED)
    stream = elements.to_iter_dataset(options)
    if workers:
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=LOADED)
        )
    iterator = iter(stream)
    try:
        yield from iterator
    finally:
        iterator.close()


def _read(
    records: Sequence,
    share: Share,
    indices: Int32[np.ndarray, " n"],
    rng: np.random.Generator,
    *,
    crop: int,
    scales: tuple[int, int],
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, " n"]]:
    images, labels = [], []
    draws = rng.integers(2**63, size=len(indices))  # an image's crop is the same in every share
    for position in share.of(len(indices)):
        record = records[int(indices[position])]
        draw = np.random.default_rng(draws[position])
        images.append(scale_crop(decoded(record), draw, crop=crop, scales=scales))
        labels.append(record["label"])
    return np.stack(images), np.array(labels, np.int32)
