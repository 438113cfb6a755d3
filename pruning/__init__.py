"""Which filters pruning criteria choose."""
