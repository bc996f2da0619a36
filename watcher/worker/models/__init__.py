"""The weight store: which files are LaMa's weights, where they lie, and proof that they are whole.

Nothing here downloads, and nothing here loads: a file is named by its sha256 before any library opens it.
"""
