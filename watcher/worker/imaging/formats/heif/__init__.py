"""HEIC and AVIF: pictures in boxes of the ISO base media file format. `decode` opens `heic` and `avif`."""
