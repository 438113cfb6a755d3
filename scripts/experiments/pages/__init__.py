"""Pages: HTML and plots of what the commands computed."""
