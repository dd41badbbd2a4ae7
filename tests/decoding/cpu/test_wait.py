"""A thread waits for a question without being woken, and no question is missed."""

import ctypes
from queue import SimpleQueue
from threading import Thread

import pytest

from decoding.cpu.library import library
from decoding.cpu.wait import Bell

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler here")


def _wait(number: ctypes.c_int64, seen: int, seconds: float) -> bool:
    built = library()
    assert built is not None
    built.dray_wait_for_change.restype = ctypes.c_bool
    arguments = (ctypes.byref(number), ctypes.c_int64(seen), ctypes.c_int64(0), ctypes.c_int64(int(1e9 * seconds)))
    return bool(built.dray_wait_for_change(*arguments))


def test_a_number_that_another_thread_changes_is_seen_and_one_that_stays_is_not_waited_for():
    number = ctypes.c_int64(3)
    assert not _wait(number, 3, 0.0)
    assert _wait(number, 2, 0.0), "it had changed before"

    def change() -> None:
        number.value = 4

    changing = Thread(target=change)
    changing.start()
    assert _wait(number, 3, 60.0)
    changing.join()


def test_every_question_is_answered_whether_it_comes_before_the_wait_during_it_or_long_after():
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
