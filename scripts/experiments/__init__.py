"""What the commands in `scripts` run, apart from the commands themselves."""
