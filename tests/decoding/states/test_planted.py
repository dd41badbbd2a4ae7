"""A short table of texts notices each bug by which states elsewhere write wrong text silently."""

from types import SimpleNamespace

import pytest

from decoding.cpu import convolution
from decoding.cpu.recurrence import kernel
from decoding.network.language_model import LanguageModel
from decoding.states import rows as row_states
from decoding.states.book import StateBook
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import loaded, noised, outputs, run
from tests.worlds import rows
from tests.worlds.text_world import TextWorld

pytestmark = pytest.mark.skipif(kernel() is None, reason="the bugs are planted in packed steps, which need a compiler")
EXTEND, COPY, PREFILL = StateBook.extend, StateBook.copy, LanguageModel.prefill
PACKED, CONVOLVE = row_states.PackedStates, convolution.convolve


def _rejected_draft_stays(book, slot, start, num_tokens, *, keeps_each):
    newest = max(book.lengths(slot), default=0)
    entry = book.entry(slot, newest) if newest > start else None
    extension = EXTEND(book, slot, start, num_tokens, keeps_each=keeps_each)
    return extension if entry is None else extension._replace(read=entry)


def _count_of_another_row(spans, reads, *others):
    return PACKED(spans, [*reads[1:], *reads[:1]], *others)


def _prefix_is_too_old(book, source, target, length):
    older = book.longest(source, length - 1)
    entry = book.entry(source, older) if older else None
    copied = COPY(book, source, target, length)
    return copied if entry is None else (entry, copied[1])


def _window_loses_a_column(packed, windows_ETC, *others, **more):
    windows_ETC[:, 0] = 0
    return CONVOLVE(packed, windows_ETC, *others, **more)


def _border_is_off_by_one(model, slots, token_ids, starts=None):
    starts = starts or [0] * len(slots)
    shifted = [[*row[:1], *row[:-1]] if start else row for row, start in zip(token_ids, starts, strict=True)]
    PREFILL(model, slots, shifted, starts)


BUGS = {
    "the state of a rejected draft stays": (StateBook, "extend", _rejected_draft_stays),
    "another row's count is used": (row_states, "PackedStates", _count_of_another_row),
    "a prefix's state is too old": (StateBook, "copy", _prefix_is_too_old),
    "a window loses its first column": (convolution, "convolve", _window_loses_a_column),
    "the border of a chunk is off by one": (LanguageModel, "prefill", _border_is_off_by_one),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> TextWorld:
    folder, network = tmp_path_factory.mktemp("states"), family_network("gated delta", STATES)
    models = {
        "target": loaded(network, folder / "target"),
        "good_draft": loaded(noised(network, 0.1), folder / "draft"),
    }
    found = TextWorld(SimpleNamespace(**models), lambda: rows.shared(12)[:14])
    assert found.alone, "before anything is planted"
    return found


def _written(world: TextWorld) -> list:
    return run(world.engine("good_draft", num_slots=3, num_speculative_tokens=4, max_prefill_tokens=7), world.rows())


def test_without_a_bug_the_table_is_right_and_drafts_are_rejected_and_prefixes_copied(world):
    written = _written(world)
    world.compare(written)
    assert sum(row.num_cached_tokens for row in written) > 20
    assert 0 < sum(row.num_accepted_tokens for row in written) < sum(row.num_draft_tokens for row in written)


@pytest.mark.parametrize("bug", BUGS)
def test_the_table_notices(bug, world, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    assert outputs(_written(world)) != world.alone
