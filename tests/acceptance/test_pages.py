"""The report as people read it: Markdown, and one page that needs nothing else."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.acceptance.made_reports import record, report, run, scene, start
from watcher.acceptance import html, markdown
from watcher.acceptance.claims import claims_of
from watcher.acceptance.report import Claim, Ran, Sample
from watcher.core.timeline import SEGMENTS

if TYPE_CHECKING:
    from pathlib import Path

    from watcher.acceptance.report import Acceptance

HOSTILE = "<script>alert(1)</script>|`x`*y*&amp;\"'.jpg"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def hostile() -> Acceptance:
    chain = {"decode": 10.0, "inference": 2000.0, "encode": 0.01}
    sample = Sample(picture=HOSTILE, record=record(chain, picture=HOSTILE), reference_ms=20.0)
    claims = (Claim(name="a_claim", statement=f"about {HOSTILE}", holds=False, measured=2, limit=1),)
    ran = Ran(configured="auto", actual="cpu", reason=HOSTILE)
    played = scene("hot", [sample] * 3, device=ran, starts=(start(1), start(2)), facts={"wall_s": None})
    return report(played, scene("model_cache", [], skipped=HOSTILE), claims=claims)


class Page(HTMLParser):
    """Whether tags are closed in order, and what is in it."""

    VOID = frozenset({"meta", "br", "hr", "link", "img", "col"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = html.render(run(1))
    page = Page(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", text)
    assert "prefers-color-scheme" in text
    assert len(page.all("th")) > len(page.all("table"))
    assert len(page.all("svg")) >= 3
    assert page.words.count("Hot path") >= 1


@pytest.mark.parametrize("render", [html.render, markdown.render])
def test_names_of_anybody_are_text(render: Any) -> None:
    text = render(hostile())
    assert "<script>" not in text.replace("\\", "")
    if render is html.render:
        assert HOSTILE in Page(text).words
    else:
        rows = [line for line in text.splitlines() if line.startswith("|")]
        tables = re.split(r"\n\n", text)
        for table in tables:
            bars = {
                len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines() if line.startswith("|")
            }
            assert len(bars) <= 1, table
        assert rows


@pytest.mark.parametrize("render", [html.render, markdown.render])
def test_both_say_what_ran_and_what_it_took(render: Any) -> None:
    made = run(2)
    claims = claims_of(
        [made.scenes[0], made.scenes[1], made.scenes[2], scene("recovery", []), scene("model_cache", [])]
    )
    text = render(report(*made.scenes, claims=(*claims, Claim(name="odd", statement="it is", holds=False))))
    words = Page(text).words if render is html.render else text.replace("\\", "")
    for expected in (
        "configured",
        "actual",
        "patchmatch",
        "cpu",
        "inference",
        "does not hold",
        "p95",
        "holds",
    ):
        assert expected in words, expected
    assert all(claim.name in words for claim in claims)


def test_bars_are_as_wide_as_their_times_and_follow_each_other() -> None:
    chain = dict.fromkeys(SEGMENTS, 0.0) | {"decode": 100.0, "inference": 300.0, "encode": 100.0}
    sample = Sample(picture="a.jpg", record=record(chain, picture="a.jpg"))
    text = html.render(report(scene("hot", [sample])))
    svg = next(
        found
        for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        if "inference" in found and "rect" in found
    )
    bars = [
        (float(rect.get("x", "0").rstrip("%")), float(rect.get("width", "0").rstrip("%")))
        for rect in ET.fromstring(svg).iter()  # noqa: S314 - our own
        if rect.tag.endswith("rect")
        and rect.get("width", "").endswith("%")
        and float(rect.get("width", "0")[:-1]) > 1
    ]
    widths = sorted(width for _, width in bars)
    assert widths[-1] / widths[0] == pytest.approx(3, rel=0.02)
    ordered = sorted(bars)[-3:]
    for (x, width), (following, _) in itertools.pairwise(ordered):
        assert x + width == pytest.approx(following, abs=0.1)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    page, shot = tmp_path / "acceptance.html", tmp_path / "shot.png"
    page.write_text(html.render(hostile()))
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,2000")
    places = (f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}")
    command = [CHROMIUM or "", *options, *places, page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert shot.stat().st_size > 20_000, "an empty page is smaller"
