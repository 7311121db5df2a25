"""The pool: who works on which task, with which model, and in which order results are taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from engine_worlds import Worker

from fedsuv_plugin.engine import executor_pool
from fedsuv_plugin.engine.executor_pool import ExecutorPool, JobFailed, NotRegistered, Refused
from fedsuv_plugin.engine.stock import commons
from fedsuv_plugin.engine.task import NOTHING, TEST, TRAIN, Result, Task

SIZES = np.array([5, 5, 5])


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutorPool]:
    """A pool with a model; its workers go home after the test, and nobody waits for the silent."""
    monkeypatch.setattr(executor_pool, "GOODBYE_SECONDS", 0.05)
    made = ExecutorPool()
    made.publish(0, [np.zeros(2)])
    yield made
    made.shut_down()


def numbered(pool: ExecutorPool, n: int) -> list[Task]:
    return [pool.task(TRAIN, [client]) for client in range(1, n + 1)]


def collect(pool: ExecutorPool, tasks: list[Task]) -> list[Any]:
    """What came of the tasks, in the order in which it was consumed."""
    values: list[Any] = []
    pool.run(tasks, values.append)
    return values


def ask(pool: ExecutorPool, executor: str) -> Any:
    return pool.next_event(executor, wait=0)


def take(pool: ExecutorPool, executor: str) -> Task:
    """An executor with a model asks for a task and gets one."""
    return Task.from_event(ask(pool, executor))


def joined(pool: ExecutorPool, executor: str) -> None:
    """An executor registers and gets the model."""
    pool.admit(executor, SIZES)
    assert ask(pool, executor).name == commons.UPDATE_MODEL


def until_waiting(pool: ExecutorPool, n: int) -> None:
    """Return when so many tasks wait for an executor."""
    with pool._lock:
        assert pool._to_do.wait_for(lambda: len(pool._waiting) == n, timeout=30)


@contextmanager
def running(pool: ExecutorPool, tasks: list[Task]) -> Iterator[list[Any]]:
    """Tasks are being run by another thread; the list is what came of them, all at the end."""
    values: list[Any] = []
    thread = threading.Thread(target=pool.run, args=(tasks, values.append))
    thread.start()
    yield values
    thread.join(30)
    assert not thread.is_alive()


@contextmanager
def beating(pool: ExecutorPool, *executors: str) -> Iterator[None]:
    """These executors show that they live, twenty times a second."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            for executor in executors:
                pool.renew(executor)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    over.set()
    thread.join(30)


# ---- tasks


def test_results_are_consumed_in_the_order_of_tasks_whoever_is_faster(pool: ExecutorPool) -> None:
    """The first task is held back until the other executor has done all the others."""
    tasks = numbered(pool, 5)
    others = threading.Event()
    arrived: list[int] = []

    def work(task: Task) -> int:
        if task.number == tasks[0].number:
            assert others.wait(30)
        arrived.append(task.number)
        if len(arrived) == 4:
            others.set()
        return task.number

    Worker(pool, "1", work)
    Worker(pool, "2", work)
    assert collect(pool, tasks) == [task.number for task in tasks]
    assert arrived[-1] == tasks[0].number


def test_executors_share_the_tasks_and_none_is_done_twice(pool: ExecutorPool) -> None:
    """Both executors must be at work at once, or nobody passes the barrier."""
    both = threading.Barrier(2, timeout=30)
    done: list[tuple[str, int]] = []

    def work_as(name: str) -> Any:
        def work(task: Task) -> str:
            both.wait()
            done.append((name, task.number))
            return name

        return work

    Worker(pool, "1", work_as("1"))
    Worker(pool, "2", work_as("2"))
    tasks = numbered(pool, 6)
    assert sorted(collect(pool, tasks)) == ["1"] * 3 + ["2"] * 3
    assert sorted(number for _, number in done) == [task.number for task in tasks]


def test_a_task_for_several_clients_carries_their_states_in_and_out(pool: ExecutorPool) -> None:
    """A toy of SCAFFOLD: what a client brings back is what it carries in the next round."""

    def work(task: Task) -> dict[int, np.ndarray]:
        return {
            client: task.states.get(client, np.zeros(2)) + client * task.settings["rate"]
            for client in task.clients.tolist()
        }

    Worker(pool, "1", work)
    Worker(pool, "2", work)
    states: dict[int, np.ndarray] = {}
    for rate in (1.0, 10.0):
        groups = ([1, 2], [3])
        tasks = [
            pool.task(TRAIN, group, {c: states[c] for c in group if c in states}, rate=rate)
            for group in groups
        ]
        pool.run(tasks, states.update)
    assert {client: state.tolist() for client, state in states.items()} == {
        1: [11.0, 11.0],
        2: [22.0, 22.0],
        3: [33.0, 33.0],
    }


def test_a_task_becomes_an_event_and_a_task_again(pool: ExecutorPool) -> None:
    task = pool.task(TEST, np.array([4, 2]), {2: np.ones(3)}, samples=None, first=1)
    same = Task.from_event(task.to_event())
    assert (same.number, same.kind, same.clients.tolist()) == (task.number, TEST, [4, 2])
    assert same.settings == {"samples": None, "first": 1}
    assert same.states[2].tolist() == [1.0, 1.0, 1.0]


def test_no_two_tasks_have_one_number(pool: ExecutorPool) -> None:
    assert len({pool.task(TRAIN).number for _ in range(50)}) == 50


def test_nothing_to_run_asks_nobody() -> None:
    assert collect(ExecutorPool(), []) == []


# ---- the model


def test_the_current_model_always_comes_before_a_task(pool: ExecutorPool) -> None:
    """Every task is done with the model published last before it, on whichever executor."""
    workers = [Worker(pool, name, lambda task: None) for name in ("1", "2", "3")]
    published: dict[int, float] = {}
    for round_number in range(1, 9):
        pool.publish(round_number, [np.full(2, float(round_number))])
        tasks = numbered(pool, 4)
        published |= {task.number: float(round_number) for task in tasks}
        collect(pool, tasks)
    done_with = {
        number: float(model[0][0]) for worker in workers for number, model in worker.models.items()
    }
    assert done_with == published


def test_a_model_is_sent_once_to_each_executor_and_not_with_every_task(pool: ExecutorPool) -> None:
    for executor in ("1", "2"):
        pool.admit(executor, SIZES)
    pool._waiting.extend(numbered(pool, 3))
    for executor, tasks in (("1", 2), ("2", 1)):
        assert ask(pool, executor).name == commons.UPDATE_MODEL
        for _ in range(tasks):
            pool.deliver(executor, Result(take(pool, executor).number, TRAIN))
    assert ask(pool, "1") == ask(pool, "2") == NOTHING


def test_a_slow_executor_hears_of_the_newest_model_only_and_before_the_next_task(
    pool: ExecutorPool,
) -> None:
    """Executor 1 does all the work of two rounds while executor 2 says nothing.

    When executor 2 asks at last it must not be called to work that is done, and it must hear of
    the newest model before it gets a task of the new round."""
    pool.admit("2", SIZES)
    Worker(pool, "1", lambda task: None)
    for round_number in (1, 2):
        pool.publish(round_number, [np.full(2, float(round_number))])
        collect(pool, numbered(pool, 2))
    pool.publish(3, [np.full(2, 3.0)])
    model = ask(pool, "2")
    assert (model.name, model.meta) == (commons.UPDATE_MODEL, {"round": 3})
    assert model.data[0].tolist() == [3.0, 3.0]
    assert ask(pool, "2") == NOTHING


def test_a_model_published_while_a_task_waits_comes_first(pool: ExecutorPool) -> None:
    pool.admit("1", SIZES)
    assert ask(pool, "1").name == commons.UPDATE_MODEL
    pool._waiting.extend(numbered(pool, 1))
    pool.publish(1, [np.ones(2)])
    assert [ask(pool, "1").name for _ in range(2)] == [commons.UPDATE_MODEL, commons.CLIENT_TRAIN]


# ---- waiting


def test_an_executor_waits_for_its_event(pool: ExecutorPool) -> None:
    """It asks before there is anything, and hears of it as soon as there is."""
    pool.admit("1", SIZES)
    assert ask(pool, "1").name == commons.UPDATE_MODEL
    for round_number in range(20):
        threading.Timer(0.01, pool.publish, [round_number, [np.zeros(2)]]).start()
        assert pool.next_event("1", wait=30).meta == {"round": round_number}


def test_an_executor_that_was_never_admitted_is_told_so(pool: ExecutorPool) -> None:
    result = Result(1, TRAIN, "mine")
    for call in (
        lambda: ask(pool, "9"),
        lambda: pool.renew("9"),
        lambda: pool.deliver("9", result),
    ):
        with pytest.raises(NotRegistered, match="executor 9 has not registered"):
            call()


def test_an_executor_that_registers_again_is_the_same_one(pool: ExecutorPool) -> None:
    for _ in range(3):
        pool.admit("1", SIZES)
    assert len(pool) == 1
    assert pool.sizes.tolist() == [5, 5, 5]
    pool.wait_for_executors(1, timeout=0)


def test_one_executor_too_many_is_welcome(pool: ExecutorPool) -> None:
    for executor in ("1", "2", "3"):
        pool.admit(executor, SIZES)
    pool.wait_for_executors(2, timeout=0)


@pytest.mark.parametrize(
    ("sizes", "difference"),
    [
        ([5, 5], "3 clients here, 2 there"),
        ([5, 4, 6], "client 2 has 5 samples here, 4 there"),
    ],
)
def test_the_clients_sizes_are_those_of_the_first_executor(
    pool: ExecutorPool, sizes: list[int], difference: str
) -> None:
    pool.admit("1", SIZES)
    with pytest.raises(Refused, match=f"^other data: {difference}$"):
        pool.admit("2", np.array(sizes))
    assert pool.sizes.tolist() == [5, 5, 5]
    assert len(pool) == 1
    with pytest.raises(
        JobFailed, match=f"1 came .executor 2 was refused: other data: {difference}"
    ):
        pool.wait_for_executors(2, timeout=0)


def test_the_job_waits_until_all_executors_are_there(pool: ExecutorPool) -> None:
    for executor in ("1", "2"):
        threading.Timer(0.02, pool.admit, [executor, SIZES]).start()
    pool.wait_for_executors(2, timeout=30)
    assert len(pool) == 2


def test_executors_that_do_not_come(pool: ExecutorPool) -> None:
    pool.admit("1", SIZES)
    with pytest.raises(JobFailed, match="expected 2 executors within 0.05 s, 1 came"):
        pool.wait_for_executors(2, timeout=0.05)


# ---- leases


def test_the_task_of_a_silent_executor_goes_to_another_and_counts_once() -> None:
    """Executor 1 takes the first task and falls silent; later it comes back with a result."""
    pool = ExecutorPool(executor_timeout=1.0)
    pool.publish(0, [np.zeros(2)])
    joined(pool, "1")
    joined(pool, "2")
    first, second = numbered(pool, 2)
    with beating(pool, "2"), running(pool, [first, second]) as values:
        pool.renew("1")
        assert Task.from_event(pool.next_event("1", wait=30)).number == first.number
        pool.deliver("2", Result(take(pool, "2").number, TRAIN, "second of 2"))
        event = pool.next_event("2", wait=30)
        assert Task.from_event(event).number == first.number
        with pytest.raises(NotRegistered, match="executor 1 has not registered, or was given up"):
            pool.deliver("1", Result(first.number, TRAIN, "first of 1"))
        pool.deliver("2", Result(first.number, TRAIN, "first of 2"))
    assert values == ["first of 2", "second of 2"]


def test_an_executor_that_shows_that_it_lives_may_work_for_long() -> None:
    """It works for five times as long as it may be silent."""
    pool = ExecutorPool(executor_timeout=0.5)
    pool.publish(0, [np.zeros(2)])
    joined(pool, "1")
    tasks = numbered(pool, 1)
    with beating(pool, "1"), running(pool, tasks) as values:
        number = Task.from_event(pool.next_event("1", wait=30)).number
        threading.Event().wait(2.5)
        pool.deliver("1", Result(number, TRAIN, "late but fine"))
    assert values == ["late but fine"]


def test_one_that_comes_back_is_admitted_again_and_gets_the_model_before_a_task(
    pool: ExecutorPool,
) -> None:
    joined(pool, "1")
    pool.give_up(pool.renew("1"), "a test")
    assert len(pool) == 0
    pool._waiting.extend(numbered(pool, 1))
    pool.admit("1", SIZES)
    assert [ask(pool, "1").name for _ in range(2)] == [commons.UPDATE_MODEL, commons.CLIENT_TRAIN]


def test_registering_again_gives_back_the_task_that_was_out(pool: ExecutorPool) -> None:
    """The process was started anew under its id, and knows nothing of a task."""
    joined(pool, "1")
    pool._waiting.extend(numbered(pool, 2))
    first = take(pool, "1").number
    joined(pool, "1")
    assert take(pool, "1").number == first


def test_an_executor_that_asks_again_has_lost_its_task(pool: ExecutorPool) -> None:
    """The answer with the task was lost on the way; what has been asked anew counts."""
    joined(pool, "1")
    pool._waiting.extend(numbered(pool, 2))
    first = take(pool, "1").number
    assert take(pool, "1").number == first


def test_a_lease_that_has_ended_does_not_end_the_next_one(pool: ExecutorPool) -> None:
    """The end of an old connection may be heard of after the executor has come back."""
    joined(pool, "1")
    old = pool.renew("1")
    joined(pool, "1")
    pool.give_up(old, "its connection ended")
    assert len(pool) == 1


def test_a_call_that_waits_for_an_executor_that_was_given_up_gets_no_task(
    pool: ExecutorPool,
) -> None:
    """Its answer would go nowhere, and the task with it."""
    joined(pool, "1")
    caught: list[Exception] = []

    def wait_for_work() -> None:
        try:
            pool.next_event("1", wait=30)
        except NotRegistered as error:
            caught.append(error)

    waiting = threading.Thread(target=wait_for_work)
    waiting.start()
    pool.give_up(pool.renew("1"), "a test")
    waiting.join(30)
    assert [str(error) for error in caught] in (
        ["executor 1 was given up"],
        ["executor 1 has not registered, or was given up"],  # it asked too late
    )


@pytest.mark.parametrize("number", [1, 99])
def test_a_result_that_nobody_waits_for_is_dropped(pool: ExecutorPool, number: int) -> None:
    """Task 1 is out to another executor, and there is no task 99."""
    joined(pool, "1")
    joined(pool, "2")
    (task,) = numbered(pool, 1)
    assert task.number == 1
    with running(pool, [task]) as values:
        until_waiting(pool, 1)
        take(pool, "1")
        pool.deliver("2", Result(number, TRAIN, "of 2"))
        pool.deliver("2", Result(number, TRAIN, None, "a lie"))
        pool.deliver("1", Result(1, TRAIN, "of 1"))
        pool.deliver("1", Result(1, TRAIN, "of 1, again"))
    assert values == ["of 1"]
    assert not pool._results


def test_a_job_with_nobody_left_waits_and_goes_on_with_whoever_comes() -> None:
    pool = ExecutorPool(executor_timeout=0.2, connection_timeout=30)
    pool.publish(0, [np.zeros(2)])
    joined(pool, "1")
    tasks = numbered(pool, 2)
    with running(pool, tasks) as values:
        with pool._lock:
            assert pool._to_do.wait_for(lambda: not len(pool), timeout=30)
        joined(pool, "new")
        with beating(pool, "new"):
            for _ in tasks:
                pool.deliver("new", Result(take(pool, "new").number, TRAIN, "new"))
    assert values == ["new", "new"]


def test_a_job_with_nobody_left_ends_with_the_reason() -> None:
    pool = ExecutorPool(executor_timeout=0.1, connection_timeout=0.2)
    joined_at_first = ("1", "2")
    for executor in joined_at_first:
        pool.admit(executor, SIZES)
    reason = r"no executor is left \(executor 2: silent for 0.1 s\), and none came within 0.2 s; "
    with pytest.raises(JobFailed, match=f"^{reason}see connection_timeout$"):
        collect(pool, numbered(pool, 1))


def test_work_is_divided_by_those_who_are_there(pool: ExecutorPool) -> None:
    assert pool.shares == 1  # nobody is, but somebody may come
    for n, executor in enumerate(("1", "2", "3"), start=1):
        pool.admit(executor, SIZES)
        assert pool.shares == n


# ---- errors and the end


def test_an_error_ends_the_job_with_its_reason(pool: ExecutorPool) -> None:
    def work(task: Task) -> None:
        if task.clients.tolist() == [3]:
            raise MemoryError("out of memory")

    Worker(pool, "7", work)
    with pytest.raises(JobFailed, match="^executor 7 failed: out of memory$"):
        collect(pool, numbered(pool, 5))


def test_an_error_ends_the_wait_for_executors_at_once(pool: ExecutorPool) -> None:
    threading.Timer(0.02, pool.fail, [JobFailed("executor 1 ended with exit code 2")]).start()
    with pytest.raises(JobFailed, match="exit code 2"):
        pool.wait_for_executors(2, timeout=600)


def test_an_error_while_results_are_awaited_ends_the_wait(pool: ExecutorPool) -> None:
    pool.admit("1", SIZES)
    threading.Timer(0.02, pool.fail, [JobFailed("executor 1 ended with exit code -9")]).start()
    with pytest.raises(JobFailed, match="exit code -9"):
        collect(pool, numbered(pool, 2))


def test_at_the_end_every_executor_hears_it_before_the_job_is_over(
    pool: ExecutorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_pool, "GOODBYE_SECONDS", 30)
    pool.admit("late", SIZES)
    asked = threading.Event()

    def ask_late() -> None:
        asked.set()
        assert pool.next_event("late", wait=30).name == commons.SHUT_DOWN

    worker = Worker(pool, "1", lambda task: None)
    collect(pool, numbered(pool, 4))
    threading.Timer(0.1, ask_late).start()
    pool.shut_down()
    assert asked.is_set()  # it did not return before
    worker.join(30)
    assert worker.heard[-1] == commons.SHUT_DOWN


def test_when_the_job_is_over_nobody_gets_a_task_that_is_left(pool: ExecutorPool) -> None:
    pool.admit("1", SIZES)
    pool._waiting.extend(numbered(pool, 1))
    pool.shut_down()
    assert ask(pool, "1").name == commons.SHUT_DOWN


def test_nobody_waits_for_ever_for_an_executor_that_is_gone(pool: ExecutorPool) -> None:
    pool.admit("1", SIZES)
    pool.shut_down()


def test_nobody_waits_for_an_executor_in_the_middle_of_a_task(
    pool: ExecutorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_pool, "GOODBYE_SECONDS", 600)
    joined(pool, "1")
    pool._waiting.extend(numbered(pool, 1))
    take(pool, "1")
    pool.shut_down()
    assert ask(pool, "1").name == commons.SHUT_DOWN


def test_a_result_may_come_before_it_is_awaited(pool: ExecutorPool) -> None:
    """The second task's, while the first one's is waited for."""
    for executor in ("1", "2"):
        joined(pool, executor)
    tasks = numbered(pool, 2)
    with running(pool, tasks) as values:
        until_waiting(pool, 2)
        first, second = (take(pool, executor).number for executor in ("1", "2"))
        pool.deliver("2", Result(second, TRAIN, "b"))
        pool.deliver("1", Result(first, TRAIN, "a"))
    assert values == ["a", "b"]
