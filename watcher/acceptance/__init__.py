"""The acceptance run: what a build does with time and devices, measured, reported, and compared."""
