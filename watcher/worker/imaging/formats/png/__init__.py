"""PNG; `picture` is what `decode` opens."""
