"""The two curves of every arm as one SVG: what the brokers send, and what share of the hot sessions is live.

Written by hand: two panels with lines need no library. Text is escaped; numbers are rounded to a tenth of a
pixel, so equal curves give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

#: Points per line: more than there are pixels would only be a larger file.
POINTS_MAX: Final = 300
WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, GAP = 760, 220, 72, 16, 56, 44
#: Told apart by lightness too: seen without colours, and printed.
COLOURS: Final = ("#b03a2e", "#d99a2b", "#1f5f8b", "#5b5b5b")
TICKS: Final = 5
FONT: Final = 'font-family="sans-serif" font-size="12" fill="#333333"'


@dataclass(frozen=True, slots=True)
class Line:
    """One arm in one panel."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    """``top``: the upper end of the scale; default: what the lines need."""

    title: str
    lines: Sequence[Line]
    top: float | None = None


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The document. Panels share the time axis, in seconds."""
    across = nice(max((x for p in panels for line in p.lines for x, _ in line.points), default=0.0))
    height = TOP + len(panels) * (PANEL_HEIGHT + GAP) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    for number, name in enumerate(names):
        x = LEFT + number * 150
        out.append(f'<rect x="{x}" y="32" width="14" height="4" fill="{_colour(number)}"/>')
        out.append(f'<text x="{x + 20}" y="38">{escape(name)}</text>')
    for number, panel in enumerate(panels):
        out += _panel(panel, TOP + number * (PANEL_HEIGHT + GAP), across, names)
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(panel: Panel, y: int, across: float, names: Sequence[str]) -> list[str]:
    up = panel.top or nice(max((v for line in panel.lines for _, v in line.points), default=0.0))
    width, height, base = WIDTH - LEFT - RIGHT, PANEL_HEIGHT - 20, y + PANEL_HEIGHT

    def place(x: float, value: float) -> str:
        return f"{LEFT + x / across * width:.1f},{base - min(1.0, value / up) * height:.1f}"

    out = [f'<text x="{LEFT}" y="{y + 12}">{escape(panel.title)}</text>']
    for tick in range(TICKS + 1):
        at, x = base - height * tick / TICKS, LEFT + width * tick / TICKS
        out.append(
            f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{up * tick / TICKS:g}</text>'
            f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{across * tick / TICKS:g} s</text>'
        )
    for line in panel.lines:
        points = " ".join(place(x, value) for x, value in line.points)
        out.append(
            f'<polyline fill="none" stroke="{_colour(names.index(line.name))}" stroke-width="2"'
            f' points="{points}"/>'
        )
    return out


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def nice(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten: five ticks of it are round."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in (1.0, 2.0, 2.5, 5.0, 10.0) if power * step >= value)
