"""Regions: boxes and polygons that say what is to go, in a sidecar file or in a recipe.

Owns the one schema of both, and how a wrong one is put into words. `python -m watcher.regions` prints it as a
JSON Schema, which is kept in docs/marks.schema.json.

Rules of this module:
- The structs are the law, the checks are the words: a value passes the checks and then the structs, and what
  only the structs refuse is told in msgspec's words.
- An error names the field that is wrong, counted from 1 as everywhere in this program's messages, says
  what is wrong with it, and what to write instead.
- Nothing here knows a picture: whether a region lies in it is found out where it is drawn.
- Whatever the bytes of a sidecar are, the answer is a `Sidecar` or a `RegionError`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeGuard, TypeVar

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REGIONS: Final = 10_000
MAX_POINTS: Final = 10_000
MIN_POINTS: Final = 3
MAX_SIDECAR_BYTES: Final = 10_000_000
MAX_NAME: Final = 200
MAX_PX: Final = 1_000_000_000
"""More than any picture that is served has pixels; so a position is exact in a 64-bit float to 1e-7 px."""
_EXACT_DIGITS: Final = 15
"""Whole numbers of so many digits are exact; a longer one is only looked at to be refused."""
_SHOWN_CHARS: Final = 60
_MAX_LETTER_BYTES: Final = 4
"""Of UTF-8."""
_NOTHING: Final = b"\0 \t\r\n"
"""Blanks, and the zeros that a sync client fills a file with before its bytes come."""

_DIGITS: Final = r"[0-9]{1,4}(\.[0-9]{1,9})? ?%$"
_PERCENTAGE: Final = rf"^[-+]?{_DIGITS}"
_PERCENTAGE_ABOVE_0: Final = rf"^\+?(?=[0-9.]*[1-9]){_DIGITS}"

Distance: TypeAlias = Annotated[
    Annotated[float, Meta(ge=-MAX_PX, le=MAX_PX)] | Annotated[str, Meta(pattern=_PERCENTAGE)],
    Meta(
        title="Distance",
        description="How far from the corner: a number of pixels, or a percentage of the picture's width "
        '(for x) or height (for y), such as "12.5%".',
    ),
]
Extent: TypeAlias = Annotated[
    Annotated[float, Meta(gt=0, le=MAX_PX)] | Annotated[str, Meta(pattern=_PERCENTAGE_ABOVE_0)],
    Meta(
        title="Extent",
        description="How wide or high: a number of pixels, or a percentage of the picture's width or height, "
        'such as "12.5%". Above 0.',
    ),
]
Box: TypeAlias = Annotated[
    tuple[Distance, Distance, Extent, Extent],
    Meta(
        description="x, y, width and height: its corner that is nearest to `corner`, and how far it extends "
        "from there into the picture."
    ),
]
Polygon: TypeAlias = Annotated[
    tuple[tuple[Distance, Distance], ...],
    Meta(
        min_length=MIN_POINTS,
        max_length=MAX_POINTS,
        description="The points [x, y] of its outline, in order. Where the outline crosses itself, a place "
        "that it encloses twice is outside.",
    ),
]
Corner: TypeAlias = Annotated[
    Literal["top-left", "top-right", "bottom-left", "bottom-right"],
    Meta(description="The corner of the picture that distances are counted from, towards its inside."),
]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME, description="What it is, for whoever reads this.")]
Side: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PX)]
Size: TypeAlias = Annotated[
    tuple[Side, Side],
    Meta(
        description="Width and height of the picture that pixels are counted on, as a person sees it. If the "
        "picture has another size of the same shape, they are scaled. Left out: the picture itself."
    ),
]

_BOX_WORDS: Final = ("x", "y", "width", "height")
_POINT_WORDS: Final = ("x", "y")
_SIZE_WORDS: Final = ("width", "height")
_SIDE_OF: Final = {"x": "width", "y": "height", "width": "width", "height": "height"}
"""Of which side of the picture a percentage is taken."""
_REGION_REMEDY: Final = 'write {"box": [x, y, width, height]} or {"polygon": [[x, y], [x, y], [x, y]]}'
_SIDECAR_REMEDY: Final = 'write {"schema": 1, "regions": [{"box": [x, y, width, height]}]}'
_CORNERS: Final[tuple[str, ...]] = ("top-left", "top-right", "bottom-left", "bottom-right")

EXAMPLE: Final[Mapping[str, object]] = {
    "schema": 1,
    "size": [4000, 3000],
    "regions": [
        {"box": [120, 80, 640, 200]},
        {"box": ["78%", "90%", "22%", "10%"], "name": "date stamp"},
        {"box": [20, 20, 400, 60], "corner": "bottom-right"},
        {"polygon": [[900, 700], [1300, 650.5], [1250, 1100]], "name": "passer-by"},
    ],
}
"""A sidecar that uses every field."""


class RegionError(ValueError):
    """A sidecar or a region that cannot be used.

    Attributes:
        field: what is wrong, as `regions[3].box[4] (height)`; empty for the whole.
        complaint: what is wrong with it.
        remedy: what to write instead.
        is_cut_short: the file may only not be complete yet: it is empty, or ends in the middle.
    """

    def __init__(self, field: str, complaint: str, remedy: str, *, is_cut_short: bool = False) -> None:
        super().__init__(f"{field}: {complaint}" if field else complaint)
        self.field = field
        self.complaint = complaint
        self.remedy = remedy
        self.is_cut_short = is_cut_short

    @property
    def reason(self) -> str:
        """Field and complaint."""
        return str(self)

    def within(self, parent: str) -> RegionError:
        """Return the same error of a field that lies in another: `box[1]` within `regions[2]`."""
        joint = "." if self.field and not self.field.startswith("[") else ""
        return RegionError(f"{parent}{joint}{self.field}", self.complaint, self.remedy)


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One box or one polygon that is to go, on the picture as a person sees it."""

    box: Box | None = None
    polygon: Polygon | None = None
    corner: Corner = "top-left"
    name: Name | None = None


class Sidecar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to go from the picture IMG.jpg, in the file IMG.jpg.marks.json beside it."""

    schema: Annotated[Literal[1], Meta(description="The version of this format.")]
    regions: Annotated[
        tuple[Region, ...],
        Meta(max_length=MAX_REGIONS, description="What is to go. An empty list says: nothing."),
    ]
    size: Size | None = None
    schema_file: (
        Annotated[str, Meta(description="Where this JSON Schema lies, for editors that ask for it.")] | None
    ) = msgspec.field(default=None, name="$schema")


_T = TypeVar("_T")


def sidecar_from(data: bytes) -> Sidecar:
    """Read a sidecar file.

    Args:
        data: the file's bytes: JSON in UTF-8, with or without a byte order mark.

    Raises:
        RegionError: it cannot be used; says which field, why, and what to write instead.
    """
    value = _json_value(_text(data))
    if not isinstance(value, dict):
        raise RegionError("", f"a sidecar is an object, not {_kind(value)}", _SIDECAR_REMEDY)
    _check_sidecar(value)
    return _converted(value, Sidecar)


def regions_from(values: object) -> tuple[Region, ...]:
    """Read a list of regions, as JSON or TOML gives it.

    Raises:
        RegionError: one of them cannot be used; its field begins with `regions`.
    """
    _check_regions(values)
    return _converted(values, tuple[Region, ...])


def region_from(value: object) -> Region:
    """Read one region, as JSON or TOML gives it.

    Raises:
        RegionError: it cannot be used; its field is counted from the region (`box[4] (height)`).
    """
    _check_region(value)
    return _converted(value, Region)


def place_of(index: int, name: object = None) -> str:
    """Return what a region is called in messages: `regions[3]`, or `regions[3] ("date stamp")`.

    Args:
        index: its place in the list, from 0.
        name: its name, if it has one.
    """
    place = f"regions[{index + 1}]"
    return f"{place} ({_shown(name)})" if isinstance(name, str) and name else place


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a sidecar. Its `$defs` hold the schema of one region too.

    It cannot say all: that a field stands twice in an object, the size of the file, and infinity, which is no
    JSON, are left to the code.
    """
    made = _without_null(msgspec.json.schema(Sidecar))
    named = {"Distance": msgspec.json.schema(Distance), "Extent": msgspec.json.schema(Extent)}
    definitions = {name: _with_references(node, named) for name, node in made["$defs"].items()}
    sidecar = definitions.pop("Sidecar")
    definitions["Region"]["oneOf"] = [{"required": ["box"]}, {"required": ["polygon"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **sidecar,
        "examples": [EXAMPLE],
        "$defs": {**definitions, **named},
    }


def _without_null(node: Any) -> Any:  # noqa: ANN401 - a JSON Schema is any JSON
    """Take out null, by which the structs say that a field was left out, and a file must not."""
    if isinstance(node, list):
        return [_without_null(below) for below in node if below != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _without_null(below) for key, below in node.items() if not (key == "default" and below is None)
    }
    choice = kept.pop("anyOf", None)
    if choice is None:
        return kept
    return {**kept, **choice[0]} if len(choice) == 1 else {**kept, "anyOf": choice}


def _with_references(node: Any, named: Mapping[str, object]) -> Any:  # noqa: ANN401 - a JSON Schema is any JSON
    for name, schema in named.items():
        if node == schema:
            return {"$ref": f"#/$defs/{name}"}
    if isinstance(node, dict):
        return {key: _with_references(below, named) for key, below in node.items()}
    if isinstance(node, list):
        return [_with_references(below, named) for below in node]
    return node


# --- from bytes to values ----------------------------------------------------------------------------------


def _text(data: bytes) -> str:
    if len(data) > MAX_SIDECAR_BYTES:
        raise RegionError(
            "",
            f"a sidecar of {len(data):,} bytes is too large",
            f"write at most {MAX_SIDECAR_BYTES:,} bytes, or draw the marks into a mask file",
        )
    if not data.strip(_NOTHING):
        raise RegionError("", "the sidecar is empty", _SIDECAR_REMEDY, is_cut_short=True)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data.rstrip(b"\0")[:2]:
        raise RegionError("", "the sidecar is in UTF-16 or UTF-32", "save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        in_last_letter = error.start > len(data.rstrip(b"\0")) - _MAX_LETTER_BYTES
        raise RegionError(
            "",
            f"line {line} of the sidecar is not UTF-8",
            "save it as UTF-8",
            is_cut_short=in_last_letter,
        ) from error


def _json_value(text: str) -> object:
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=float,  # not finite: refused where it stands, with the field's name
        )
    except json.JSONDecodeError as error:
        raise RegionError(
            "",
            f"line {error.lineno}, column {error.colno} of the sidecar is not JSON: {error.msg}",
            "mend it there; a JSON editor shows such places. Texts and names of fields stand in double "
            "quotes, there are no comments, and no comma behind the last of a list",
            is_cut_short=_is_cut_short(error, text),
        ) from error
    except RecursionError as error:
        raise RegionError("", "the sidecar's brackets are nested too deep", _SIDECAR_REMEDY) from error


def _is_cut_short(error: json.JSONDecodeError, text: str) -> bool:
    """Whether more text could mend it: a whole sidecar ends with the bracket that closes it."""
    written = text.strip(_NOTHING.decode())
    if error.msg == "Extra data" or not written.startswith("{"):
        return False
    at_the_end = error.pos >= len(text.rstrip(_NOTHING.decode()))
    return at_the_end or not written.endswith("}") or error.msg.startswith("Unterminated string")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        (twice, _), *_ = counts.most_common(1)
        raise RegionError(
            "", f"the field {_shown(twice)} stands twice in the same brackets", "take one of them out"
        )
    return made


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _EXACT_DIGITS else float(digits)


def _number(digits: str) -> int | float:
    """A number with a point or an exponent; JSON's 4000.0 is the whole number 4000."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) <= MAX_PX else value


# --- checks, and their words -------------------------------------------------------------------------------


def _check_sidecar(value: dict[str, object]) -> None:
    _check_known(value, Sidecar)
    if "schema" not in value:
        raise RegionError("schema", "is missing", f"{_SIDECAR_REMEDY}: 1 is the version of the format")
    version = value["schema"]
    if not _is_number(version) or version != 1:
        raise RegionError("schema", f"{_shown(version)} is not a version that is known", 'write "schema": 1')
    if "regions" not in value:
        raise RegionError("regions", "is missing", f'{_SIDECAR_REMEDY}; "regions": [] if nothing is to go')
    if "size" in value:
        _check_size(value["size"])
    if not isinstance(value.get("$schema", ""), str):
        raise RegionError(
            "$schema", f"{_shown(value['$schema'])} is no address", "write a text, or leave it out"
        )
    _check_regions(value["regions"])


def _check_known(value: dict[str, object], kind: type[msgspec.Struct]) -> None:
    known = kind.__struct_encode_fields__
    unknown = next((name for name in value if name not in known), None)
    if unknown is None:
        return
    near = difflib.get_close_matches(str(unknown).lower()[:_SHOWN_CHARS], known, n=1)
    fields = ", ".join(f'"{field}"' for field in known)
    raise RegionError(
        "",
        f"unknown field {_shown(unknown)}",
        f'did you mean "{near[0]}"?' if near else f"take it out; the fields there are {fields}",
    )


def _check_size(size: object) -> None:
    remedy = 'write the width and the height of the picture in pixels, "size": [4000, 3000], or leave it out'
    if not _is_list(size) or len(size) != len(_SIZE_WORDS):
        raise RegionError("size", f"{_shown(size)} is not a width and a height", remedy)
    for index, (side, word) in enumerate(zip(size, _SIZE_WORDS, strict=True)):
        if not isinstance(side, int) or isinstance(side, bool) or not 1 <= side <= MAX_PX:
            raise RegionError(
                f"size[{index + 1}] ({word})", f"{_shown(side)} is no {word} in whole pixels", remedy
            )


def _check_regions(values: object) -> None:
    if not _is_list(values):
        raise RegionError("regions", f"{_shown(values)} is not a list", f"in [ ], for each: {_REGION_REMEDY}")
    if len(values) > MAX_REGIONS:
        raise RegionError(
            "regions",
            f"{len(values):,} regions are too many",
            f"write at most {MAX_REGIONS:,}, or draw them all into one mask file",
        )
    for index, value in enumerate(values):
        try:
            _check_region(value)
        except RegionError as error:
            name = value.get("name") if isinstance(value, dict) else None
            raise error.within(place_of(index, name)) from None


def _check_region(value: object) -> None:
    if not isinstance(value, dict):
        raise RegionError("", f"{_shown(value)} is not a region", _REGION_REMEDY)
    _check_known(value, Region)
    if ("box" in value) == ("polygon" in value):
        has = "both a box and a polygon" if "box" in value else "neither a box nor a polygon"
        raise RegionError("", f"it has {has}", f"{_REGION_REMEDY}: one of the two for each region")
    if "box" in value:
        _check_box(value["box"])
    else:
        _check_polygon(value["polygon"])
    _check_corner(value)
    _check_name(value)


def _check_box(box: object) -> None:
    remedy = 'write "box": [x, y, width, height]'
    if not _is_list(box) or len(box) != len(_BOX_WORDS):
        raise RegionError("box", f"{_shown(box)} is not a list of x, y, width and height", remedy)
    for index, (value, word) in enumerate(zip(box, _BOX_WORDS, strict=True)):
        _check_length(value, word, f"box[{index + 1}]")


def _check_polygon(polygon: object) -> None:
    if not _is_list(polygon):
        remedy = 'write "polygon": [[x, y], [x, y], [x, y]]'
        raise RegionError("polygon", f"{_shown(polygon)} is not a list of points", remedy)
    if not MIN_POINTS <= len(polygon) <= MAX_POINTS:
        raise RegionError(
            "polygon",
            f"it has {len(polygon):,} points",
            f"draw it with {MIN_POINTS} to {MAX_POINTS:,} points; a thin or small thing can be a box",
        )
    for index, point in enumerate(polygon):
        try:
            _check_point(point)
        except RegionError as error:
            raise error.within(f"polygon[{index + 1}]") from None


def _check_point(point: object) -> None:
    if not _is_list(point) or len(point) != len(_POINT_WORDS):
        raise RegionError("", f"{_shown(point)} is not a point", "write each point as [x, y]")
    _check_length(point[0], "x", "[1]")
    _check_length(point[1], "y", "[2]")


def _check_length(value: object, word: str, place: str) -> None:
    above_0 = word in _SIZE_WORDS
    if _is_length(value, above_0=above_0):
        return
    if above_0 and (_is_length(value, above_0=False) or (_is_number(value) and value <= 0)):
        complaint = f"{_shown(value)} is no {word}: it must be above 0"
    elif _is_number(value) and math.isfinite(value):
        complaint = f"{_shown(value)} is more pixels than a picture can have"
    else:
        complaint = f'{_shown(value)} is neither a number of pixels nor a percentage such as "12.5%"'
    side = _SIDE_OF[word]
    raise RegionError(
        f"{place} ({word})",
        complaint,
        f'write 120 for pixels, or "12.5%" for a share of the picture\'s {side}',
    )


def _is_length(value: object, *, above_0: bool) -> bool:
    if isinstance(value, str):
        return re.fullmatch(_PERCENTAGE_ABOVE_0 if above_0 else _PERCENTAGE, value) is not None
    return _is_number(value) and value <= MAX_PX and (value > 0 if above_0 else value >= -MAX_PX)


def _check_corner(value: dict[str, object]) -> None:
    corner = value.get("corner", _CORNERS[0])
    if corner not in _CORNERS:
        choice = ", ".join(f'"{name}"' for name in _CORNERS)
        raise RegionError("corner", f"{_shown(corner)} is no corner", f"write one of {choice}")


def _check_name(value: dict[str, object]) -> None:
    name = value.get("name", "")
    if not isinstance(name, str) or len(name) > MAX_NAME:
        remedy = f"write a text of at most {MAX_NAME} characters"
        raise RegionError("name", f"{_shown(name)} is no name", remedy)


def _converted(value: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:  # what the checks have no words for
        raise RegionError("", str(error), _REGION_REMEDY) from error


def _is_list(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, list | tuple)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _shown(value: object) -> str:
    """Write a value as JSON does: on one line, printable, and not too long."""
    try:
        plain = json.dumps(value, ensure_ascii=False, default=str)
        shown = plain if plain.isprintable() else json.dumps(value, default=str)
    except RecursionError:
        return "a heap of brackets"
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[: _SHOWN_CHARS - 3]}..."


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
