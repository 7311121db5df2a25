"""FedScale client managers that know nothing of us."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import MakeJob, records, run
from engine_worlds import data_of
from fedscale.cloud.client_manager import ClientManager

from fedsuv_plugin import named
from fedsuv_plugin.engine.client_manager import SelectorClientManager
from fedsuv_plugin.engine.foreign_manager import ForeignManager, adopt
from fedsuv_plugin.errors import UserError


class Last(ClientManager):  # type: ignore[misc]
    """Chooses the clients with the highest ids, and notes FedScale's calls."""

    work: dict[int, float]
    feedback: list[tuple[int, int, bool]]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        type(self).work = {}
        type(self).feedback = []

    def registerDuration(
        self,
        client_id: int,
        batch_size: int,
        local_steps: float,
        upload_size: float,
        download_size: float,
    ) -> None:
        self.work[client_id] = batch_size * local_steps
        super().registerDuration(client_id, batch_size, local_steps, upload_size, download_size)

    def select_participants(self, num_of_clients: int, cur_time: float = 0) -> list[int]:
        return sorted(self.getFeasibleClients(cur_time))[-num_of_clients:]

    def register_feedback(self, client_id: int, reward: float, **options: Any) -> None:
        self.feedback.append((options["time_stamp"], client_id, options["success"]))


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> type[Last]:
    monkeypatch.setattr(named, "client_manager_class", lambda name, points=None: Last)
    return Last


def test_it_runs_a_job(job: MakeJob, last: type[Last]) -> None:
    rounds = records(run(job(rounds=3, overcommitment=1.3, num_participants=4)))
    assert [r["asked"] for r in rounds] == [[16, 17, 18, 19, 20]] * 3
    assert [len(r["valid"]) for r in rounds] == [4] * 3
    told = [(r["round"], c, c in r["valid"]) for r in rounds for c in r["asked"]]
    assert last.feedback == told
    assert all(r["selector"] == {} for r in rounds)


def test_the_same_job_gives_the_same_records(job: MakeJob, last: type[Last]) -> None:
    first = run(job())
    assert records(first, "metrics.jsonl") == records(run(job()), "metrics.jsonl")


def test_one_without_a_state_writes_no_checkpoint(job: MakeJob, last: type[Last]) -> None:
    assert not (run(job(checkpoint_every=1)) / "checkpoint").exists()


def test_it_hears_of_local_epochs(job: MakeJob, last: type[Last]) -> None:
    made = job(local_epochs=2, rounds=1)
    run(made)
    sizes = data_of(made).getSize()["size"]
    assert [last.work[i + 1] for i in range(20)] == pytest.approx((2 * sizes).tolist())


def test_it_decides_itself_who_is_there(job: MakeJob, last: type[Last]) -> None:
    with pytest.raises(UserError, match="available_clients: expected none with sample_mode random"):
        run(job(available_clients=5))


def test_ours_are_not_wrapped_and_others_are_once(job: MakeJob) -> None:
    ours = SelectorClientManager.__new__(SelectorClientManager)
    assert adopt(ours, job().config) is ours
    assert isinstance(adopt(object(), job().config), ForeignManager)


def test_stock_random_selection_runs_a_job(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedScale's own ClientManager, as it comes."""
    monkeypatch.setattr(named, "client_manager_class", lambda name, points=None: ClientManager)
    random.seed(1)
    rounds = records(run(job(rounds=2)))
    assert [len(r["asked"]) for r in rounds] == [5, 5]
