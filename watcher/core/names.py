"""Which names count: pictures yes; the litter of sync clients, downloads, editors and systems no.

Rules of this file:
- The allow-list of suffixes (`is_picture`) catches the temporary suffixes that nobody has heard of. The
  deny-list (`is_ignored_name`) is for names that look like pictures and are not meant (`~$a.png`), and for
  folders full of them (`@eaDir`, a browser's `a.png.download/`).
- Names are compared without regard to case: the same file passes through systems that disagree about it.
- A name is ignored as a whole component. `Thumbs.db` is litter, `My Thumbs.db.png` is a picture.
- `is_wanted` is the one place that says which files arrive: pictures, and sidecars that say what goes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from watcher.core.globs import glob_regex

PICTURE_SUFFIXES: Final = frozenset(
    {
        "jpg",
        "jpeg",
        "jpe",
        "jfif",
        "mpo",
        "png",
        "webp",
        "tif",
        "tiff",
        "bmp",
        "dib",
        "gif",
        "heic",
        "heif",
        "hif",
        "avif",
        "jxl",
        "jp2",
    }
)
"""Formats that a person drops to have something removed."""

RAW_SUFFIXES: Final = frozenset(
    {
        "dng",
        "cr2",
        "cr3",
        "crw",
        "nef",
        "nrw",
        "arw",
        "srf",
        "sr2",
        "orf",
        "ori",
        "raf",
        "rw2",
        "raw",
        "rwl",
        "pef",
        "srw",
        "3fr",
        "fff",
        "iiq",
        "mos",
        "mef",
        "mrw",
        "x3f",
        "erf",
        "kdc",
        "dcr",
        "gpr",
    }
)
"""Camera RAW: cannot be written back. The worker says so; to ignore them silently would look like a fault."""

SIDECAR_SUFFIX: Final = ".marks.json"
"""Behind a picture's whole name: which regions of it are to go. The worker reads it."""

_IGNORED_EXACTLY: Final = frozenset(
    {
        # Windows
        "thumbs.db",
        "thumbs.db:encryptable",
        "ehthumbs.db",
        "ehthumbs_vista.db",
        "desktop.ini",
        "$recycle.bin",
        "recycler",
        "recycled",
        "system volume information",
        "dfsrprivate",  # of its file replication
        # macOS (most of its litter begins with a dot)
        "icon\r",
        "__macosx",
        "network trash folder",
        "temporary items",
        "thevolumesettingsfolder",
        # Linux
        "lost+found",
        # Synology, QNAP and other boxes: thumbnails, recycle bins, snapshots
        "@eadir",
        "@tmp",
        "@recycle",
        "@recently-snapshot",
        "@sharebin",
        "#recycle",
        "#snapshot",
        # GoodSync
        "_gsdata_",
    }
)

_IGNORED_SUFFIXES: Final = (
    # editors, and programs that write beside and rename (Microsoft and GNU alike)
    "~",
    ".tmp",
    ".temp",
    ".swp",
    ".swo",
    ".swx",
    ".kate-swp",
    ".lock",
    ".lck",
    "_exiftool_tmp",
    # browsers and downloaders; Safari's `.download` is a folder with the picture in it
    ".part",
    ".partial",  # also rclone, and OneDrive on Linux
    ".crdownload",
    ".download",
    ".opdownload",
    ".fdmdownload",
    ".downloading",
    ".dtapart",
    ".filepart",
    ".incomplete",
    ".aria2",
    ".ytdl",
    ".td",
    ".xltd",
    ".!ut",
    ".!qb",
    ".!bt",
    ".bc!",
    ".az!",
    # sync clients
    ".!sync",
    ".syncpart",
    ".synctemp",
    ".syncold",
    ".bts",
    ".ffs_tmp",
    ".ffs_lock",
    ".ffs_db",
    ".mega",
    ".icloud",
    ".nextcloud",
    ".owncloud",
    ".tacitpart",
    ".inprogress",
    ".uploading",
    ".drivedownload",
    ".driveupload",
    ".~tmp~",
    # Synology's extended attributes
    "@synoeastream",
    "@synoresource",
)

_IGNORED_PATTERNS: Final = re.compile(
    r"""
      ~\$.*                             # Office's owner files
    | ~syncthing~.*
    | \#.*\#                            # Emacs' auto-save
    | .*\.octransferid[0-9a-f]+.*       # Nextcloud, ownCloud
    | .*\.sb-[0-9a-f]{8}-[a-z0-9]{6}    # macOS' safe save, and the folder that it saves in
    | \(a\ document\ being\ saved\ by\ .*\)
    | .*\.~[0-9a-f]{1,8}                # older chunks of Nextcloud
    """,
    re.DOTALL | re.VERBOSE,
)

_SYSTEM_LITTER: Final = re.compile(r"\._.*|\.ds_store|\.localized|\.directory|\.nfs[0-9a-f]+", re.DOTALL)


def is_picture(path: str) -> bool:
    """Tell whether the name ends like a picture's, in any case. Says nothing about the content."""
    stem, dot, suffix = path.rpartition("/")[2].rpartition(".")
    return bool(stem and dot) and suffix.lower() in _ALL_SUFFIXES


def is_sidecar(path: str) -> bool:
    """Tell whether the name is that of a picture's sidecar."""
    return path.endswith(SIDECAR_SUFFIX) and is_picture(path.removesuffix(SIDECAR_SUFFIX))


def is_ignored_name(name: str) -> bool:
    """Tell whether one path component, file or folder, is nobody's picture by its name alone."""
    lowered = name.lower()
    return (
        # dot-names: Syncthing, Dropbox, MEGA, Resilio, rsync, Finder, vim, file managers, and our own
        lowered.startswith(".")
        or lowered in _IGNORED_EXACTLY
        or lowered.endswith(_IGNORED_SUFFIXES)
        or _IGNORED_PATTERNS.fullmatch(lowered) is not None
    )


def is_ignored(path: str, extra: tuple[str, ...] = ()) -> bool:
    """Tell whether the path, or a folder on its way, is ignored.

    Args:
        path: relative to the inbox, with `/`.
        extra: the user's `[arrivals] ignore`: globs as in `watcher.core.globs`, with two things that people
            expect of an ignore list: a pattern without `/` means that name in any folder, and a pattern
            that matches a folder means all that is in it.

    Raises:
        ValueError: a pattern is malformed; the message says what to write instead.
    """
    if any(is_ignored_name(name) for name in path.split("/")):
        return True
    return bool(extra) and _ignore_rule(extra).match(path) is not None


def is_wanted(path: str, extra: tuple[str, ...] = ()) -> bool:
    """Tell whether a file at this path is one that arrives. The only place that decides it.

    Raises:
        ValueError: as `is_ignored`.
    """
    return (is_picture(path) or is_sidecar(path)) and not is_ignored(path, extra)


def is_hidden_sibling(path: str, extra: tuple[str, ...] = ()) -> bool:
    """Tell whether this dot-file may be the beginning of a picture under another name.

    macOS writes a screenshot as `.Screenshot 1.png` and renames it, and its notifications sometimes tell of
    the hidden name only. Litter of the system and whatever lies in ignored folders is not that.
    """
    folder, _, name = path.rpartition("/")
    if not name.startswith(".") or _SYSTEM_LITTER.fullmatch(name.lower()):
        return False
    return not folder or not is_ignored(folder, extra)


_ALL_SUFFIXES: Final = PICTURE_SUFFIXES | RAW_SUFFIXES


@lru_cache(maxsize=16)
def _ignore_rule(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(_ignore_regex(pattern) for pattern in patterns), re.DOTALL)


def _ignore_regex(pattern: str) -> str:
    anywhere = pattern if "/" in pattern else f"**/{pattern}"
    inside = glob_regex(anywhere).removesuffix(r"\Z")
    return rf"{inside}(?:/.*)?\Z"
