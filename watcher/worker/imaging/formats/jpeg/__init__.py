"""JPEG; `picture` is what `decode` opens."""
