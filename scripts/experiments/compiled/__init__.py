"""Read memory traffic, kernels and collectives from compiled programs, without running them."""
