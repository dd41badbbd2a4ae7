"""The text does not depend on pages: rows share prefixes by reference, and give way where too few are free.

Where our GPU kernels run rows have pages. Here torch reads them by the same table, so that engines run at their speed.
"""

import pytest
import torch

from decoding.cache import paged_cache
from decoding.cache.kv_cache import SlotLayer
from decoding.cache.paged_cache import PagedCache
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds import room
from decoding.engine.scored_text import ScoredText
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import engine_by, numbered, random_prompts, slots_that_give_way

PAGE = 16
TEMPLATE, *ENDS = random_prompts((35, 9, 2, 20, 1, 6), seed=4)
PROMPTS = [[*TEMPLATE, *end] for end in ENDS] + random_prompts((3, 40), seed=5) + [TEMPLATE] * 3
PARAMS = {"max_tokens": 22, "temperature": 0.8, "ignore_eos": True}


@pytest.fixture
def given_way(monkeypatch) -> list[int]:
    """Give rows pages on a CPU; return the slots of rows in flight that give way."""
    monkeypatch.setenv("DRAY_KERNELS", "off")
    for module in (paged_cache, room):
        monkeypatch.setattr(module, "PAGE", PAGE)

    def allocate(self: LanguageModel, num_slots: int, num_positions: int, _: int = 0) -> None:
        self.cache = PagedCache(num_slots, num_positions, self.device, self.tokens_per_slot)

    written, seen = SlotLayer.write, SlotLayer._visible

    def write(self: SlotLayer, *new: torch.Tensor) -> None:
        if self._cache.pages_SC is None:  # that of a head, which keeps slots
            return written(self, *new)
        plan, pages_SC = self._cache._current, self._cache.pages_SC
        pages_N = pages_SC[plan.slots_N, plan.written_N // PAGE].long()
        for stored_SHPD, new_NHD in zip(self.storage(*new), new, strict=True):
            stored_SHPD.transpose(1, 2)[pages_N, plan.written_N % PAGE] = new_NHD

    def visible(self: SlotLayer, stored_SHPD: torch.Tensor) -> torch.Tensor:
        if self._cache.pages_SC is None:
            return seen(self, stored_SHPD)
        plan, pages_SC = self._cache._current, self._cache.pages_SC
        lines = pages_SC[: len(plan.positions_BT)] if plan.slots_B is None else pages_SC[plan.slots_B]
        stored_BLHD = stored_SHPD.transpose(1, 2)[lines.long()].flatten(1, 2)
        return stored_BLHD[:, : plan.num_visible].transpose(1, 2)

    monkeypatch.setattr(LanguageModel, "allocate", allocate)
    monkeypatch.setattr(SlotLayer, "write", write)
    monkeypatch.setattr(SlotLayer, "_visible", visible)
    return slots_that_give_way(monkeypatch)


def texts(models, kind: str, tokens_per_slot: int | None, replace_every: int = 0, **options) -> list[list[int]]:
    """The texts of an engine with such pages; the weights of its draft are replaced after `replace_every` steps."""
    models.target.tokens_per_slot = tokens_per_slot
    models.good_draft.tokens_per_slot = None if kind == "mapped" else tokens_per_slot  # as engines are loaded
    engine = engine_by(models, kind, **{"num_slots": 4, "max_prefill_tokens": 16} | options)
    rows, num_steps = numbered(PROMPTS, **PARAMS), 0
    scored = [row for prompt in PROMPTS for row in engine.rows_of([ScoredText.whole([*prompt, 1, 2])])]
    engine.submit(row for both in zip(rows, scored, strict=True) for row in both)
    while engine.has_work:
        engine.step()
        num_steps += 1
        if replace_every and num_steps % replace_every == 0:
            engine.replace_draft(engine._live_weights().snapshot(), num_steps)
    for model in (models.target, models.good_draft):
        model.tokens_per_slot = None
    if isinstance(engine.target.cache, PagedCache):
        pages, num_slots = engine.target.cache.pages, engine.options.slots
        had = {page for slot in range(num_slots) for page in pages[slot]}
        assert len(had) + pages.num_free == len(pages._num_users) - 1
    assert all(len(row.asked.found) == len(row.token_ids) - 1 and not row.output_token_ids for row in scored)
    return [row.output_token_ids for row in rows]


@pytest.fixture(scope="module")
def expected(models) -> list[list[int]]:
    """Each text by itself, in slots."""
    return texts(models, "none", None, num_slots=1)


@pytest.mark.parametrize("tokens_per_slot", [None, 34])
def test_a_draft_that_must_read_shared_pages_anew_lets_rows_give_way(
    models, expected, given_way, tokens_per_slot, monkeypatch
):
    """The weights of the draft are replaced: each row writes anew what rows share, for which pages may be too few."""
    give_way, num_lacks = room.Room.give_way, []

    def noted(self: room.Room) -> None:
        num_lacks.append(1)
        give_way(self)

    monkeypatch.setattr(room.Room, "give_way", noted)
    assert texts(models, "good_draft", tokens_per_slot, replace_every=1) == expected
    assert bool(num_lacks) == (tokens_per_slot is not None)


@pytest.mark.parametrize("kind", ["none", "suffix", "good_draft", "mapped", "eagle3"])
@pytest.mark.parametrize("tokens_per_slot", [None, 34])
def test_the_text_is_that_of_slots_with_many_pages_and_with_few(models, expected, given_way, kind, tokens_per_slot):
    assert texts(models, kind, tokens_per_slot) == expected
    assert bool(given_way) == (tokens_per_slot is not None)


def test_a_row_whose_pages_a_draft_has_given_back_lends_no_prefix(models, given_way):
    """A draft may give them back while another row that begins like it gets its slot."""
    drafter = ModelDrafter(models.good_draft, models.target.vocab_size, 2, 64)
    assert drafter.reserve(1, 0, 48)
    drafter.prefill([1], [TEMPLATE])
    drafter.begin(0, 1, PAGE)
    assert drafter.slots.num_known == [PAGE, len(TEMPLATE)]
    assert drafter.reserve(1, 0, 0)
    drafter.begin(0, 1, PAGE)
    assert drafter.slots.num_known == [0, 0]
