"""Pages: HTML and plots of the commands' results."""
