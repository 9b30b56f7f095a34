"""Plots as inline SVG: lines over two axes, and stacked bars. No library, no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

#: Told apart also by those who do not see all colours.
COLORS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5fb5", "#6b6b6b",
)  # fmt: skip
Points = Sequence[tuple[float, float]]

_WIDTH: Final = 760
_HEIGHT: Final = 320
_LEFT: Final = 84
_RIGHT: Final = 20
_TOP: Final = 12
_BOTTOM: Final = 46
_BAR: Final = 22
_TICKS: Final = 5


@dataclass(frozen=True)
class Axis:
    """A scale: its title, from where to where, its ticks, and logarithmic or not."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, number: float) -> float:
        """Return where a number lies: 0 at the low end, 1 at the high end."""
        low, high, at = self.low, self.high, number
        if self.log:
            low, high, at = (math.log10(each) for each in (low, high, max(number, low)))
        return min(max((at - low) / (high - low), 0.0), 1.0) if high > low else 0.0


def linear(title: str, high: float, shown: Callable[[float], str]) -> Axis:
    """Return an axis from 0 to at least `high` with round ticks."""
    step = _round_step(max(high, 1e-12) / _TICKS)
    count = max(math.ceil(high / step - 1e-9), 1)
    return Axis(title, 0, step * count, [(step * n, shown(step * n)) for n in range(count + 1)])


def decades(title: str, low: float, high: float, shown: Callable[[float], str]) -> Axis:
    """Return a logarithmic axis over whole powers of ten."""
    first = math.floor(math.log10(max(low, 1e-12)))
    last = max(math.ceil(math.log10(max(high, 1e-12))), first + 1)
    ticks = [(10.0**n, shown(10.0**n)) for n in range(first, last + 1)]
    return Axis(title, 10.0**first, 10.0**last, ticks, log=True)


def lines(series: Mapping[str, Points], across: Axis, up: Axis) -> str:
    """Return a plot with one line for each series, and its legend."""
    parts = [*_grid(across, up)]
    for number, (name, points) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if number >= len(COLORS) else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}>'
            f"<title>{escape(name)}</title></polyline>"
        )
    return _svg(_HEIGHT, parts) + legend(series)


def stacked(bars: Mapping[str, Mapping[str, float]], title: str) -> str:
    """Return horizontal bars made of parts; the same part has the same colour in all."""
    names = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    longest = max(sum(bar.values()) for bar in bars.values())
    across = linear(title, longest, lambda number: f"{number:g}")
    bottom = _TOP + _BAR * len(bars)
    parts = []
    for at, label in across.ticks:
        x = _x(across, at, _LEFT * 2)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 16, label, "middle"))
    for row, (label, bar) in enumerate(bars.items()):
        top = _TOP + _BAR * row
        parts.append(_text(_LEFT * 2 - 8, top + _BAR / 2 + 4, label, "end"))
        done = 0.0
        for name, size in bar.items():
            left, right = (_x(across, each, _LEFT * 2) for each in (done, done + size))
            color = COLORS[names.index(name) % len(COLORS)]
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 3}" width="{right - left:.1f}" height="{_BAR - 6}"'
                f' fill="{color}"><title>{escape(name)}: {size:.3g}</title></rect>'
            )
            done += size
    parts.append(_text((_LEFT * 2 + _WIDTH) / 2, bottom + 36, title, "middle"))
    return _svg(bottom + _BOTTOM, parts) + legend(names)


def legend(names: Iterable[str]) -> str:
    """Return names beside their colours."""
    shown = "".join(
        f'<li><i style="background:{COLORS[number % len(COLORS)]}"></i>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{shown}</ul>'


def _grid(across: Axis, up: Axis) -> Iterable[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for at, label in up.ticks:
        y = _y(up, at)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 6, y + 4, label, "end")
    for at, label in across.ticks:
        x = _x(across, at)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield _text(x, bottom + 16, label, "middle")
    yield _text((_LEFT + right) / 2, bottom + 36, across.title, "middle")
    yield (
        f'<text class="axis" transform="translate(14 {(_TOP + bottom) / 2}) rotate(-90)"'
        f' text-anchor="middle">{escape(up.title)}</text>'
    )


def _x(axis: Axis, number: float, left: float = _LEFT) -> float:
    return left + axis.share(number) * (_WIDTH - _RIGHT - left)


def _y(axis: Axis, number: float) -> float:
    return _HEIGHT - _BOTTOM - axis.share(number) * (_HEIGHT - _BOTTOM - _TOP)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(height: float, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'


def _round_step(least: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
