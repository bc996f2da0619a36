"""The commands: what a person types, and what they are told when it does not work.

Rules of this package:
- It is thin: a command loads the settings, calls one thing below, and shows what came of it. Heavy modules
  and the terminal library are imported inside the commands, so that `watcher run` stays small.
- Exit codes: 0 done, 1 some jobs failed, 2 usage, 70 internal, 75 try again, 78 configuration.
- An error is three lines: what is wrong, where, what to do. Never a traceback.
"""

from watcher.cli.entry import main

__all__ = ["main"]
