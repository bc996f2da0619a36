"""From bytes to a marked picture and back to bytes: everything about pixels that is not a model.

Rules of this room:
- A file is read once, as bytes, and judged by its content; its name says nothing.
- What a person sees is decided by the orientation that the file tells; stored pixels stay as they are.
- Outside the grown mask not one bit changes before encoding, and none after it in lossless formats.
- No float copy of a whole picture is ever made.
- What cannot be served correctly is refused with a reason and a remedy; nothing is silently wrong.
"""
