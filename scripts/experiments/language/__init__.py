"""Language models in Hugging Face's format: read, evaluated, cut, repaired and written."""
