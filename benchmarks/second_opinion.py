"""What exiftool sees in a picture's source that it does not see in its result (a part of others).

What this module owns: running exiftool over many files at once, and telling which of the tags that differ are
explained by what the record says was dropped. exiftool knows the maker notes of most makers, Photoshop's
resources, XMP, and what lies behind the end of a file. Rules of this module:

- A tag that is a place in the file, a time of the file, or computed from others is no difference.
- A value that is only shorter to print is compared in full: exiftool is asked for numbers, not for words.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Tags: TypeAlias = "dict[str, list[str]]"
"""Values by `Group:Tag`; a tag may come several times."""

_HEAD: Final = "======== "
_LINE: Final = re.compile(r"\[(?P<group>[^\]]+)\]\s+(?P<tag>\S+)\s*: ?(?P<value>.*)")
_OF_THE_FILE: Final = frozenset({"System", "Composite", "ExifTool", "Adobe"})
"""Groups that tell of the file, of exiftool, or of how JPEG's pixels are coded."""
_NO_DIFFERENCE: Final = re.compile(
    r".*(Offsets?|ByteCounts?|Start|Pointer|RowsPerStrip|Length|IPTCDigest)"
    r"|File:(File\w+|Image(Width|Height)|MIMEType|ExifByteOrder|BMPVersion|Num(Important)?Colors|(Red|Green|Blue|Alpha)Mask)|RIFF:\w*Size"
    r"|QuickTime:(Media\w+|Free|HEVC\w+|General?\w+|Gen\w+|Constraint\w+|MinSpatial\w+|Parallelism\w+"
    r"|(Average|Constant)FrameRate|NumTemporalLayers|TemporalIDNested|AV1Config\w+|SeqLevelIdx0|CleanAperture)"
    r"|GIF:(GIFVersion|ColorResolutionDepth)|PNG:(Palette|Transparency)"
)
"""Places, how a codec was set, palette entries that no pixel uses, and what pixels are compared for."""


def read(program: str, paths: Sequence[Path]) -> dict[Path, Tags]:
    """Let exiftool read many files.

    Args:
        program: how to start it.
        paths: of the files.

    Raises:
        OSError: it cannot be started.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".args", encoding="utf-8") as arguments:
        arguments.writelines(f"{path}\n" for path in paths)
        arguments.flush()
        command = [program, "-G1", "-a", "-u", "-s", "-n", "-m", "-@", arguments.name]
        said = subprocess.run(command, capture_output=True, check=False).stdout.decode("utf-8", "replace")
    return _files_of(said, paths)


def _files_of(said: str, paths: Sequence[Path]) -> dict[Path, Tags]:
    found: dict[Path, Tags] = {path: {} for path in paths}
    by_name = {str(path): path for path in paths}
    tags: Tags = {} if len(paths) != 1 else found[paths[0]]
    for line in said.splitlines():
        if line.startswith(_HEAD):
            tags = found[by_name[line.removeprefix(_HEAD)]]
        elif (match := _LINE.fullmatch(line)) and match["group"] not in _OF_THE_FILE:
            name = f"{match['group']}:{match['tag']}"
            if not _NO_DIFFERENCE.fullmatch(name):
                tags.setdefault(name, []).append(match["value"])
    return found


_EXIF_GROUPS: Final = r"(IFD0|IFD1|ExifIFD|GPS|InteropIFD|MakerNotes?|[A-Z]\w+(?<!PNG)(?<!File)):.*"
_COMPANIONS: Final = (
    r"XMP-(GContainer|Container|Item|hdrgm|GCamera|Camera|GDepth|GImage|HDRGainMap|xmpNote):.*"
)
_EXPLAINED: Final = (
    ("EXIF thumbnail", r"IFD1:.*"),
    ("EXIF preview", r".*:(Preview|Thumbnail|OtherImage|JpgFromRaw)\w*"),
    ("Photoshop thumbnail", r"Photoshop:PhotoshopThumbnail|Photoshop:.*BGR.*"),
    ("XMP thumbnail", r"XMP-\w+:(Thumbnail|PageImage)\w*"),
    ("TIFF thumbnail", r"(IFD[1-9]\d*|SubIFD\d*):.*"),
    ("gain map", rf"XMP-apdi:.*|Meta:MetaImageSize|{_COMPANIONS}"),
    ("depth map", r"XMP-(apdi|depthData|depthBlurEffect|portraitLightingEffect):.*"),
    ("maker", r"Meta:.*"),
    ("Samsung", r"Samsung:.*"),
    ("run-length compression", r"File:Compression"),
    ("tEXt", r"PNG:TextualData"),
    ("Photoshop layers", r"Photoshop:(Layer|Channel|Uses|Has|NumSlices|Document)\w*|IFD0:ImageSourceData"),
    ("iCCP", r"PNG:(ICC_Profile|ProfileName)|ICC.*"),
    ("JFXX thumbnail", r"JFXX:.*"),
    ("JFIF thumbnail", r"JFIF:Thumbnail.*"),
    ("FlashPix data", r"FlashPix:.*"),
    ("multi-picture index", r"MP(F|Image)\d+:.*"),
    ("companion", rf"MP(F|Image)\d+:.*|{_COMPANIONS}"),
    ("motion photo", rf"Samsung:.*|{_COMPANIONS}"),
    ("content credentials", r"JUMBF:.*|CBOR:.*|JSON:.*"),
    ("behind the end", r"(AFCP|IPTC\d|FotoStation|PhotoMechanic|CanonVRD|MIE.*|Samsung|Vivo|MPImage\d+):.*"),
    ("extended XMP", r"XMP-.*"),
    ("Raw profile", _EXIF_GROUPS),
    ("interlacing", r"PNG:Interlace"),
    ("bKGD", r"PNG:BackgroundColor"),
    ("animation data", r"PNG:(Animation|APNG)\w*|APNG:.*"),
)
"""What the record says, and the tags whose loss it explains."""


_INNER_PICTURES: Final = ("thumbnail", "gain map", "depth map", "alternative picture")
_OF_INNER_PICTURES: Final = re.compile(r"(QuickTime|File|Meta|XMP-x|ICC(_Profile|-\w+)\d):.*")
"""What exiftool tells of each picture inside a HEIF file in turn, and cannot tell apart."""


def differences(before: Tags, after: Tags, dropped: Sequence[str]) -> tuple[list[str], list[str]]:
    """Name the tags that are lost, changed or new: those that the record explains, and the others."""
    named: list[str] = []
    unnamed: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = _values(name, before), _values(name, after)
        if old == new:
            continue
        what = "lost" if not new else "new" if not old else "fewer" if new < old else "changed"
        explained = _is_explained(name, dropped) or (
            what in ("lost", "fewer") and _is_of_inner_picture(name, dropped)
        )
        (named if explained else unnamed).append(f"{name} {what}")
    return named, unnamed


def _values(name: str, tags: Tags) -> Counter[str]:
    values = tags.get(name, [])
    # The pictures inside a HEIF file may share a property or have one each.
    return Counter(set(values) if name.startswith("QuickTime:Image") else values)


def _is_explained(name: str, dropped: Sequence[str]) -> bool:
    return any(
        word in said and re.fullmatch(pattern, name) for said in dropped for word, pattern in _EXPLAINED
    )


def _is_of_inner_picture(name: str, dropped: Sequence[str]) -> bool:
    return _OF_INNER_PICTURES.fullmatch(name) is not None and any(
        word in said for said in dropped for word in _INNER_PICTURES
    )


def version(program: str) -> str:
    """Say which exiftool it is."""
    return subprocess.run([program, "-ver"], capture_output=True, check=True, text=True).stdout.strip()
