"""Make HTML pages with plots from the results of scripts."""
