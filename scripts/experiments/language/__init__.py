"""Reads, evaluates, prunes and writes language models in Hugging Face's format."""
