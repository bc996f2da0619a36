"""TIFF; `picture` is what `decode` opens."""
