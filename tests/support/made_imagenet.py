"""A small data set like ImageNet: JPEG files of different sizes, written without TensorFlow."""

import io
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

CLASSES = 3
SIZES = ((40, 60), (60, 40), (48, 48), (37, 52))  # the height and the width of each image


def pictures(count: int, seed: int) -> list[tuple[np.ndarray, int]]:
    """Images whose colour depends on their label."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        label = i % CLASSES
        pixels = rng.integers(0, 60, (*SIZES[i % len(SIZES)], 3))
        pixels[..., label] += 150
        found.append((pixels.astype(np.uint8), label))
    return found


class Imagenet2012(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    name = "imagenet2012"
    pkg_dir_path = None
    VERSION = tfds.core.Version("5.1.0")

    def _info(self):
        features = {
            "file_name": tfds.features.Text(),
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(num_classes=CLASSES),
        }
        return tfds.core.DatasetInfo(
            builder=self, description="made", features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(26, 0),
            "validation": self._generate_examples(11, 1),
        }

    def _generate_examples(self, count, seed):
        for i, (pixels, label) in enumerate(pictures(count, seed)):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=95)
            yield i, {"file_name": f"{i}.JPEG", "image": file.getvalue(), "label": label}


def make(folder: Path) -> None:
    """Write a data set of 26 training and 11 validation images."""
    tfds.disable_progress_bar()
    Imagenet2012(data_dir=folder, file_format="array_record").download_and_prepare()
