"""What every variant looks like: eight colours that colour-blind readers can tell apart, after
Okabe and Ito, and five line styles, so that forty variants differ."""

from __future__ import annotations

LIGHT = (
    "#0072B2",
    "#D55E00",
    "#007E5C",
    "#B5508A",
    "#595959",
    "#A86E00",
    "#2E97CF",
    "#6A3D9A",
)
DARK = (
    "#56B4E9",
    "#FF8A3D",
    "#2CC295",
    "#E59AC4",
    "#B8B8B8",
    "#E6B43C",
    "#8FD0FF",
    "#B99AE8",
)
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (1.5, 2), (8, 2.5, 1.5, 2.5), (12, 2))


def colour(style: int) -> int:
    """The number of a variant's colour."""
    return style % len(LIGHT)


def dash(style: int) -> tuple[float, ...]:
    """Lengths of strokes and gaps, in line widths or so; a colour that comes again has another.

    >>> dash(0), dash(8)
    ((), (12, 2))
    """
    return DASHES[(style + style // len(LIGHT)) % len(DASHES)]
