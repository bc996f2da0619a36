"""Settled files + recipes -> which mark file belongs to which picture, and which recipe serves it.

A *mark file* lies beside a picture and says what is to go: a mask, a marked copy, or a sidecar. The rest of
the core calls whichever a picture has its mask. Rules of this file:
- Pairing is by name alone and by what is present; whether files are complete is not its business.
- A picture has at most one mark file: of the kinds that its recipe names, in the recipe's order.
- A mask's names, first match wins: `IMG.jpg.mask.png`; `IMG.mask.png` and `IMG_mask.png` if exactly one
  picture of the folder has that stem; `masks/IMG.png` inside the picture's folder, under the same condition.
- A marked copy's: `IMG.jpg.marked.png`, with any picture's suffix; `IMG.marked.jpg` with the picture's own;
  `IMG.marked.png` with another, if exactly one picture of the folder has that stem.
- A sidecar's: `IMG.jpg.marks.json`.
- A file is a mask only if its name says so. While no picture has it, it waits (an orphan), or is an ordinary
  picture if its recipe says so. A marked copy is never a picture, unless no recipe in question looks for
  marked copies; a sidecar is none in any case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from watcher.core.globs import compile_glob
from watcher.core.names import SIDECAR_SUFFIX, is_picture, is_sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from watcher.core.policy import Recipe

MarkFileKind: TypeAlias = Literal["mask", "marked_copy", "sidecar"]

_FULL_NAME_SUFFIX: Final = ".mask.png"
_STEM_SUFFIX: Final = "_mask.png"
_MASK_FOLDER: Final = "masks"
_MARKED: Final = ".marked"
_NEARLY: Final = re.compile(
    r"(?P<owner>.+)[._ -](?P<word>mask|masked|mark|marks|marked)", re.DOTALL | re.IGNORECASE
)
"""What people call mark files by guess, without the last suffix: in capitals, with `-`, a mask as JPEG."""


def split(path: str) -> tuple[str, str]:
    """Return (folder, name); the folder of a top-level path is the empty string."""
    folder, _, name = path.rpartition("/")
    return folder, name


def stem_of(name: str) -> str:
    """Return the name without its last suffix; a leading dot does not begin a suffix."""
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem else name


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _stem_key(path: str) -> str:
    folder, name = split(path)
    return _join(folder, stem_of(name))


def mask_names(picture: str) -> tuple[str, str, str, str]:
    """The paths at which a picture's mask may lie, by precedence. Only the first is unconditional."""
    folder, name = split(picture)
    stem = stem_of(name)
    return (
        _join(folder, name + _FULL_NAME_SUFFIX),
        _join(folder, stem + _FULL_NAME_SUFFIX),
        _join(folder, stem + _STEM_SUFFIX),
        _join(folder, f"{_MASK_FOLDER}/{stem}.png"),
    )


def sidecar_name(picture: str) -> str:
    """The path at which a picture's sidecar may lie."""
    return picture + SIDECAR_SUFFIX


def marked_copy_names(picture: str) -> tuple[str, str]:
    """Two paths at which a picture's marked copy may lie, the one that people use first."""
    folder, name = split(picture)
    stem = stem_of(name)
    suffix = name.removeprefix(stem)
    return _join(folder, f"{stem}{_MARKED}{suffix}"), _join(folder, f"{name}{_MARKED}{suffix}")


def mark_file_kind(path: str) -> MarkFileKind | None:
    """Return what kind of mark file the name claims to be, or None."""
    if _is_mask_name(path):
        return "mask"
    if is_sidecar(path):
        return "sidecar"
    return "marked_copy" if _copy_key(path) is not None else None


def meant_name(path: str) -> str | None:
    """Return what a picture should be called if it is meant for a mark file, or None.

    `IMG_Mask.png` and `IMG.jpg.mask.jpg` count as pictures: to guess could mean to swallow one. But whoever
    dropped them may be told.
    """
    folder, name = split(path)
    nearly = _NEARLY.fullmatch(stem_of(name))
    if nearly is None or mark_file_kind(path) is not None or not is_picture(path):
        return None
    owner = nearly["owner"]
    if nearly["word"].lower().startswith("mask"):
        return _join(folder, owner + _FULL_NAME_SUFFIX)
    return _join(folder, f"{owner}{_MARKED}.{_suffix_of(name)}")


def _copy_key(path: str) -> str | None:
    """Return the path that a marked copy's name is made from, with or without the picture's suffix."""
    folder, name = split(path)
    owner, is_marked = (stem := stem_of(name)).removesuffix(_MARKED), stem.endswith(_MARKED)
    return _join(folder, owner) if is_marked and owner and is_picture(path) else None


def _suffix_of(path: str) -> str:
    return path.rpartition(".")[2].lower()


def _is_mask_name(path: str) -> bool:
    folder, name = split(path)
    if name.endswith((_FULL_NAME_SUFFIX, _STEM_SUFFIX)):
        return name not in {_FULL_NAME_SUFFIX, _STEM_SUFFIX}
    return split(folder)[1] == _MASK_FOLDER and name.endswith(".png")


def _owner_stem(mask: str) -> tuple[str, str]:
    """Return (folder, stem or full name) of the pictures that a mask-named file may belong to."""
    folder, name = split(mask)
    for suffix in (_FULL_NAME_SUFFIX, _STEM_SUFFIX):
        if name.endswith(suffix):
            return folder, name.removesuffix(suffix)
    return split(folder)[0], stem_of(name)


class Recipes:
    """The configured recipes; the first whose glob matches serves the picture."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._by_name = {recipe.name: recipe for recipe in recipes}
        self._rules: list[tuple[tuple[re.Pattern[str], ...], Recipe]] = [
            (tuple(compile_glob(pattern) for pattern in recipe.match), recipe) for recipe in recipes
        ]

    def named(self, name: str) -> Recipe | None:
        """The recipe of that name, if it is still configured."""
        return self._by_name.get(name)

    def serving(self, path: str) -> Recipe | None:
        """The recipe that serves a picture at this path."""
        for patterns, recipe in self._rules:
            if any(pattern.fullmatch(path) for pattern in patterns):
                return recipe
        return None


class Pairing:
    """Knows which names are present in the inbox."""

    def __init__(self, recipes: Recipes) -> None:
        self._recipes = recipes
        self._present: set[str] = set()
        self._by_stem = _ByName()
        """Pictures."""
        self._copies = _ByName()
        """What is named like a marked copy, by the name that it is made from."""

    @property
    def present(self) -> AbstractSet[str]:
        """Every name that is there, to read."""
        return self._present

    def add(self, path: str) -> None:
        """A file of this name is there, complete or not."""
        self._present.add(path)
        if self._may_be_picture(path):
            self._by_stem.add(_stem_key(path), path)
        key = _copy_key(path)
        if key is not None:
            self._copies.add(key, path)

    def remove(self, path: str) -> None:
        """No file of this name is there."""
        self._present.discard(path)
        self._by_stem.remove(_stem_key(path), path)
        key = _copy_key(path)
        if key is not None:
            self._copies.remove(key, path)

    def is_picture(self, path: str) -> bool:
        """True if a file of this name is to be served as a picture."""
        match mark_file_kind(path):
            case None:
                return True
            case "marked_copy":
                return self._may_be_picture(path) and not any(map(self._wants_copy, self.owners(path)))
            case _:
                return self._may_be_picture(path) and not self.owners(path)

    def mark_files_of(self, picture: str) -> Iterator[str]:
        """The present mark files of a picture that its recipe looks for, by precedence; one of a kind."""
        recipe = self._recipes.serving(picture)
        for source in recipe.marks if recipe is not None else ():
            found = None
            if source == "mask":
                found = self._mask_of(picture)
            elif source == "marked_copy":
                found = self._marked_copy_of(picture)
            elif source == "sidecar" and sidecar_name(picture) in self._present:
                found = sidecar_name(picture)
            if found is not None:
                yield found

    def owners(self, path: str) -> tuple[str, ...]:
        """The present pictures that a mark file may serve (normally one; none for an orphan)."""
        match mark_file_kind(path):
            case None:
                return ()
            case "mask":
                owners = self._owners_of_mask(path)
            case "sidecar":
                owners = {path.removesuffix(SIDECAR_SUFFIX)} & self._present
            case "marked_copy":
                key = _copy_key(path) or ""
                owners = ({key} & self._present) | self._by_stem.all(key)
        return tuple(sorted(owners - {path}))

    def mark_files_touching(self, picture: str) -> tuple[str, ...]:
        """The present mark files whose role may change when this picture comes or goes."""
        _, name = split(picture)
        copies = self._copies.all(picture) | self._copies.all(_stem_key(picture)) if name else frozenset()
        names = (*mask_names(picture), *sorted(copies), sidecar_name(picture))
        return tuple(name for name in names if name in self._present and name != picture)

    def _mask_of(self, picture: str) -> str | None:
        certain, *by_stem = mask_names(picture)
        if certain in self._present:
            return certain
        if self._is_alone_with_stem(picture):
            for name in by_stem:
                if name in self._present and name != picture:
                    return name
        return None

    def _marked_copy_of(self, picture: str) -> str | None:
        by_full_name = self._copies.all(picture)
        by_stem = self._copies.all(_stem_key(picture)) - {picture}
        if not self._is_alone_with_stem(picture):
            by_stem = frozenset(copy for copy in by_stem if _suffix_of(copy) == _suffix_of(picture))
        for copies in (by_full_name, by_stem):
            if copies:
                return min(copies, key=lambda copy: (_suffix_of(copy) != _suffix_of(picture), copy))
        return None

    def _owners_of_mask(self, mask: str) -> set[str]:
        folder, stem = _owner_stem(mask)
        exact = _join(folder, stem)
        certain = {exact} & self._present if mask.endswith(_FULL_NAME_SUFFIX) else set()
        return certain | self._by_stem.all(exact)

    def _is_alone_with_stem(self, picture: str) -> bool:
        return len(self._by_stem.all(_stem_key(picture))) <= 1

    def _wants_copy(self, picture: str) -> bool:
        recipe = self._recipes.serving(picture)
        return recipe is not None and "marked_copy" in recipe.marks

    def _may_be_picture(self, path: str) -> bool:
        match mark_file_kind(path):
            case None:
                return True
            case "mask":
                recipe = self._recipes.serving(path)
                return recipe is not None and recipe.orphan_masks == "picture"
            case "marked_copy":
                return not self._wants_copy(path)
            case "sidecar":
                return False


class _ByName:
    """Paths by a name that several of them may share; one string where one has it, as nearly all do."""

    def __init__(self) -> None:
        self._paths: dict[str, str | frozenset[str]] = {}

    def all(self, name: str) -> frozenset[str]:
        found = self._paths.get(name, frozenset())
        return frozenset((found,)) if isinstance(found, str) else found

    def add(self, name: str, path: str) -> None:
        same_name = self._paths.get(name)
        alone = same_name is None or same_name == path
        self._paths[name] = path if alone else self.all(name) | {path}

    def remove(self, name: str, path: str) -> None:
        left = self.all(name) - {path}
        if len(left) > 1:
            self._paths[name] = left
        elif left:
            (self._paths[name],) = left
        else:
            self._paths.pop(name, None)
