"""Who was asked when: a run as a picture, a row a client and a column a round.

The picture has at most 400 x 400 points; in larger runs a point stands for several clients or
rounds, and its shade for how often any of them was asked.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fedsuv_plugin.records import Records

LARGEST = 400  # points each way
SHADES = 4  # of a point that stands for several
VALID = ((150, 193, 224), (105, 167, 212), (60, 140, 196), (0, 96, 160))  # pale: seldom
NOT_VALID = ((244, 184, 132), (236, 152, 90), (226, 126, 52), (200, 80, 0))


@dataclass(frozen=True, eq=False)
class CohortMap:
    """(rows, columns) of palette indices: 0 is not asked, then the shades of mostly valid, then
    those of mostly not valid."""

    points: np.ndarray
    clients: int
    rounds: int

    @property
    def binned(self) -> bool:
        return self.points.shape != (self.clients, self.rounds)

    def png(self) -> str:
        """The picture as a data URI; who was not asked is transparent."""
        from PIL import Image

        rows, columns = self.points.shape
        image = Image.frombytes("P", (columns, rows), self.points.tobytes())
        image.putpalette(list(chain((255, 255, 255), *VALID, *NOT_VALID)))
        content = io.BytesIO()
        image.save(content, "PNG", transparency=0, bits=4)
        return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def cohort_map(rounds: Records, clients: int, last: int) -> CohortMap:
    """The map of a run of `last` rounds over clients with the ids 1 to `clients`."""
    numbers = np.array([r["round"] for r in rounds], int)
    asked = _pairs(numbers, [r["asked"] for r in rounds], clients)
    valid = _pairs(numbers, [r["valid"] for r in rounds], clients)
    rows = min(clients, LARGEST)
    columns = min(last, LARGEST)

    def counts(pairs: np.ndarray) -> np.ndarray:
        row = pairs % clients * rows // clients
        column = pairs // clients * columns // last
        return np.bincount(row * columns + column, minlength=rows * columns)

    times = counts(asked)
    most = max(int(times.max(initial=1)), 1)
    shade = np.ceil(times / most * SHADES).astype(np.uint8)
    mostly_valid = 2 * counts(valid) >= times
    points = np.where(mostly_valid, shade, shade + SHADES)
    points = np.where(times == 0, 0, points).astype(np.uint8)
    return CohortMap(points.reshape(rows, columns), clients, last)


def _pairs(numbers: np.ndarray, ids: list[list[int]], clients: int) -> np.ndarray:
    """(n,) the number of every (round, client) pair, counted from 0."""
    flat = np.fromiter(chain.from_iterable(ids), np.int64)
    return np.repeat((numbers - 1) * clients, [len(each) for each in ids]) + flat - 1
