"""Read prepared data sets from disk, ImageNet as a stream, and make batches on devices."""
