"""Reads, evaluates, cuts and writes language models in Hugging Face's format."""
