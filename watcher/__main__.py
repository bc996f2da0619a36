"""`python -m watcher` is the same program as `watcher`."""

from watcher.cli import main

if __name__ == "__main__":
    main()
