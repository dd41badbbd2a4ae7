"""RunNotes: what is said of draft actors."""

import pytest

from actors.run_notes import DraftWork, RunNotes


@pytest.mark.parametrize(("draft_seconds", "is_idle"), [(0.1, True), (12.0, False)])
def test_draft_actors_that_hardly_draft_are_said_to_stand_idle(draft_seconds, is_idle):
    notes = RunNotes()
    assert notes.draft_work() == ""
    for process in ("one", "other"):
        notes.note_draft_work(process, DraftWork(10.0, 5.0, 0.0, 0.0))
        notes.note_draft_work(process, DraftWork(20.0, 20.0, 4.0, draft_seconds))  # the newest counts, not the sum
    assert f"drafted {draft_seconds / 20:.0%} of the engines' time, and engines waited for them 20%" in (
        notes.draft_work()
    )
    assert ("stand idle" in notes.draft_work()) is is_idle


def test_what_is_written_is_told_while_another_process_notes_more():
    notes = RunNotes()

    class Meanwhile(int):
        """A number with which, while it is added, another process notes what it has written."""

        def __radd__(self, other: int) -> int:
            notes.note_written("another", 1, 1)
            return int(other) + int(self)

    notes.note_written("first", Meanwhile(2), Meanwhile(30))
    notes.note_written("second", 1, 5)
    assert notes.written() == (3, 35)
    assert notes.written() == (4, 36)
