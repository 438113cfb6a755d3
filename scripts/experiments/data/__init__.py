"""Data sets: prepared ones on disk, ImageNet as a stream, and batches on devices."""
