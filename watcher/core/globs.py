"""Glob patterns of the configuration: which paths a recipe or an ignore rule means.

Rules of this file:
- A pattern is matched against the whole path relative to the inbox, with `/` between folders, as
  `pathlib.PurePath.full_match` and `.gitignore` with a leading slash do: `*.png` means the top folder only,
  `**/*.png` every folder.
- `*` is any run of characters within one name, `?` one character, `[a-z]` and `[!a-z]` one of (or none of) a
  set. None of them matches `/`. `**` stands alone between slashes for any number of folders, none included;
  at the end (`scans/**`) for everything in the folder.
- Upper and lower case are different, whatever the file system says: write `*.[jJ][pP][gG]` to mean both.
- A letter with an accent matches whether the file system stores it as one code point (NFC) or two (NFD), as
  macOS does. There is no escape character: a literal `*` is written `[*]`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final, Literal, TypeAlias

_ANY_FOLDERS: Final = "(?:[^/]+/)*"
_IN_NAME: Final = "[^/]"
_Form: TypeAlias = Literal["NFC", "NFD"] | None


@lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """Translate a glob into a regular expression for relative paths; use it with `match` or `fullmatch`.

    Raises:
        ValueError: the pattern can never mean what its author wants; the message says what to write instead.
    """
    return re.compile(glob_regex(pattern), re.DOTALL)


def glob_regex(pattern: str) -> str:
    """Return the source of the regular expression, anchored at its end (needs `re.DOTALL`).

    Raises:
        ValueError: as `compile_glob`.
    """
    components = _components(pattern)
    # as written, too: some characters are in neither form
    spellings = dict.fromkeys(_translate(pattern, components, form) for form in (None, "NFC", "NFD"))
    return rf"(?:{'|'.join(spellings)})\Z"


def _components(pattern: str) -> list[str]:
    if not pattern:
        raise ValueError("an empty pattern matches nothing: write '**' for every file")
    if "\\" in pattern:
        raise ValueError(f"pattern {pattern!r}: write '/' between folders, and '[*]' for a literal '*'")
    if pattern.startswith("/"):
        raise ValueError(
            f"pattern {pattern!r}: patterns are relative to the inbox; leave out the leading '/'"
        )
    if pattern.endswith("/"):
        raise ValueError(f"pattern {pattern!r}: write {pattern + '**'!r} for everything in the folder")
    components = pattern.split("/")
    for component in components:
        if component in {"", ".", ".."}:
            raise ValueError(f"pattern {pattern!r}: {component!r} is no folder's name; leave it out")
        if "**" in component and component != "**":
            raise ValueError(
                f"pattern {pattern!r}: '**' stands alone between slashes; "
                "write '*' for a part of a name, '**/' for any number of folders"
            )
    return components


def _translate(pattern: str, components: list[str], form: _Form) -> str:
    pieces: list[str] = []
    last = len(components) - 1
    for position, component in enumerate(components):
        if component != "**":
            pieces.append(_translate_name(pattern, component, form) + ("" if position == last else "/"))
        elif position == last:
            pieces.append(".+")
        elif components[position + 1] != "**":
            # of `**/**` the second alone says it all; two would backtrack against each other
            pieces.append(_ANY_FOLDERS)
    return "".join(pieces)


def _translate_name(pattern: str, component: str, form: _Form) -> str:
    pieces: list[str] = []
    position = 0
    while position < len(component):
        character = component[position]
        if character == "[":
            piece, position = _translate_set(pattern, component, position)
            pieces.append(piece)
            continue
        if character == "*":
            pieces.append(_IN_NAME + "*")
        elif character == "?":
            pieces.append(_IN_NAME)
        else:
            literal = re.match(r"[^*?\[]+", component[position:])
            assert literal is not None  # noqa: S101 - `character` is none of the three
            text = literal.group()
            pieces.append(re.escape(unicodedata.normalize(form, text) if form else text))
            position += literal.end()
            continue
        position += 1
    return "".join(pieces)


def _translate_set(pattern: str, component: str, start: int) -> tuple[str, int]:
    """Translate the set that begins at `start`; also return the position after it."""
    inside = start + 1
    negated = component[inside : inside + 1] in {"!", "^"}
    if negated:
        inside += 1
    # a `]` in first place is a member, not the end
    end = component.find("]", inside + 1)
    if end < 0:
        raise ValueError(
            f"pattern {pattern!r}: the '[' has no ']' in the same name; write '[[]' for a literal '['"
        )
    members = _translate_members(pattern, component[inside:end])
    return (f"[^/{members}]" if negated else f"(?!/)[{members}]"), end + 1


def _translate_members(pattern: str, members: str) -> str:
    pieces: list[str] = []
    position = 0
    while position < len(members):
        low = members[position]
        if members[position + 1 : position + 2] == "-" and position + 2 < len(members):
            high = members[position + 2]
            if low > high:
                raise ValueError(f"pattern {pattern!r}: '{low}-{high}' runs backwards; write '{high}-{low}'")
            pieces.append(f"{re.escape(low)}-{re.escape(high)}")
            position += 3
        else:
            pieces.append(re.escape(low))
            position += 1
    return "".join(pieces)
