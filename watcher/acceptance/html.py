"""The report as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere.

Rules of this module:
- Whatever stands in a report is text: every string goes through `_text`.
- A chart is SVG without a picture's fixed scale: bars lie at percentages of the axis, and letters keep their
  size on a phone. What a chart shows stands in a table too.
- Colours carry no meaning alone: rows and keys have names. They are Paul Tol's *bright* scheme, which people
  with any of the usual kinds of colour blindness can tell apart (personal.sron.nl/~pault).
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from watcher.acceptance.document import Table, compose, milliseconds
from watcher.acceptance.waterfall import GROUP_TITLES, Chart
from watcher.telemetry.log import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from watcher.acceptance.document import Block, Document
    from watcher.acceptance.report import Acceptance
    from watcher.acceptance.waterfall import Bar, Group, Row

_ROW_PX: Final = 22
_BAR_PX: Final = 14
_AXIS_PX: Final = 24
_LABEL_LETTERS: Final = 22
"""What fits beside a chart; a longer label is cut in its middle, and whole in tooltip and table."""
_THIN: Final = 0.005
"""Part of the axis: 1 px of a phone's chart."""
_COLOURS: Final[Mapping[Group, str]] = {
    "arrival": "#66ccee",
    "waiting": "#bbbbbb",
    "lost": "#aa3377",
    "start": "#ccbb44",
    "prepare": "#4477aa",
    "inference": "#228833",
    "finish": "#ee6677",
    "rest": "#ffffff",
}
_VERDICTS: Final[Mapping[str, str]] = {
    "holds": "good",
    "does not hold": "bad",
    "could not be told": "open",
}
_STYLE: Final = (
    """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #595959; --page: #ffffff; --line: #d5d5d5;
  --band: #f4f4f4; --good: #14632a; --bad: #a3132b; --edge: #00000080; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --soft: #b4b4b4; --page: #151515; --line: #3c3c3c;
  --band: #202020; --good: #7fd695; --bad: #ff9aa8; --edge: #ffffff80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; }
h2 { margin: 2.5rem 0 .5rem; border-bottom: 2px solid var(--line); padding-bottom: .25rem; }
p { max-width: 46rem; margin: .5rem 0; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; min-width: 18rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .2rem .75rem .2rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; max-width: 24rem; }
@media (min-width: 48rem) { caption { white-space: nowrap; } }
thead th { color: var(--soft); white-space: nowrap; }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
.long { min-width: 14rem; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.open { color: var(--soft); font-weight: 600; }
figure { margin: 1.25rem 0; }
figcaption { font-weight: 600; font-size: .875rem; overflow-wrap: anywhere; }
.chart { display: block; overflow: visible; margin: .25rem 0 0 8.5rem; width: calc(100% - 13.5rem);
  font-size: 12px; }
.chart text { fill: var(--ink); }
.chart .soft { fill: var(--soft); }
.chart line { stroke: var(--line); }
.bar { stroke: var(--edge); stroke-width: .5; }
.thin { stroke: none; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .25rem 0; padding: 0; list-style: none;
  font-size: .8125rem; color: var(--soft); }
.key svg { vertical-align: -1px; margin-right: .35rem; }
"""
    + "\n".join(f".{group} {{ fill: {colour}; }}" for group, colour in _COLOURS.items())
    + """
@media print { body { max-width: none; font-size: 10pt; } figure, tr { break-inside: avoid; }
  h2, caption { break-after: avoid; } .wide { overflow: visible; }
  .bar, .key svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)


def render(report: Acceptance) -> str:
    """Return the report as a whole HTML page.

    Args:
        report: as `watcher accept` measured it.
    """
    return "\n".join(_page(compose(report))) + "\n"


def _page(document: Document) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(document.title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield "</head>"
    yield "<body>"
    yield "<main>"
    yield f"<h1>{_text(document.title)}</h1>"
    identities = _Identities()
    yield from _blocks(document.blocks, identities)
    for section in document.sections:
        yield "<section>"
        yield f"<h2>{_text(section.title)}</h2>"
        yield from _blocks(section.blocks, identities)
        yield "</section>"
    yield "</main>"
    yield "</body>"
    yield "</html>"


class _Identities:
    """Names of elements that others refer to, each once a page."""

    def __init__(self) -> None:
        self._used = 0

    def next(self) -> str:
        self._used += 1
        return f"chart{self._used}"


def _blocks(blocks: Iterable[Block], identities: _Identities) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, Chart):
            yield from _figure(block, identities.next())
        else:
            yield f"<p>{_text(block)}</p>"


def _table(table: Table) -> Iterator[str]:
    yield '<div class="wide" tabindex="0" role="region" ' + f'aria-label="{_text(table.caption)}">'
    yield "<table>"
    yield f"<caption>{_text(table.caption)}</caption>"
    heads = (_cell("th", text, index, table, ' scope="col"') for index, text in enumerate(table.headings))
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        first = _cell("th", row[0], 0, table, ' scope="row"')
        rest = (_cell("td", text, index, table) for index, text in enumerate(row) if index)
        yield f"<tr>{first}{''.join(rest)}</tr>"
    yield "</tbody>"
    yield "</table>"
    yield "</div>"


def _cell(tag: str, text: str, index: int, table: Table, more: str = "") -> str:
    kind = (
        "number"
        if index in table.numbers
        else _VERDICTS.get(text)
        if table.headings[index] == "verdict"
        else None
    )
    if kind is None and table.headings[index] == "statement":
        kind = "long"
    named = f' class="{kind}"' if kind else ""
    return f"<{tag}{named}{more}>{_text(text)}</{tag}>"


# --- charts ------------------------------------------------------------------------------------------------


def _figure(chart: Chart, identity: str) -> Iterator[str]:
    height_px = _ROW_PX * len(chart.rows) + _AXIS_PX
    yield "<figure>"
    yield f"<figcaption>{_text(chart.title)}</figcaption>"
    if not chart.labelled:
        yield from _key(chart)
    yield (
        f'<svg class="chart" width="100%" height="{height_px}" role="img" '
        f'aria-labelledby="{identity}t {identity}d">'
    )
    yield f'<title id="{identity}t">{_text(chart.title)}</title>'
    yield f'<desc id="{identity}d">{_text(chart.description)}</desc>'
    yield from _axis(chart, height_px)
    for number, row in enumerate(chart.rows):
        yield from _row(chart, row, number * _ROW_PX)
    yield "</svg>"
    yield "</figure>"


def _key(chart: Chart) -> Iterator[str]:
    yield '<ul class="key">'
    for group in chart.groups:
        square = f'<rect class="bar {group}" width="12" height="12"/>'
        swatch = f'<svg width="12" height="12" aria-hidden="true">{square}</svg>'
        yield f"<li>{swatch}{_text(GROUP_TITLES[group])}</li>"
    yield "</ul>"


def _axis(chart: Chart, height_px: int) -> Iterator[str]:
    bottom_px = height_px - _AXIS_PX + 2
    for tick_ms in chart.ticks_ms:
        at = _percent(tick_ms, chart)
        yield f'<line x1="{at}" x2="{at}" y1="0" y2="{bottom_px}"/>'
        place = f'x="{at}" y="{height_px - 8}" text-anchor="middle"'
        yield f'<text class="soft" {place}>{_duration(tick_ms)}</text>'


def _row(chart: Chart, row: Row, top_px: int) -> Iterator[str]:
    baseline_px = top_px + _ROW_PX - 7
    yield f'<text x="0" dx="-8" y="{baseline_px}" text-anchor="end">{_text(_short(row.label))}</text>'
    for bar in row.bars:
        yield _rect(chart, bar, top_px + (_ROW_PX - _BAR_PX) // 2)
    end_ms = max((bar.begins_ms + bar.lasts_ms for bar in row.bars), default=0.0)
    at = _percent(end_ms, chart)
    yield f'<text x="{at}" dx="6" y="{baseline_px}">{_duration(row.lasts_ms)}</text>'


def _rect(chart: Chart, bar: Bar, top_px: int) -> str:
    place = f'x="{_percent(bar.begins_ms, chart)}" width="{_percent(bar.lasts_ms, chart)}"'
    told = f"<title>{_text(bar.segment)} {milliseconds(bar.lasts_ms)} ms</title>"
    # Among others an edge would be wider than the bar; alone it is what can be seen of it.
    thin = " thin" if bar.lasts_ms < _THIN * chart.span_ms and not chart.labelled else ""
    return f'<rect class="bar {bar.group}{thin}" {place} y="{top_px}" height="{_BAR_PX}">{told}</rect>'


def _percent(value_ms: float, chart: Chart) -> str:
    return f"{100 * value_ms / chart.span_ms if chart.span_ms else 0:.4f}%"


def _duration(value_ms: float) -> str:
    """A time for an axis: in the unit that makes it short."""
    if value_ms >= 1000:  # noqa: PLR2004 - a second
        return f"{value_ms / 1000:.3g} s" if value_ms < 100_000 else f"{value_ms / 1000:.0f} s"  # noqa: PLR2004
    return f"{value_ms:.3g} ms" if value_ms < 100 else f"{value_ms:.0f} ms"  # noqa: PLR2004


def _short(label: str) -> str:
    if len(label) <= _LABEL_LETTERS:
        return label
    head = _LABEL_LETTERS // 2
    return f"{label[:head]}…{label[head + 1 - _LABEL_LETTERS :]}"


def _text(text: str) -> str:
    return html.escape(printable(text))
