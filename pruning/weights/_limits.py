"""What a file may claim, and the error for files that claim more."""

from pathlib import Path
from zipfile import ZipFile


class WeightsError(ValueError):
    """A file does not hold weights that can be read; the sentence says why."""


def allowed(path: Path) -> int:
    """Bytes that the content of a file may fill: well compressed weights, but no bomb."""
    return 2**24 + 100 * path.stat().st_size


def entry(archive: ZipFile, name: str, limit: int) -> bytes:
    """One entry of a zip archive, at most `limit` bytes."""
    size = archive.getinfo(name).file_size
    if size > limit:
        raise WeightsError(f"{name} must unpack to at most {limit} bytes; it claims {size}")
    with archive.open(name) as file:
        return file.read(limit + 1)[: limit + 1]
