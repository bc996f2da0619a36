"""Engines fill holes. They get crops and masks, never files; one module an engine, one Protocol.

Rules of this room:
- `protocol.py` is the only thing the rest of the worker knows of an engine; `registry.py` picks one.
- Importing a module of this package imports nothing heavy: that happens in `load`, inside its segment.
- An engine never resizes a crop and never decides what is a hole.
"""
