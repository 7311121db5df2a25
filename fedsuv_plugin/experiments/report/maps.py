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

from fedsuv_plugin.experiments.cohorts import Clients, Cohorts

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


def cohort_map(cohorts: Cohorts, clients: int, last: int) -> CohortMap:
    """The map of a run of `last` rounds over clients with the ids 1 to `clients`."""
    rows = min(clients, LARGEST)
    columns = min(last, LARGEST)

    def counts(those: Clients) -> np.ndarray:
        row = (those.ids.astype(np.int64) - 1) * rows // clients
        column = (those.rounds.astype(np.int64) - 1) * columns // last
        return np.bincount(row * columns + column, minlength=rows * columns)

    times = counts(cohorts.asked)
    most = max(int(times.max(initial=1)), 1)
    shade = np.ceil(times / most * SHADES).astype(np.uint8)
    mostly_valid = 2 * counts(cohorts.valid) >= times
    points = np.where(mostly_valid, shade, shade + SHADES)
    points = np.where(times == 0, 0, points).astype(np.uint8)
    return CohortMap(points.reshape(rows, columns), clients, last)
