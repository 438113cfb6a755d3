"""Read, evaluate, prune and write language models in Hugging Face's format."""
