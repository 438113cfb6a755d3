"""Language models in Hugging Face's format: how they are read, evaluated, cut and written."""
