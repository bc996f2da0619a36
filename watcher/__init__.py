"""watcher: drop a marked picture into a folder, get it back clean."""

__version__ = "0.1.0"
