"""BMP; `picture` is what `decode` opens."""
