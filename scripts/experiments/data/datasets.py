"""Image data sets in tensorflow-datasets' format.

The module reads data sets without TensorFlow, and never downloads a data set.
"""

import contextlib
import hashlib
import io
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from experiments import cli, storage
from experiments.cli import InputError
from experiments.data.imagenet import Records, name_record
from experiments.recipes import IN_MEMORY, STREAMED

DIGITS = "scikit-learn's 1,797 handwritten digits, a fifth of them for testing."
LARGE = 10_000  # the smallest number of images whose decoding takes seconds

Examples = tuple[np.ndarray, np.ndarray]  # Arrays of the images and of the labels.
# The mean and the standard deviation of the pixels of each channel.
Moments = tuple[Sequence[float], Sequence[float]]


class Images(NamedTuple):
    """A data set with standardized float32 images (NHWC), labels from 0, and a checksum of pixels.

    The checksum is of the pixels before standardization.
    """

    name: str
    note: str
    classes: int
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    version: str = ""
    pixels: str = ""


class Digits(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The digits of scikit-learn, as a data set in tensorflow-datasets' format."""

    name = "digits"
    pkg_dir_path = None
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        # The image is declared as a tensor, because an image feature would be encoded as PNG, and
        # this encoding needs TensorFlow.
        image = tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8)
        label = tfds.features.ClassLabel(num_classes=10)
        features = tfds.features.FeaturesDict({"image": image, "label": label})
        return tfds.core.DatasetInfo(builder=self, description=DIGITS, features=features)

    def _split_generators(self, dl_manager: object) -> dict[str, Iterator]:
        images, labels = load_digits(return_X_y=True)
        train, test = train_test_split(
            np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
        )
        pixels = images.reshape(-1, 8, 8, 1).astype(np.uint8)

        def examples(rows: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
            return ((int(i), {"image": pixels[i], "label": int(labels[i])}) for i in rows)

        return {"train": examples(train), "test": examples(test)}

    def _generate_examples(self) -> None:
        """Do nothing, because `_split_generators` returns the examples."""


def load(name: str, data_dir: str | Path | None = None, moments: Moments | None = None) -> Images:
    """The data set `name` from `data_dir`, with standardized pixels.

    Args:
      name: A name of `IN_MEMORY`.
      data_dir: The folder of data sets in tensorflow-datasets' format, by default a cache folder.
        If a local folder does not hold the digits yet, the digits are prepared in this folder.
        Files from a bucket are copied to the cache folder.
      moments: Means and standard deviations of each channel's pixels in [0, 1], by which the images
        are standardized; by default the moments of the training images.

    Raises:
      InputError: The name is unknown, the folder does not hold the data set, or the images cannot
        be read or standardized.
    """
    if name not in IN_MEMORY:
        raise InputError(f"the data set must be one of {', '.join(IN_MEMORY)}; got {name!r}")
    folder = None if data_dir is None else storage.location(str(data_dir))
    version = _version(name, folder)
    # The folder is copied from the bucket, which needs one request for each file. Reading without
    # a copy would need one request for each image.
    if storage.is_remote(version):
        version = storage.copy_local(version, cache_folder())
    return _read(name, version, moments)


def records(name: str, data_dir: Path | None = None) -> Records:
    """The data set `name` in `data_dir`, as records whose images are read one by one.

    Args:
      name: A name of `STREAMED`.
      data_dir: The folder of data sets in tensorflow-datasets' format.

    Raises:
      InputError: The name is unknown, the folder does not hold the data set, or the folder is in
        S3.
    """
    if name not in STREAMED:
        raise InputError(f"the data set must be one of {', '.join(STREAMED)}; got {name!r}")
    version = _version(name, data_dir)
    if str(version).startswith("s3://"):
        raise InputError(
            f"{name} must be in a local folder or at gs://, because array_record reads nothing "
            f"else; mount {version}"
        )
    classes, (train, test) = _open(version, ("train", "validation"), encoded=True)
    return Records(name, "", classes, train, test, version.name)


def open_split(name: str, data_dir: Path, split: str) -> Sequence:
    """The records of one split, "train" or "test", of the data set `name` in `data_dir`.

    Raises:
      InputError: The folder does not hold the data set, or the data set cannot be read.
    """
    _, (source,) = _open(_version(name, data_dir), (split,), encoded=False)
    return source


def load_or_stream(name: str, data_dir: Path | None = None) -> Images | Records:
    """Read the data set `name`, by `records` if the data set exceeds the memory, else by `load`."""
    return records(name, data_dir) if name in STREAMED else load(name, data_dir)


def identity(data: Images | Records) -> dict[str, Any]:
    """What identifies a data set: its version, counts, shape, classes and checksums.

    For images in memory, the checksums cover all labels and images. For records, the checksums
    cover at most a thousand records of each split.
    """
    if isinstance(data, Images):
        counts, shape = (len(data.y_train), len(data.y_test)), list(data.x_train.shape[1:])
        labels = np.concatenate([data.y_train, data.y_test])
        pixels = data.pixels
    else:
        counts, shape = (len(data.train), len(data.test)), None
        some = [
            split[i]
            for split in (data.train, data.test)
            for i in range(0, len(split), -(-len(split) // 1000))
        ]
        labels = np.array([record["label"] for record in some])
        pixels = sha256(record["image"] for record in some)
    return {
        "name": data.name,
        "version": data.version,
        "train": counts[0],
        "test": counts[1],
        "shape": shape,
        "classes": data.classes,
        "labels": hashlib.sha256(labels.astype("<i4").tobytes()).hexdigest(),
        "pixels": pixels,
    }


def sha256(parts: Iterable[Any]) -> str:
    """The SHA-256 checksum of all bytes or arrays of a sequence together."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return digest.hexdigest()


def _version(name: str, data_dir: Path | None) -> Path:
    """The folder of the newest version of a data set in `data_dir`."""
    folder = data_dir or cache_folder()
    with storage.reachable(folder):
        if data_dir is not None and not data_dir.is_dir():
            found = "is a file" if data_dir.exists() else "does not exist"
            raise InputError(f"--data-dir must be a folder; {data_dir} {found}")
        version = _newest_version(folder / name)
    if version is None and name == "digits" and not storage.is_remote(folder):
        _prepare_digits(folder)
        version = _newest_version(folder / name)
    if version is None:
        raise InputError(
            f"{folder} must hold {name} in tensorflow-datasets' format "
            f"({name}/VERSION/dataset_info.json), because nothing is downloaded: give the folder "
            f"that contains {name} with --data-dir"
        )
    return version


def cache_folder() -> Path:
    """The folder for prepared data sets: `$XDG_CACHE_HOME/jaxnorm`, or `~/.cache/jaxnorm`."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise InputError(f"HOME or XDG_CACHE_HOME must name a folder; {error}") from error
    return cache / "jaxnorm"


def _newest_version(folder: Path) -> Path | None:
    # tensorflow-datasets can leave other folders, such as 1.0.0.incompleteABC.
    versions = [
        info.parent
        for info in folder.glob("*/dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
    ]
    return max(versions, key=lambda path: [*map(int, path.name.split("."))], default=None)


def _prepare_digits(folder: Path) -> None:
    tfds.disable_progress_bar()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The output is hidden, because tfds announces a download that does not happen.
        with contextlib.redirect_stdout(io.StringIO()):
            Digits(data_dir=folder, file_format="array_record").download_and_prepare()
    except OSError as error:
        # The error is ignored if another process has prepared the digits meanwhile.
        if _newest_version(folder / "digits") is None:
            raise InputError(f"the data folder must be writable; {folder}: {error}") from error


def _open(version: Path, splits: Sequence[str], *, encoded: bool) -> tuple[int, list[Sequence]]:
    """The number of classes and the splits of a data set.

    With `encoded`, the splits give images as encoded files.
    """
    # With this level, tensorflow-datasets does not log that it recommends OpenCV.
    logging.getLogger("absl").setLevel(logging.ERROR)
    decoders = {"image": tfds.decode.SkipDecoding()} if encoded else None
    with _readable(version):
        builder: Any = tfds.builder_from_directory(version)
        sources = [builder.as_data_source(split, decoders=decoders) for split in splits]
        if not all({"image", "label"} <= source[0].keys() for source in sources):
            raise ValueError("its records lack an image or a label")
        for split in splits:
            _check_counts(builder.info.splits[split])
        return builder.info.features["label"].num_classes, sources


def _check_counts(split: Any) -> None:
    """Raise ValueError if a file's number of records differs from that in `dataset_info.json`."""
    for path, count in zip(split.filepaths, split.shard_lengths, strict=True):
        reader = ArrayRecordReader(os.fspath(path))
        found = reader.num_records()
        reader.close()
        if found != count:
            raise ValueError(
                f"{path} must hold the {count} records that dataset_info.json lists; "
                f"it holds {found}"
            )


@contextlib.contextmanager
def _readable(version: Path) -> Iterator[None]:
    """A context that turns every exception of reading a data set into `InputError`.

    The libraries tensorflow-datasets and array_record raise many types of exceptions.

    Raises:
      InputError: The body of the `with` statement raised an exception.
    """
    try:
        yield
    except Exception as error:
        raise InputError(f"{version} must be a readable data set with images; {error}") from error


def _read(name: str, version: Path, moments: Moments | None) -> Images:
    classes, sources = _open(version, ("train", "test"), encoded=False)
    if (count := sum(map(len, sources))) >= LARGE:
        cli.say(f"reading {count:,} images of {name}")
    with _readable(version):
        train, test = map(_stack, sources, ("train", "test"))
    mean = train[0].mean((0, 1, 2), dtype=np.float64)
    deviation = train[0].std((0, 1, 2), dtype=np.float64)
    _check_values(version, classes, train, test, deviation)
    if moments is not None:
        mean, deviation = 255 * np.array(moments)
        if len(mean) != (channels := train[0].shape[-1]):
            raise InputError(
                f"the images must have {len(mean)} channels, like the network; the images of "
                f"{version} have {channels}"
            )
    (x_train, y_train), (x_test, y_test) = (
        (((x - mean) / deviation).astype(np.float32), y) for x, y in (train, test)
    )
    arrays = x_train, y_train, x_test, y_test
    pixels = sha256([train[0], test[0]])
    return Images(name, _note(name, version), classes, *arrays, version.name, pixels)


def _check_values(
    version: Path, classes: int, train: Examples, test: Examples, deviation: np.ndarray
) -> None:
    """Raise an error if images cannot be standardized, or if a label names no class.

    Raises:
      InputError: An image is not finite, a channel is constant, or a label is out of range.
    """
    for split, (x, y) in {"train": train, "test": test}.items():
        if not np.isfinite(x).all():
            raise InputError(f"the images of {version} must be finite; {split} has NaN or inf")
        if not ((y >= 0) & (y < classes)).all():
            raise InputError(
                f"the labels of {version} must lie in [0, {classes}); {split} has others"
            )
    if not (deviation > 0).all():
        channels = np.flatnonzero(~(deviation > 0)).tolist()
        raise InputError(
            f"each channel of the training images of {version} must vary; all pixels of channels "
            f"{channels} have one value"
        )


def _note(name: str, version: Path) -> str:
    if name == "digits":
        return DIGITS
    _, (test,) = _open(version, ("test",), encoded=True)
    image = test[0]["image"]  # encoded bytes, or an array if the image is declared as a tensor
    if isinstance(image, bytes) and image.startswith(b"\xff\xd8"):
        return "JPEG-recompressed: accuracies are below those on the original pixels."
    return ""


def _stack(source: Sequence, split: str) -> Examples:
    images, labels = [], []
    for i in range(len(source)):
        with name_record(split, i):
            example = source[i]
            image, label = np.asarray(example["image"]), np.int32(example["label"])
            if image.dtype == object or image.size == 0:
                raise ValueError("it has no image")
            if images and image.shape != images[0].shape:
                raise ValueError(
                    f"its image has shape {image.shape}, and the first image has shape "
                    f"{images[0].shape}"
                )
            images.append(image)
            labels.append(label)
    return np.stack(images), np.array(labels, np.int32)
