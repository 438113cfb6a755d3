"""Makes checkpoints look as if other devices than those of this process had saved them."""

from pathlib import Path


def rename(checkpoint_dir: Path) -> None:
    """Give the devices in Orbax's notes on shardings ids that no device of this process has."""
    files = list(checkpoint_dir.rglob("_sharding"))
    assert files
    for file in files:
        old = file.read_text()
        new = old.replace(r"\"id\": ", r"\"id\": 9").replace("TFRT_CPU_", "TFRT_CPU_9")
        assert new != old
        file.write_text(new)
