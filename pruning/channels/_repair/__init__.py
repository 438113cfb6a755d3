"""Parameters changed to make up for removed channels, and batch norm folded into kernels."""
