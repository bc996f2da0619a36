"""The other program: `python -m watcher.worker`. It decodes, finds marks, infers and encodes.

Nothing imports this package; the service reaches it by exec and speaks `watcher.wire` to it.
"""
