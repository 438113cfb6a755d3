"""The cost of a network at any widths."""
