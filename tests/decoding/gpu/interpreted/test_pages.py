"""Keys and values in pages give bit for bit the logits of slots, in whatever order the pages lie in memory.

Pages and chunks are of 16 positions here, and of 256 elsewhere: Triton's interpreter is thousands of times slower.
"""

import random
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from decoding import Engine, SamplingParams, Sequence
from decoding.cache import paged_cache
from decoding.cache.kv_cache import KVCache
from decoding.cache.paged_cache import PagedCache
from decoding.engine.rounds import room
from decoding.fused.graphs import ForwardGraphs
from decoding.fused.recordings import CudaRecorder
from decoding.gpu import attention
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, engine_over, llama_config, noised, random_prompts, slots_that_give_way

PAGE, NUM_SLOTS, NUM_POSITIONS = 16, 4, 70
A, B, C, D = random_prompts((37, 5, 41, 20), seed=2)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    of = attention._Tile.of
    monkeypatch.setattr(attention, "CHUNK", PAGE)
    monkeypatch.setattr(attention._Tile, "of", lambda *model: replace(of(*model), keys=PAGE))
    for module in (paged_cache, room):
        monkeypatch.setattr(module, "PAGE", PAGE)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return sped_up(build(llama_config(num_hidden_layers=1), seed=1))


@pytest.fixture(scope="module")
def draft() -> LanguageModel:
    return sped_up(noised(build(llama_config(num_hidden_layers=1), seed=1), 0.1))


def sped_up(network: PreTrainedModel) -> LanguageModel:
    model = LanguageModel(network, frozenset())
    model.exact, model.close_call = "on", 0.0  # as where the measurement at load finds it invariant
    model.speed_up()
    assert model.fused is not None
    assert model.fused.is_on_gpu
    return model


@pytest.fixture
def given_way(monkeypatch) -> list[int]:
    """The slots of rows in flight that give way, from now on."""
    return slots_that_give_way(monkeypatch)


def shuffled(tokens_per_slot: int | None = None) -> PagedCache:
    cache = PagedCache(NUM_SLOTS, NUM_POSITIONS, torch.device("cpu"), tokens_per_slot)
    random.Random(3).shuffle(cache.pages._free)
    return cache


def logits(model: LanguageModel, cache: KVCache, num_times: int = 1) -> list[torch.Tensor]:
    """Read prompts in chunks, copy a prefix, change slots, and verify drafts of unequal lengths, over a cache."""
    found, model.cache = [], cache

    def score(starts: list[int], rows: list[list[int]], slots: list[int] | None = None) -> None:
        width = max(map(len, rows))
        tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        every_BT = torch.arange(width).expand(len(rows), -1)
        lengths = None if len({*map(len, rows)}) == 1 else [*map(len, rows)]
        found.extend(model.forward(starts, tokens_BT, every_BT, slots, lengths).clone() for _ in range(num_times))

    model.prefill([2, 0], [A[:30], B])
    model.prefill([2], [A[30:]], [30])
    score([len(B)], [[1]], [0])
    cache.copy(2, 1, 35)
    assert cache.reserve(1, 34, 60)
    model.prefill([1], [C[:6]], [35])
    score([6, 41, 37], [[2], [3], [4]])  # plain, and the donor goes on in the page that was copied
    score([7, 42, 38], [[2, 5, 6], [3], [4, 7]])  # drafts of unequal lengths
    cache.swap(0, 2, 38, 7)
    score([39, 43, 8], [[8, 9], [9, 1], [1, 2]])  # some were rejected, and two rows have changed places
    assert cache.reserve(1, 0, 0)
    assert cache.reserve(1, 0, 30)
    model.prefill([1], [D])  # another row, in pages that were given back
    score([40, 20, 10], [[5], [6], [7]])
    score([41, 21, 11], [[5] * 4, [6] * 9, [7] * 2])
    return found


@pytest.fixture(scope="module")
def of_slots(model) -> list[torch.Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        of = attention._Tile.of
        patch.setattr(attention, "CHUNK", PAGE)
        patch.setattr(attention._Tile, "of", lambda *model: replace(of(*model), keys=PAGE))
        return logits(model, KVCache(NUM_SLOTS, NUM_POSITIONS, torch.device("cpu")))


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(*each) for each in zip(found, expected, strict=True))


def test_pages_give_the_logits_of_slots(model, of_slots):
    assert same(logits(model, shuffled()), of_slots)


def test_pages_give_them_with_one_program_for_all_chunks(model, of_slots, monkeypatch):
    monkeypatch.setattr(attention, "_ENOUGH_PROGRAMS", 0)
    assert same(logits(model, shuffled(tokens_per_slot=30)), of_slots)


def test_recorded_forwards_read_the_table_as_it_is_when_they_are_replayed(model, of_slots, monkeypatch, gpu):
    monkeypatch.setattr(model, "graphs", ForwardGraphs(model._run_fused, CudaRecorder()))
    found = logits(model, shuffled(), num_times=3)  # as it is, recorded, replayed
    assert same(found, [each for each in of_slots for _ in range(3)])
    assert gpu.num_replays > len(of_slots)


# Engines with few pages


PARAMS = SamplingParams(max_tokens=9, temperature=0.8, ignore_eos=True)
ROWS = [[*D, *B], [7], [*D, *B], B]  # two begin alike, with a whole page and a part of one


def engine_of(
    target: LanguageModel, draft: LanguageModel | None, tokens_per_slot: int | None, num_slots: int = 3
) -> Engine:
    for each in (target, draft):
        if each is not None:
            each.tokens_per_slot = tokens_per_slot
    sizes = {"num_slots": num_slots, "num_speculative_tokens": 2, "max_model_len": 40}
    engine = engine_over(target, draft, "none" if draft is None else "model", **sizes)
    assert engine.lanes[0].ahead is not None
    return engine


def texts(engine: Engine) -> list[list[int]]:
    rows = [Sequence.create(prompt, PARAMS, run_seed=1, row=row) for row, prompt in enumerate(ROWS)]
    list(engine.stream(rows))
    return [row.output_token_ids for row in rows]


@pytest.fixture(scope="module")
def plain(model) -> list[list[int]]:
    """Each text by itself, in a page of 256."""
    return texts(engine_of(model, None, None, num_slots=1))


@pytest.mark.parametrize("drafts", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "draft"])
def test_rows_give_way_where_pages_are_few_and_go_on_with_the_same_text(model, draft, drafts, plain, given_way):
    assert texts(engine_of(model, draft if drafts else None, tokens_per_slot=16)) == plain
    assert given_way
