"""One module a format: its structure, its metadata, and a `Picture` that decodes and encodes it."""
