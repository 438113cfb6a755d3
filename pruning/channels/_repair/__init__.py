"""Repairs parameters after channels were removed, and folds batch norm into kernels."""
