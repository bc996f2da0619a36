"""GIF; `picture` is what `decode` opens."""
