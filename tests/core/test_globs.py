"""Globs: what each pattern matches, what it does not, and what a malformed one tells its author."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.globs import compile_glob

MATCHES = [
    ("*.png", "a.png"),
    ("*.png", ".png"),
    ("*.png", "a\nb.png"),
    ("*.png", "\udcff.png"),
    ("?.png", "ä.png"),
    ("**", "a.png"),
    ("**", "a/b/c.png"),
    ("**/**", "a/b/c.png"),
    ("**/*.png", "a.png"),
    ("**/*.png", "a/b/c.png"),
    ("**/x.png", "x.png"),
    ("**/x.png", "a/b/x.png"),
    ("strokes/**", "strokes/a.png"),
    ("strokes/**", "strokes/a/b.png"),
    ("a/**/b.png", "a/b.png"),
    ("a/**/b.png", "a/x/b.png"),
    ("a/**/b.png", "a/x/y/b.png"),
    ("a/**/**/b.png", "a/x/b.png"),
    ("*/*.png", "a/b.png"),
    ("IMG_[0-9][0-9].jpg", "IMG_42.jpg"),
    ("[!a-c].png", "d.png"),
    ("[^a-c].png", "d.png"),
    ("[]].png", "].png"),
    ("[!]].png", "x.png"),
    ("[a-].png", "-.png"),
    ("[[].png", "[.png"),
    ("[*].png", "*.png"),
    ("a+(b).png", "a+(b).png"),
    ("$^.png", "$^.png"),
    ("{a,b}.png", "{a,b}.png"),
    ("*.[jJ][pP][gG]", "a.JPG"),
]

MISSES = [
    ("*.png", "a/b.png"),
    ("*.png", "a.png.tmp"),
    ("*.png", "a.png\n"),
    ("*.png", "a.PNG"),
    ("?.png", "ab.png"),
    ("?.png", ".png"),
    ("a?b.png", "a/b.png"),
    ("a[!x]b.png", "a/b.png"),
    ("a[+-9]b.png", "a/b.png"),
    ("**/x.png", "ax.png"),
    ("**/x.png", "a/yx.png"),
    ("strokes/**", "strokes"),
    ("strokes/**", "strokes2/a.png"),
    ("strokes/**", "x/strokes/a.png"),
    ("a/**/b.png", "ab.png"),
    ("a/**/b.png", "a/xb.png"),
    ("*/*.png", "b.png"),
    ("*/*.png", "a/b/c.png"),
    ("[*].png", "a.png"),
    ("a.png", "axpng"),
    ("[a\u002dc].png", "d.png"),
]

MALFORMED = [
    ("", "'**'"),
    ("/a.png", "leave out the leading '/'"),
    ("a/", "'a/**'"),
    ("a//b.png", "no folder's name"),
    ("../a.png", "no folder's name"),
    ("./a.png", "no folder's name"),
    ("a\\b.png", "write '/'"),
    ("a**.png", "stands alone"),
    ("**.png", "stands alone"),
    ("***", "stands alone"),
    ("[abc.png", "'[[]'"),
    ("[]", "'[[]'"),
    ("[a/b].png", "'[[]'"),
    ("[z-a].png", "write 'a-z'"),
]


@pytest.mark.parametrize(("pattern", "path"), MATCHES)
def test_matches(pattern: str, path: str) -> None:
    assert compile_glob(pattern).match(path)
    assert compile_glob(pattern).fullmatch(path)


@pytest.mark.parametrize(("pattern", "path"), MISSES)
def test_does_not_match(pattern: str, path: str) -> None:
    assert not compile_glob(pattern).match(path)
    assert not compile_glob(pattern).fullmatch(path)


@pytest.mark.parametrize(("pattern", "remedy"), MALFORMED)
def test_a_malformed_pattern_tells_what_to_write_instead(pattern: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=r"pattern") as caught:
        compile_glob(pattern)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("written", ["NFC", "NFD"])
@pytest.mark.parametrize("stored", ["NFC", "NFD"])
def test_an_accent_matches_however_it_is_stored(written: str, stored: str) -> None:
    forms = {form: unicodedata.normalize(form, "Bücher/Été") for form in ("NFC", "NFD")}
    assert compile_glob(f"{forms[written]}/*.png").match(f"{forms[stored]}/a.png")


@given(st.lists(st.text(st.characters(exclude_characters="/"), min_size=1), min_size=1).map("/".join))
def test_everything_is_matched_by_two_stars_and_by_itself_quoted(path: str) -> None:
    assert compile_glob("**").match(path)
    quoted = "".join(f"[{c}]" if c in "*?[" else c for c in path)
    if "\\" not in path and not {".", ".."} & set(path.split("/")):
        assert compile_glob(quoted).match(path)
