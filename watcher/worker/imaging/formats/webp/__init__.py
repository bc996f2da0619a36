"""WebP; `picture` is what `decode` opens."""
