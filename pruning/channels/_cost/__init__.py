"""What a network costs, at which widths."""
