"""Every signal that a selector may ask for, declared once.

A selector lists in `needs` what must come with every update or from the server, and in `probes`
what it may ask before it selects; nobody computes anything else. How a client, or the server,
measures a signal is in `engine/signals.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TRAINING = "training"  # all samples that a client trains on in the course of the job
SEEN = "seen"  # those that it trains on this time
HELD_OUT = "held_out"  # those that it keeps for its opinions

FINGERPRINT_BITS = 64


@dataclass(frozen=True)
class Signal:
    """What can be asked, of whom, and which data must be kept from training for it."""

    name: str
    meaning: str
    with_update: bool = False  # a client sends it along with its update
    as_probe: bool = False  # a client answers it outside a round
    trains: bool = False  # as a probe it is asked of the model the client has trained for it
    of_model: bool = True  # as a probe it is asked of a model, which the client receives for it
    # What it costs a client: so many forward passes over its samples, and what it sends as the
    # answer to a probe, for which it may also receive the model. Along with an update, only the
    # passes cost something: weights are part of the update, and a number is nothing beside it.
    passes: int = 0
    over: str = TRAINING  # TRAINING, SEEN or HELD_OUT
    sends_model: bool = False  # something of the model's size; else eight bytes, as a number has
    by_client: bool = True  # whether a client has anything to do or to send for it
    from_server: bool = False  # the server computes it
    kept: str = ""  # the share, in words: what it is of, and what it is kept for
    share: str | None = None  # the job key that says how much data is kept for it ...
    default_share: float = 0.0  # ... and how much that is where the job does not say
    instead: str | None = None  # the job key that brings this data from elsewhere, where it is set


SIGNALS: dict[str, Signal] = {}


def _declare(name: str, meaning: str, **properties: bool | str | float) -> str:
    SIGNALS[name] = Signal(name, meaning, **properties)  # type: ignore[arg-type]
    return name


# Asked of clients.
ACCURACY_GAIN = _declare(
    "accuracy_gain",
    "accuracy on the samples trained on, after minus before",
    with_update=True,
    passes=2,
    over=SEEN,
)
DIRECTION = _declare(
    "direction",
    "(received weights - own weights) / learning rate, flat",
    with_update=True,
    as_probe=True,
    trains=True,
    sends_model=True,
)
WEIGHTS = _declare(
    "weights",
    "own weights after training, flat",
    with_update=True,
    as_probe=True,
    trains=True,
    sends_model=True,
)
LOSS = _declare(
    "loss",
    "mean loss of the received model on the client's own training data",
    with_update=True,
    as_probe=True,
    passes=1,
)
INTERVIEW_ACCURACY = _declare(
    "interview_accuracy",
    "accuracy on the server's interview set: of the client's own model, as a probe of the received",
    with_update=True,
    as_probe=True,
    by_client=False,  # the server has the interview set, and the weights that come with an update
    share="interview_fraction",
    kept="of the test set for interviews",
    default_share=0.2,
)
OPINIONS = _declare(
    "opinions",
    "accuracy of the received model on the client's own held-out data",
    as_probe=True,
    passes=1,
    over=HELD_OUT,
    share="holdout_fraction",
    kept="of each client's samples for its opinions",
    default_share=0.2,
)
# To read its samples once costs a client little beside a forward pass, so no pass is counted.
FINGERPRINT = _declare(
    "fingerprint",
    "64 bits (zeros and ones) of the client's training data, alike where the data are alike",
    as_probe=True,
    of_model=False,
)
# Asked of the server.
GLOBAL_ACCURACY = _declare(
    "global_accuracy",
    "accuracy and loss of the global model on test data, every round",
    from_server=True,
)
PUBLIC_LOSS = _declare(
    "public_loss",
    "the loss of any parameters on the server's public set",
    from_server=True,
    share="public_fraction",
    kept="of the training samples for the server's public set",
    default_share=0.05,
    instead="public_data_set",
)

NEEDS = tuple(s.name for s in SIGNALS.values() if s.with_update or s.from_server)
PROBES = tuple(s.name for s in SIGNALS.values() if s.as_probe)
SHARES = {s.share: s for s in SIGNALS.values() if s.share is not None}


def refuse_unknown_signals(owner: str, needs: Iterable[str], probes: Iterable[str]) -> None:
    """A selector class that asks for what nobody measures is refused, by name, when it is made."""
    for kind, asked, known in (("needs", needs, NEEDS), ("probes", probes, PROBES)):
        for name in asked:
            if name not in known:
                raise ValueError(
                    f"{owner}.{kind}: expected some of {', '.join(known)}, got {name!r}"
                )
