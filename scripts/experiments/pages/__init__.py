"""Pages: HTML and plots of the results of commands."""
