"""Charts as inline SVG: text is text, and colours are CSS variables, so that a page can be dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

LEFT, TOP, RIGHT, BOTTOM = 66, 14, 32, 60  # margins that fit the larger text of a narrow screen


@dataclass(frozen=True)
class Axis:
    """A range of numbers and the ticks in it; `percent` shows shares as percentages."""

    low: float
    high: float
    label: str
    percent: bool = False

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        scale = 100 if self.percent else 1
        low, high = sorted((self.low, self.high))  # an axis may run downwards
        found = nice_ticks(low * scale, high * scale, most)
        step = found[1] - found[0] if len(found) > 1 else 1.0
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(tick / scale, f"{tick:,.{digits}f}") for tick in found]


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between low and high, 1, 2, 2.5 or 5 times a power of ten apart.

    >>> nice_ticks(0.0, 60.0)
    [0.0, 20.0, 40.0, 60.0]
    >>> nice_ticks(12.0, 97.0)
    [20.0, 40.0, 60.0, 80.0]
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    steps = [power * factor for factor in (1, 2, 5, 10, 20)]
    step = next(each for each in steps if (high - low) / each + 1 <= most + 1e-9)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Plot:
    """A drawing area with two axes; its methods return SVG elements to join with `svg`."""

    x_axis: Axis
    y_axis: Axis
    width: int = 640
    height: int = 380
    margin: int = RIGHT

    @property
    def right(self) -> int:
        return self.width - self.margin

    def x(self, value: float) -> float:
        share = (value - self.x_axis.low) / ((self.x_axis.high - self.x_axis.low) or 1)
        return LEFT + share * (self.right - LEFT)

    def y(self, value: float) -> float:
        share = (value - self.y_axis.low) / ((self.y_axis.high - self.y_axis.low) or 1)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)

    def frame(self, grid: bool = True) -> str:
        """Ticks, their grid and the labels of the axes."""
        bottom = self.height - BOTTOM
        right = self.right
        parts = []
        for value, text in self.x_axis.ticks():
            at = f"{self.x(value):.1f}"
            parts.append(f'<path class="tick" d="M{at} {bottom}v5"/>')
            parts.append(
                f'<text x="{at}" y="{bottom + 9}" dy=".8em" text-anchor="middle">{text}</text>'
            )
        for value, text in self.y_axis.ticks():
            at = f"{self.y(value):.1f}"
            line = f"M{LEFT} {at}H{right}" if grid else f"M{LEFT} {at}h-5"
            parts.append(f'<path class="{"grid" if grid else "tick"}" d="{line}"/>')
            parts.append(
                f'<text x="{LEFT - 8}" y="{at}" dy=".33em" text-anchor="end">{text}</text>'
            )
        parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        middle = (LEFT + right) / 2
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{self.height - 8}" '
            f'text-anchor="middle">{escape(self.x_axis.label)}</text>'
        )
        centre = (TOP + bottom) / 2
        parts.append(
            f'<text class="label" transform="translate(14 {centre:.0f}) rotate(-90)" '
            f'dy=".3em" text-anchor="middle">{escape(self.y_axis.label)}</text>'
        )
        return "".join(parts)

    def points(self, xs: Sequence[float] | np.ndarray, ys: Sequence[float] | np.ndarray) -> str:
        """The coordinates of those points that are numbers, to a tenth of a unit."""
        return " ".join(
            f"{self.x(x):.1f},{self.y(y):.1f}"
            for x, y in zip(xs, ys, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        )

    def line(self, xs: np.ndarray, ys: np.ndarray, css: str, more: str = "") -> str:
        return f'<polyline class="{css}" points="{self.points(xs, ys)}"{more}/>'

    def dots(self, xs: np.ndarray, ys: np.ndarray, css: str) -> str:
        return "".join(
            f'<circle class="{css}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5"/>'
            for x, y in zip(xs, ys, strict=True)
            if math.isfinite(y)
        )

    def band(self, xs: np.ndarray, low: np.ndarray, high: np.ndarray, css: str) -> str:
        there = np.isfinite(low) & np.isfinite(high)
        around = np.concatenate([xs[there], xs[there][::-1]])
        edge = np.concatenate([low[there], high[there][::-1]])
        return f'<polygon class="{css}" points="{self.points(around, edge)}"/>'

    def level(self, value: float, text: str) -> str:
        """A line across at a value; its name is in the margin, where no line crosses it."""
        at = self.y(value)
        right = self.right
        return (
            f'<path class="level" d="M{LEFT} {at:.1f}H{right}"/>'
            f'<text class="level" x="{right + 5}" y="{at:.1f}" '
            f'dy=".33em">{escape(text)}</text>'
        )

    def image(self, uri: str) -> str:
        """A picture that fills the drawing area."""
        return (
            f'<image href="{uri}" x="{LEFT}" y="{TOP}" width="{self.right - LEFT}" '
            f'height="{self.height - TOP - BOTTOM}" preserveAspectRatio="none"/>'
        )

    def clipped(self, content: str, name: str) -> str:
        """Content that is cut off at the edges of the drawing area."""
        return (
            f'<clipPath id="{name}"><rect x="{LEFT - 4}" y="{TOP - 2}" '
            f'width="{self.right - LEFT + 8}" height="{self.height - TOP - BOTTOM + 4}"/>'
            f'</clipPath><g clip-path="url(#{name})">{content}</g>'
        )

    def svg(self, content: str, title: str, more: str = "") -> str:
        """The element itself. A title element would be a tooltip, so the name is an attribute."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(title)}"{more}>{content}</svg>'
        )
