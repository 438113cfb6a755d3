"""Data sets: prepared data sets on disk, ImageNet as a stream, and batches on devices."""
