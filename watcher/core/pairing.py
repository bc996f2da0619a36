"""Settled files + recipes -> which mask belongs to which picture, and which recipe serves it.

Rules of this file:
- Pairing is by name alone and by what is present; whether files are complete is not its business.
- A mask's names, first match wins: `IMG.jpg.mask.png`; `IMG.mask.png` and `IMG_mask.png` if exactly one
  picture of the folder has that stem; `masks/IMG.png` inside the picture's folder, under the same condition.
- A file is a mask only if its name says so. While no picture has it, it waits (an orphan), or is an ordinary
  picture if its recipe says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watcher.core.globs import compile_glob

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from re import Pattern

    from watcher.core.policy import Recipe

_FULL_NAME_SUFFIX: Final = ".mask.png"
_STEM_SUFFIX: Final = "_mask.png"
_MASK_FOLDER: Final = "masks"


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


def is_mask_name(path: str) -> bool:
    """True if the name claims to be a mask."""
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
        self._rules: list[tuple[tuple[Pattern[str], ...], Recipe]] = [
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
        # One string where one picture has the stem, as nearly all do: sets would be most of the memory.
        self._by_stem: dict[str, str | frozenset[str]] = {}

    @property
    def present(self) -> AbstractSet[str]:
        """Every name that is there, to read."""
        return self._present

    def add(self, path: str) -> None:
        """A file of this name is there, complete or not."""
        self._present.add(path)
        if self._may_be_picture(path):
            key = _stem_key(path)
            same_stem = self._by_stem.get(key)
            alone = same_stem is None or same_stem == path
            self._by_stem[key] = path if alone else self._with_stem(key) | {path}

    def remove(self, path: str) -> None:
        """No file of this name is there."""
        self._present.discard(path)
        key = _stem_key(path)
        left = self._with_stem(key) - {path}
        if len(left) > 1:
            self._by_stem[key] = left
        elif left:
            (self._by_stem[key],) = left
        else:
            self._by_stem.pop(key, None)

    def is_picture(self, path: str) -> bool:
        """True if a file of this name is to be served as a picture."""
        return not is_mask_name(path) or (self._may_be_picture(path) and not self.owners(path))

    def mask_of(self, picture: str) -> str | None:
        """The present mask of a picture."""
        certain, *by_stem = mask_names(picture)
        if certain in self._present:
            return certain
        if self._alone_with_stem(picture):
            for name in by_stem:
                if name in self._present and name != picture:
                    return name
        return None

    def owners(self, mask: str) -> tuple[str, ...]:
        """The present pictures that a mask-named file may serve (normally one; none for an orphan)."""
        if not is_mask_name(mask):
            return ()
        folder, stem = _owner_stem(mask)
        candidates: set[str] = set()
        exact = _join(folder, stem)
        if mask.endswith(_FULL_NAME_SUFFIX) and exact in self._present:
            candidates.add(exact)
        candidates |= self._with_stem(_join(folder, stem))
        candidates.discard(mask)
        return tuple(sorted(candidates))

    def masks_touching(self, picture: str) -> tuple[str, ...]:
        """The present mask-named files whose role may change when this picture comes or goes."""
        return tuple(name for name in mask_names(picture) if name in self._present and name != picture)

    def _alone_with_stem(self, picture: str) -> bool:
        return len(self._with_stem(_stem_key(picture))) <= 1

    def _with_stem(self, key: str) -> frozenset[str]:
        found = self._by_stem.get(key, frozenset())
        return frozenset((found,)) if isinstance(found, str) else found

    def _may_be_picture(self, path: str) -> bool:
        if not is_mask_name(path):
            return True
        recipe = self._recipes.serving(path)
        return recipe is not None and recipe.orphan_masks == "picture"
