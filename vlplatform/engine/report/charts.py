"""Line charts as inline SVG, small and without scripts: axes, a legend, and a reading under the pointer."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlplatform.engine.report.text import escape, number, short

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 22, 34
COLUMNS = 300
"""A longer series keeps the lowest and the highest value of each of this many columns."""
READINGS = 80
"""Places along the x axis where the pointer reads values."""
LINE = 62
"""Characters of a reading that fit above the chart."""
LOGARITHMIC_FROM = 20.0
"""Positive values whose largest is this many times the smallest get a logarithmic axis."""

Scale = Literal["fit", "linear", "unit"]


@dataclass(frozen=True)
class Series:
    """A line: x ascending, y of the same length, NaN or infinite where there is a gap.

    ``faint`` draws it in the background, in the colour of the series that follows.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    faint: bool = False


@dataclass(frozen=True)
class _Axis:
    """Values → pixels, linear or logarithmic, with its ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 4 else (1,)
            inside = [m * 10.0**d for d in decades for m in steps if self.low <= m * 10.0**d <= self.high]
            return inside[:: math.ceil(len(inside) / 7)] if inside else [self.low, self.high]
        unit = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(m * unit for m in (1, 2, 5, 10) if (self.high - self.low) / (m * unit) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(title: str, series: Sequence[Series], *, scale: Scale = "fit") -> str:
    """A ``<figure>`` with the chart; a sentence takes the chart's place where no finite value exists.

    Args:
        title: Heading of the figure.
        series: The lines; at most six colours.
        scale: ``fit`` takes a logarithmic axis where values spread widely; ``linear`` never does; ``unit`` is
            linear and ends at 0 and 1 where the values do.
    """
    drawn = [s for s in (_finite(s) for s in series) if s.x]
    gaps = max((sum(not _drawable(y) for y in s.y) for s in series), default=0)
    if not drawn:
        told = "No finite value was logged." if gaps else "Nothing was logged."
        return f'<figure class="card chart"><h3>{escape(title)}</h3><p class="empty">{told}</p></figure>'
    x_axis = _x_axis(drawn)
    y_axis = _y_axis(drawn, scale)
    colours, colour = {}, 0
    for s in drawn:
        colours[s.name] = f"s{colour % 6}"
        colour += not s.faint
    lines = "".join(_line(s, colours[s.name], x_axis, y_axis) for s in _with_gaps(series, drawn))
    readings = _readings(drawn, colours, x_axis, y_axis)
    legend = "".join(
        f'<li class="{colours[s.name]}{" faint" * s.faint}">{escape(s.name)} <b>{number(s.y[-1])}</b></li>'
        for s in drawn
    )
    notes = ["logarithmic axis"] * y_axis.log + [f"{gaps} non-finite value{'s' * (gaps > 1)} not drawn"] * bool(gaps)
    note = f" <small>{escape(', '.join(notes))}</small>" if notes else ""
    return (
        f'<figure class="card chart"><h3>{escape(title)}{note}</h3>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_in_words(title, drawn))}">'
        f"{_grid(x_axis, y_axis)}{lines}{readings}</svg>"
        f'<figcaption><ul class="keys">{legend}</ul></figcaption></figure>'
    )


def smoothed(values: Sequence[float]) -> list[float]:
    """Exponential moving average without start-up bias over about a thirtieth of the series; gaps stay gaps."""
    decay = 1 - 2 / (max(2.0, len(values) / 30) + 1)
    total, weight, out = 0.0, 0.0, []
    for value in values:
        if math.isfinite(value):
            total, weight = decay * total + (1 - decay) * value, decay * weight + 1 - decay
        out.append(total / weight if math.isfinite(value) else math.nan)
    return out


def _drawable(value: float) -> bool:
    return abs(value) < 1e30  # false for NaN


def _finite(s: Series) -> Series:
    kept = [(x, y) for x, y in zip(s.x, s.y) if _drawable(y)]
    return Series(s.name, [x for x, _ in kept], [y for _, y in kept], s.faint)


def _with_gaps(series: Sequence[Series], drawn: Sequence[Series]) -> list[Series]:
    names = {s.name for s in drawn}
    return [s for s in series if s.name in names]


def _x_axis(series: Sequence[Series]) -> _Axis:
    low, high = min(s.x[0] for s in series), max(s.x[-1] for s in series)
    if low == high:
        low, high = low - 1, high + 1
    return _Axis(low, high, LEFT, WIDTH - RIGHT)


def _y_axis(series: Sequence[Series], scale: Scale) -> _Axis:
    low, high = min(min(s.y) for s in series), max(max(s.y) for s in series)
    log = scale == "fit" and low > 1e-30 and high / low >= LOGARITHMIC_FROM
    if log:
        return _Axis(low / 1.1, high * 1.1, HEIGHT - BOTTOM, TOP, log=True)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    # losses, rates and norms are read best from zero, unless that would flatten the curve
    floor = 0.0 if low >= 0 and low < 0.5 * high else low - margin
    ceiling = high + margin
    if scale == "unit":
        floor, ceiling = (max(0.0, floor) if low >= 0 else floor), (min(1.0, ceiling) if high <= 1 else ceiling)
    if not ceiling - floor > abs(high) * 1e-9:
        floor, ceiling = floor - margin, ceiling + margin
    return _Axis(floor, ceiling, HEIGHT - BOTTOM, TOP)


def _grid(x_axis: _Axis, y_axis: _Axis) -> str:
    parts = []
    for tick in y_axis.ticks():
        y = y_axis(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 7}" y="{y + 4:.1f}">{short(tick)}</text>')
    for tick in x_axis.ticks():
        if not float(tick).is_integer():
            continue
        x = x_axis(tick)
        parts.append(f'<path class="tick" d="M{x:.1f} {HEIGHT - BOTTOM}v4"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}">{short(tick)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    parts.append(f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 3}">step</text>')
    return "".join(parts)


def _line(s: Series, colour: str, x_axis: _Axis, y_axis: _Axis) -> str:
    """The path, broken at gaps; dots where there are so few points that each is an event of its own."""
    points = _decimated(s)
    commands, dots, open_ = [], [], False
    for x, y in points:
        if not _drawable(y):
            open_ = False
            continue
        at = f"{x_axis(x):.1f} {y_axis(y):.1f}"
        commands.append(f"{'L' if open_ else 'M'}{at}")
        dots.append(f"M{at}h0")
        open_ = True
    css = f"{colour}{' faint' * s.faint}"
    path = f'<path class="line {css}" d="{"".join(commands)}"/>'
    return path + (f'<path class="dots {css}" d="{"".join(dots)}"/>' if len(dots) <= 30 and not s.faint else "")


def _decimated(s: Series) -> list[tuple[float, float]]:
    """At most four points per column, among them its extremes and any gap, in order."""
    points = list(zip(s.x, s.y))
    if len(points) <= 2 * COLUMNS:
        return points
    kept: list[tuple[float, float]] = []
    for column in range(COLUMNS):
        part = points[column * len(points) // COLUMNS : (column + 1) * len(points) // COLUMNS]
        finite = [i for i, (_, y) in enumerate(part) if _drawable(y)]
        chosen = {0, next((i for i, (_, y) in enumerate(part) if not _drawable(y)), 0)}
        if finite:
            chosen |= {min(finite, key=lambda i: part[i][1]), max(finite, key=lambda i: part[i][1])}
        kept += [part[i] for i in sorted(chosen)]
    return [*kept, points[-1]]


def _readings(series: Sequence[Series], colours: dict[str, str], x_axis: _Axis, y_axis: _Axis) -> str:
    """Transparent columns that show, under the pointer, a hairline, dots, and the values."""
    places = sorted({x for s in series for x in s.x})
    if len(places) > READINGS:
        places = [places[round(i * (len(places) - 1) / (READINGS - 1))] for i in range(READINGS)]
    pixels = [x_axis(x) for x in places]
    parts = []
    for i, (place, x) in enumerate(zip(places, pixels)):
        left = LEFT if i == 0 else (pixels[i - 1] + x) / 2
        right = WIDTH - RIGHT if i == len(pixels) - 1 else (x + pixels[i + 1]) / 2
        dots, words, values = [], [f"step {number(place)}"], []
        for s in series:
            j = bisect_left(s.x, place)
            if j < len(s.x) and s.x[j] == place:
                values.append(number(s.y[j]))
                words.append(f"{s.name} {values[-1]}")
                dots.append(f'<circle class="{colours[s.name]}" cx="{x:.1f}" cy="{y_axis(s.y[j]):.1f}" r="3.5"/>')
        told = " · ".join(words)
        shown = told if len(told) <= LINE else " · ".join([words[0], *values])  # values alone, in the legend's order
        parts.append(
            f'<g class="hit"><rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{HEIGHT}"/>'
            f'<g><path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>{"".join(dots)}'
            f'<text x="{WIDTH - RIGHT}" y="12">{escape(shown)}</text></g><title>{escape(told)}</title></g>'
        )
    return "".join(parts)


def _in_words(title: str, series: Sequence[Series]) -> str:
    told = (
        f"{s.name} from {number(s.y[0])} at step {number(s.x[0])} to {number(s.y[-1])} at step {number(s.x[-1])}, "
        f"lowest {number(min(s.y))}, highest {number(max(s.y))}"
        for s in series
    )
    return f"{title}: {'; '.join(told)}."
