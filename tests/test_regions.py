"""Regions and sidecars: what is taken, what is refused in which words, and the JSON Schema that agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from watcher import regions
from watcher.regions import (
    EXAMPLE,
    MAX_POINTS,
    MAX_REGIONS,
    MAX_SIDECAR_BYTES,
    Region,
    RegionError,
    Sidecar,
    json_schema,
    region_from,
    regions_from,
    sidecar_from,
)

PAGE = Path(__file__).parents[1] / "docs" / "marks.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
BOX = {"box": [1, 2, 3, 4]}
TRIANGLE = [[0, 0], [9, 0], [0, 9]]


def sidecar(*listed: object, **more: object) -> bytes:
    return json.dumps({"schema": 1, "regions": list(listed), **more}).encode()


def refusal(data: bytes) -> RegionError:
    with pytest.raises(RegionError) as caught:
        sidecar_from(data)
    assert caught.value.remedy
    assert len(caught.value.reason) < 400
    return caught.value


def schema_takes(data: bytes) -> bool:
    taken: bool = VALIDATOR.is_valid(json.loads(data.decode("utf-8-sig")))
    return taken


# --- what is taken -----------------------------------------------------------------------------------------

TAKEN = {
    "nothing is to go": (sidecar(), Sidecar(1, ())),
    "a box of pixels": (sidecar(BOX), Sidecar(1, (Region(box=(1, 2, 3, 4)),))),
    "a box of shares": (
        sidecar({"box": ["78%", "-0.5%", "22 %", "+10.25%"]}),
        Sidecar(1, (Region(box=("78%", "-0.5%", "22 %", "+10.25%")),)),
    ),
    "a polygon from a corner, with a name": (
        sidecar({"polygon": [[0, -1.5], ["9%", 0], [0, 9]], "corner": "bottom-right", "name": "Größe"}),
        Sidecar(1, (Region(polygon=((0, -1.5), ("9%", 0), (0, 9)), corner="bottom-right", name="Größe"),)),
    ),
    "its picture's size": (sidecar(size=[4000, 3000.0]), Sidecar(1, (), size=(4000, 3000))),
    "an address for editors": (
        sidecar(**{"$schema": "marks.schema.json"}),
        Sidecar(1, (), schema_file="marks.schema.json"),
    ),
    "a byte order mark, as Windows editors write": (
        b"\xef\xbb\xbf" + sidecar(BOX),
        sidecar_from(sidecar(BOX)),
    ),
    "blanks around, other line ends": (b"\r\n " + sidecar(BOX) + b"\r\n\n", sidecar_from(sidecar(BOX))),
    "numbers written otherwise": (
        b'{"schema": 1.0, "regions": [{"box": [1e2, -0.0, 1E+3, 0.25]}]}',
        Sidecar(1, (Region(box=(100, 0, 1000, 0.25)),)),
    ),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken_is_what_was_written(kind: str) -> None:
    data, meant = TAKEN[kind]
    assert sidecar_from(data) == meant
    assert schema_takes(data)


# --- what is refused, and in which words -------------------------------------------------------------------

REFUSED = {
    "no number, no share": (
        sidecar(BOX, {"box": [1, 2, 3, "12 %%"]}),
        'regions[2].box[4] (height): "12 %%" is neither a number of pixels nor a percentage such as "12.5%"',
        'write 120 for pixels, or "12.5%" for a share of the picture\'s height',
    ),
    "a number as a text": (
        sidecar({"box": ["1", 2, 3, 4]}),
        'regions[1].box[1] (x): "1" is neither',
        "120 for pixels",
    ),
    "a comma for a point": (sidecar({"box": [1, "2,5%", 3, 4]}), 'box[2] (y): "2,5%" is neither', "12.5%"),
    "an exponent": (sidecar({"box": ["1e1%", 2, 3, 4]}), '"1e1%" is neither', "12.5%"),
    "another alphabet's digits": (sidecar({"box": ["١٢%", 2, 3, 4]}), '"١٢%" is neither', "12.5%"),
    "true": (sidecar({"box": [True, 2, 3, 4]}), "box[1] (x): true is neither", "120 for pixels"),
    "null": (sidecar({"box": [None, 2, 3, 4]}), "box[1] (x): null is neither", "120 for pixels"),
    "no width": (
        sidecar({"box": [1, 2, 0, 4]}),
        "box[3] (width): 0 is no width: it must be above 0",
        "width",
    ),
    "less than no height": (
        sidecar({"box": [1, 2, 3, -4]}),
        "box[4] (height): -4 is no height",
        "above 0|height",
    ),
    "a share of nothing": (sidecar({"box": [1, 2, "0.00%", 4]}), '"0.00%" is no width: it must be', "width"),
    "a share below nothing": (sidecar({"box": [1, 2, "-5%", 4]}), '"-5%" is no width: it must be', "width"),
    "far too many pixels": (
        sidecar({"box": [10**400, 2, 3, 4]}),
        "box[1] (x): Infinity is neither a number of pixels",
        "120 for pixels",
    ),
    "too many pixels": (
        sidecar({"box": [-(10**10), 2, 3, 4]}),
        "-10000000000 is more pixels than a picture",
        "pixels",
    ),
    "too wide": (
        sidecar({"box": [1, 2, 1_000_000_000.5, 4]}),
        "is more pixels than a picture can have",
        "pixels",
    ),
    "three numbers": (
        sidecar({"box": [1, 2, 3]}),
        "regions[1].box: [1, 2, 3] is not a list of x, y, width and height",
        'write "box": [x, y, width, height]',
    ),
    "five numbers": (
        sidecar({"box": [1, 2, 3, 4, 5]}),
        "box: [1, 2, 3, 4, 5] is not a list of x, y",
        '"box":',
    ),
    "a box by fields": (
        sidecar({"box": {"x": 1, "y": 2, "width": 3, "height": 4}}),
        'box: {"x": 1, "y": 2, "width": 3, "height": 4} is not a list of x, y',
        '"box": [x, y, width, height]',
    ),
    "two points": (
        sidecar({"polygon": TRIANGLE[:2]}),
        "regions[1].polygon: it has 2 points",
        "3 to 10,000 points",
    ),
    "a point with three coordinates": (
        sidecar({"polygon": [*TRIANGLE, [1, 2, 3]], "name": "sail"}),
        'regions[1] ("sail").polygon[4]: [1, 2, 3] is not a point',
        "write each point as [x, y]",
    ),
    "a point that is none": (sidecar({"polygon": [1, 2, 3]}), "polygon[1]: 1 is not a point", "[x, y]"),
    "a coordinate that is none": (
        sidecar({"polygon": [*TRIANGLE, [1, "b"]]}),
        'regions[1].polygon[4][2] (y): "b" is neither',
        "height",
    ),
    "points that are none": (
        sidecar({"polygon": "0,0 1,1 2,2"}),
        "is not a list of points",
        '"polygon": [[x, y]',
    ),
    "both shapes": (
        sidecar({**BOX, "polygon": TRIANGLE}),
        "regions[1]: it has both a box and a polygon",
        "one of the two",
    ),
    "neither shape": (
        sidecar({"name": "x"}),
        'regions[1] ("x"): it has neither a box nor a polygon',
        "one of the two",
    ),
    "an empty shape": (sidecar({"box": None}), "box: null is not a list of x, y", '"box":'),
    "a bare list for a region": (
        sidecar([1, 2, 3, 4]),
        "regions[1]: [1, 2, 3, 4] is not a region",
        '{"box": [',
    ),
    "no such corner": (
        sidecar({**BOX, "corner": "lower-right"}),
        'regions[1].corner: "lower-right" is no corner',
        'write one of "top-left", "top-right", "bottom-left", "bottom-right"',
    ),
    "a corner that is a list": (
        sidecar({**BOX, "corner": ["top-left"]}),
        'corner: ["top-left"] is no',
        "top-left",
    ),
    "a name that is a number": (sidecar({**BOX, "name": 5}), "regions[1].name: 5 is no name", "a text"),
    "a name that is a novel": (sidecar({**BOX, "name": "x" * 201}), "is no name", "at most 200 characters"),
    "a misspelt field of a region": (
        sidecar({**BOX, "Cornr": "top-left"}),
        'regions[1]: unknown field "Cornr"',
        'did you mean "corner"?',
    ),
    "a field of something else": (
        sidecar({**BOX, "rotation": 3}),
        'regions[1]: unknown field "rotation"',
        'the fields there are "box", "polygon", "corner", "name"',
    ),
    "a misspelt field of the file": (
        b'{"schema": 1, "region": []}',
        'unknown field "region"',
        'did you mean "regions"?',
    ),
    "no version": (b'{"regions": []}', "schema: is missing", '"schema": 1'),
    "another version": (
        b'{"schema": 2, "regions": []}',
        "schema: 2 is not a version that is known",
        '"schema": 1',
    ),
    "a version that is true": (
        b'{"schema": true, "regions": []}',
        "schema: true is not a version",
        '"schema": 1',
    ),
    "no regions": (b'{"schema": 1}', "regions: is missing", '"regions": [] if nothing is to go'),
    "regions that are no list": (
        b'{"schema": 1, "regions": {"box": [1, 2, 3, 4]}}',
        "is not a list",
        "in [ ]",
    ),
    "regions that are null": (b'{"schema": 1, "regions": null}', "regions: null is not a list", "in [ ]"),
    "a size by fields": (sidecar(size={"width": 1, "height": 1}), "size: {", '"size": [4000, 3000]'),
    "a size of one": (sidecar(size=[4000]), "size: [4000] is not a width and a height", "leave it out"),
    "a size of no height": (
        sidecar(size=[4000, 0]),
        "size[2] (height): 0 is no height in whole pixels",
        "[4000, 3000]",
    ),
    "a size of a half": (
        sidecar(size=[4000.5, 1]),
        "size[1] (width): 4000.5 is no width in whole pixels",
        "4000",
    ),
    "a size that is true": (sidecar(size=[True, 1]), "size[1] (width): true is no width", "4000"),
    "a size that is null": (sidecar(size=None), "size: null is not a width and a height", "leave it out"),
    "an address that is none": (sidecar(**{"$schema": 1}), "$schema: 1 is no address", "leave it out"),
    "a list at the top": (
        json.dumps([BOX]).encode(),
        "a sidecar is an object, not a list",
        '{"schema": 1, "regions"',
    ),
    "a number at the top": (b"1", "a sidecar is an object, not a number", '{"schema": 1'),
    "a text at the top": (b'"schema"', "a sidecar is an object, not a text", '{"schema": 1'),
    "null at the top": (b"null", "a sidecar is an object, not null", '{"schema": 1'),
}
BEYOND_SCHEMA = {
    "not a number": (
        b'{"schema": 1, "regions": [{"box": [NaN, 2, 3, 4]}]}',
        "box[1] (x): NaN is neither",
        "120",
    ),
    "infinity": (
        b'{"schema": 1, "regions": [{"box": [1, -Infinity, 3, 4]}]}',
        "(y): -Infinity is neither",
        "120",
    ),
    "a version that is not a number": (
        b'{"schema": NaN, "regions": []}',
        "schema: NaN is not a version",
        "1",
    ),
    "an exponent out of range": (
        b'{"schema": 1, "regions": [{"box": [1, 2, 1e400, 4]}]}',
        "Infinity is neither",
        "12",
    ),
    "more digits than Python reads": (
        b'{"schema": 1, "regions": [{"box": [' + b"9" * 5000 + b", 2, 3, 4]}]}",
        "box[1] (x): Infinity is neither",
        "120 for pixels",
    ),
    "a share and a line end": (sidecar({"box": ["12%\n", 2, 3, 4]}), r'"12%\n" is neither', "12.5%"),
    "a field twice": (
        b'{"schema": 1, "regions": [{"box": [1, 2, 3, 4], "box": [5, 6, 7, 8]}]}',
        'the field "box" stands twice in the same brackets',
        "take one of them out",
    ),
    "brackets without end": (
        b'{"schema": 1, "regions": ' + b"[" * 100_000,
        "nested too deep",
        '{"schema": 1',
    ),
    "brackets in brackets": (b"[" * 900 + b"]" * 900, "a sidecar is an object, not a list", '{"schema": 1'),
    "objects in objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep", '{"schema": 1'),
    "UTF-16": (
        sidecar(BOX).decode().encode("utf-16"),
        "the sidecar is in UTF-16 or UTF-32",
        "save it as UTF-8",
    ),
    "UTF-16 without a mark": (sidecar(BOX).decode().encode("utf-16-be"), "in UTF-16 or UTF-32", "UTF-8"),
    "UTF-16 the other way": (sidecar(BOX).decode().encode("utf-16-le"), "in UTF-16 or UTF-32", "UTF-8"),
    "Latin-1": (
        b'{"schema": 1,\n"regions": [{"box": [1, 2, 3, 4], "name": "Gr\xf6\xdfe"}]}',
        "line 2 of the sidecar is not UTF-8",
        "save it as UTF-8",
    ),
    "no JSON": (
        b'{"schema": 1,\n "regions": [],}',
        "line 2, column 16 of the sidecar is not JSON: ",
        "no comma behind the last",
    ),
    "a comment": (b"// what is to go\n{}", "line 1, column 1 of the sidecar is not JSON", "no comments"),
    "something behind": (
        b'{"schema": 1, "regions": []} x',
        "column 30 of the sidecar is not JSON: Extra data",
        "mend",
    ),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "line 1 of the sidecar is not UTF-8", "UTF-8"),
    "too large a file": (
        b" " * MAX_SIDECAR_BYTES + b"1",
        "a sidecar of 10,000,001 bytes is too large",
        "a mask file",
    ),
}


@pytest.mark.parametrize("kind", [*REFUSED, *BEYOND_SCHEMA])
def test_what_is_refused_is_told_with_its_field_and_what_to_write(kind: str) -> None:
    data, reason, remedy = {**REFUSED, **BEYOND_SCHEMA}[kind]
    told = refusal(data)
    assert reason in told.reason
    assert any(part in told.remedy for part in remedy.split("|"))
    assert not told.is_cut_short


@pytest.mark.parametrize("kind", REFUSED)
def test_the_schema_refuses_it_too(kind: str) -> None:
    assert not schema_takes(REFUSED[kind][0])


@pytest.mark.parametrize(
    ("most", "over", "told", "stated"),
    [
        (
            sidecar(*[BOX] * MAX_REGIONS),
            sidecar(*[BOX] * (MAX_REGIONS + 1)),
            "regions: 10,001 regions are too many",
            VALIDATOR.schema["properties"]["regions"]["maxItems"],
        ),
        (
            sidecar({"polygon": [[1, 2]] * MAX_POINTS}),
            sidecar({"polygon": [[1, 2]] * (MAX_POINTS + 1)}),
            "regions[1].polygon: it has 10,001 points",
            VALIDATOR.schema["$defs"]["Region"]["properties"]["polygon"]["maxItems"],
        ),
    ],
    ids=["regions", "points"],
)
def test_as_many_as_there_may_be_and_one_more(most: bytes, over: bytes, told: str, stated: int) -> None:
    assert sidecar_from(most).regions
    assert refusal(over).reason == told
    assert stated == 10_000


@pytest.mark.parametrize("tail", [b"", b"\n", b"\0" * 40], ids=["", "line end", "zeros"])
def test_a_file_that_ends_in_the_middle_may_still_grow(tail: bytes) -> None:
    data = b'{"schema": 1, "regions": [{"box": [-7.5e-3, "9%", 22, 10], "name": "\\u00fc}\\n\xc3\xbc"}]}'
    assert sidecar_from(data + tail.strip(b"\0")).regions
    for end in range(len(data)):
        assert refusal(data[:end] + tail).is_cut_short, data[:end]


@pytest.mark.parametrize(
    "text", ["{}", '{"schema": 1, "regions": [],}', "[1, 2", "hello", "{} {", '{"a" 1}', "{a: 1}"]
)
def test_a_file_that_is_whole_and_wrong_will_not_grow_right(text: str) -> None:
    assert not refusal(text.encode()).is_cut_short


def test_brackets_just_as_deep_as_can_be_read_are_refused_in_words_too() -> None:
    """Writing a value down takes more of the stack than reading it did."""
    for depth in range(600, 1100):
        told = refusal(b'{"schema": 1, "regions": [{"box": ' + b"[" * depth + b"]" * depth + b"}]}")
        assert "is not a list of x, y" in told.reason or "nested too deep" in told.reason


def test_what_is_not_printable_is_escaped_and_what_is_long_is_cut() -> None:
    assert (
        '"a\\u202e\\u001b[31m" is no corner' in refusal(sidecar({**BOX, "corner": "a\u202e\x1b[31m"})).reason
    )
    assert '"\\ud800" is no corner' in refusal(sidecar({**BOX, "corner": "\ud800"})).reason
    assert len(refusal(sidecar({**BOX, "corner": "x" * 100_000})).reason) < 120
    assert len(refusal(sidecar({**BOX, "x" * 100_000: 1})).reason) < 120


def test_a_value_of_toml_that_json_has_not_is_refused_in_words() -> None:
    with pytest.raises(RegionError, match=r'box\[1\] \(x\): "2026-11-30" is neither'):
        region_from({"box": [date(2026, 11, 30), 2, 3, 4]})


def test_what_only_the_structs_refuse_is_refused_as_well() -> None:
    class Odd(float):
        pass

    with pytest.raises(RegionError, match="Odd"):
        region_from({"box": [Odd(1), 2, 3, 4]})


def test_a_list_of_a_recipe_counts_its_regions_too() -> None:
    assert regions_from([BOX, {"polygon": TRIANGLE}])[1].polygon == ((0, 0), (9, 0), (0, 9))
    with pytest.raises(RegionError, match=r"^regions\[2\]\.corner: 5 is no corner$"):
        regions_from([BOX, {**BOX, "corner": 5}])


# --- the schema and the code say the same ------------------------------------------------------------------

LENGTHS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([0, -0.0, 1, -1, 0.5, 1e-320, 10**9, 10**9 + 1, -(10**9), -(10**9) - 0.5, 1e300, 10**30]),
    st.sampled_from(
        ["12%", "12 %", "12  %", "12%%", "%", "", "0%", "0.0%", "-3.5%", "+.5%", "5.%", "12345%", "1e3%"]
    ),
    st.sampled_from([None, True, False, [], {}, [1], "12"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.from_regex(r"\A[-+]?[0-9]{0,5}(\.[0-9]{0,11})?[ ]?%?\Z"),
)
SHAPES = {
    "box": st.lists(LENGTHS, min_size=3, max_size=5) | st.just([1, 2, 3, 4]) | LENGTHS,
    "polygon": st.lists(st.lists(LENGTHS, min_size=1, max_size=3), max_size=4) | st.just(TRIANGLE) | LENGTHS,
    "corner": st.sampled_from(["top-left", "bottom-right", "left", "", None, 1]),
    "name": st.sampled_from(["", "x" * 200, "x" * 201, None, 1]),
    "rotation": st.just(1),
}
REGIONS: st.SearchStrategy[Any] = st.fixed_dictionaries({}, optional=SHAPES) | st.sampled_from(
    [None, 1, [], "box"]
)
SIDECARS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "schema": st.sampled_from([1, 1, 1, 1.0, True, "1", 2, None]),
        "regions": st.lists(REGIONS, max_size=2) | LENGTHS,
    },
    optional={
        "size": st.lists(st.sampled_from([1, 1.0, 0, 1.5, 10**9, 10**9 + 1, True, None]), max_size=3)
        | LENGTHS,
        "$schema": st.sampled_from(["", None, 1]),
        "Schema": st.just(1),
    },
)


@settings(max_examples=200, deadline=None)
@given(SIDECARS)
@example({"schema": 1, "regions": [BOX], "size": [1.0, 10**9]})
def test_the_schema_takes_what_the_code_takes_and_nothing_else(value: dict[str, object]) -> None:
    data = json.dumps(value).encode()
    try:
        sidecar_from(data)
    except RegionError:
        assert not schema_takes(data)
    else:
        assert schema_takes(data)


@settings(max_examples=120, deadline=None)
@given(st.fixed_dictionaries({"box": st.tuples(LENGTHS, LENGTHS, LENGTHS, LENGTHS).map(list)}))
def test_they_agree_on_boxes(region: dict[str, object]) -> None:
    """Boxes alone: most of what is made above is refused for more than one reason."""
    test = test_the_schema_takes_what_the_code_takes_and_nothing_else.hypothesis.inner_test  # type: ignore[attr-defined] # hypothesis adds it
    test({"schema": 1, "regions": [region]})


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_the_bytes_are_the_answer_is_a_sidecar_or_a_refusal(data: bytes) -> None:
    try:
        sidecar_from(data)
    except RegionError as error:
        assert error.remedy  # noqa: PT017 - either answer is right


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_bytes_that_are_changed_or_lost_never_crash(data: st.DataObject) -> None:
    text = bytearray(json.dumps(EXAMPLE).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 9))] = data.draw(
            st.sampled_from(
                [b"", b"[", b"}", b"1e999", b"-", b"null", b'"', b"\xff", b"\\ud800", b"\0", b"9" * 30]
            )
        )
    try:
        sidecar_from(bytes(text))
    except RegionError as error:
        assert error.remedy  # noqa: PT017 - either answer is right


def test_the_page_is_the_codes_schema() -> None:
    renew = "run: python -m watcher.regions > docs/marks.schema.json"
    run = subprocess.run(
        [sys.executable, "-m", "watcher.regions"], capture_output=True, check=True, timeout=60
    )
    assert PAGE.read_bytes() == run.stdout, renew
    assert json.loads(run.stdout) == json_schema()


def test_the_schema_is_one_and_its_example_is_taken_by_both_and_uses_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    (shown,) = json_schema()["examples"]
    assert VALIDATOR.is_valid(shown)
    taken = sidecar_from(json.dumps(shown).encode())
    assert {name for region in taken.regions for name in msgspec.to_builtins(region)} == set(
        Region.__struct_fields__
    )
    assert taken.size is not None


def test_the_schema_explains_every_field() -> None:
    made = json_schema()
    for fields in (made["properties"], made["$defs"]["Region"]["properties"]):
        assert all(field["description"] for field in fields.values())
    assert {"title", "description"} <= set(made)


def test_regions_go_over_the_wire_and_back_as_they_are() -> None:
    taken = sidecar_from(json.dumps(EXAMPLE).encode()).regions
    plain = json.loads(json.dumps(msgspec.to_builtins(taken)))
    assert msgspec.convert(plain, type=tuple[Region, ...]) == taken
    assert regions_from(plain) == taken
    assert "null" not in json.dumps(plain)


def test_the_corners_of_the_words_are_those_of_the_struct() -> None:
    assert json_schema()["$defs"]["Region"]["properties"]["corner"]["enum"] == sorted(regions._CORNERS)
