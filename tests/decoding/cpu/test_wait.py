"""A thread waits for a question without being woken, and no question is missed."""

from queue import SimpleQueue
from threading import Thread

import pytest

from decoding.cpu.library import library
from decoding.cpu.wait import Bell, has_room

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler here")


@pytest.fixture
def bell(monkeypatch):
    """One that is rung often, and waits a minute for the next ring."""
    monkeypatch.setattr("decoding.cpu.wait.has_room", lambda: True)
    bell = Bell()
    bell._pace = 0.001
    monkeypatch.setattr("decoding.cpu.wait._LOOK", 60 / bell._pace)
    return bell


def test_a_ring_of_another_thread_ends_the_wait(bell):
    ringing = Thread(target=bell.ring)
    before = bell.num_rung
    ringing.start()
    assert bell.wait(before)
    ringing.join()
    assert bell.wait(before), "it has rung before"


def test_a_wait_without_a_ring_ends_and_says_so(bell, monkeypatch):
    monkeypatch.setattr("decoding.cpu.wait._LOOK", 0)
    assert not bell.wait(bell.num_rung)


def test_a_thread_does_not_look_where_questions_come_seldom_or_there_is_no_cpu_for_it(bell, monkeypatch):
    bell._pace = 0.005
    assert not bell.wait(bell.num_rung)
    monkeypatch.undo()
    monkeypatch.setattr("decoding.cpu.wait.has_room", lambda: False)
    crowded = Bell()
    crowded._pace = 0.001
    assert not crowded.wait(crowded.num_rung - 1), "not even at once: the caller waits by other means"


@pytest.mark.parametrize(
    ("num_cpus", "quota", "num_threads", "expected"),
    [
        (8, "max 100000", 7, True),
        (8, "max 100000", 8, False),
        (8, "100000 100000", 1, False),
        (8, "200000 100000", 1, True),
        (1, None, 1, False),
        (2, None, 1, True),
    ],
)
def test_there_is_room_where_the_process_may_use_a_cpu_more_than_torch_has_threads(
    num_cpus, quota, num_threads, expected, monkeypatch, tmp_path
):
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    monkeypatch.setattr("decoding.cpu.wait._QUOTA", file)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(num_cpus)), raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: num_threads)
    assert has_room() == expected


def test_every_question_is_answered_whether_it_comes_before_the_wait_during_it_or_long_after(monkeypatch):
    monkeypatch.setattr("decoding.cpu.wait.has_room", lambda: True)
    bell, asked, answered = Bell(), SimpleQueue[int | None](), SimpleQueue[int]()

    def answer() -> None:
        while True:
            num_rung = bell.num_rung
            if asked.empty():
                bell.wait(num_rung)
            question = asked.get()
            bell.note_question()
            if question is None:
                return
            answered.put(question)

    def ask(question: int | None) -> None:
        asked.put(question)
        bell.ring()

    answering = Thread(target=answer)
    answering.start()
    for number in range(500):
        ask(2 * number)
        if number % 3:  # two at once
            ask(2 * number + 1)
            assert {answered.get(timeout=60), answered.get(timeout=60)} == {2 * number, 2 * number + 1}
        else:
            assert answered.get(timeout=60) == 2 * number
        if number % 100 == 99:
            bell.wait(bell.num_rung)  # for longer than the other thread looks
    ask(None)
    answering.join(60)
    assert not answering.is_alive()
