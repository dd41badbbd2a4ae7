"""Coupled text is a function of target, prompt, parameters and noise key, and of nothing else.

One table tells: it holds every pair of a drafter, a draft length, a number of slots, a budget of prompt tokens, what
happens to the rows, and which rows they are. `make gpu-miniature` runs it with the attention and the picks of a GPU in
Triton's interpreter, with every drafter, and with fewer rows, tokens and lengths: a token takes some tenths of a second
there.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from decoding import Engine, SamplingParams, Sequence
from decoding.gpu.available import is_interpreted
from decoding.sampling.judging import MasksBeside, ScoreRequest
from decoding.sampling.token_history import ForbiddenTokens
from tests.decoding import tiny
from tests.decoding.grammar.tiny_grammars import grammars
from tests.decoding.tiny import EVERY_DRAFTER, assert_each_once, engine_over, numbered, outputs, run
from tests.pairs_of_values import covering
from tests.worlds import rows
from tests.worlds.text_world import TextWorld

GRAMMARS = grammars()
DRAFTS = [d for d in EVERY_DRAFTER if d != "model"] + ["good_draft", "unrelated_draft", "perfect_draft"]
NUM_SPECULATIVE_TOKENS, NUM_SLOTS = list(range(1, 9)), [1, 2, 5, 12, 16]
BUDGETS = [512, 1, 7, 64]  # of prompt tokens in a step
if is_interpreted():
    NUM_SPECULATIVE_TOKENS, NUM_SLOTS, BUDGETS = [1, 3, 8], [2, 6], [512, 7]


ROWS = {"mixed": rows.mixed, "samples": rows.samples, "near limits": rows.near_limits, "limited": rows.limited}
if not is_interpreted():
    ROWS |= {"forms": rows.forms, "forbidden": rows.forbidden, "shared": rows.shared}


@pytest.fixture(scope="module")
def worlds(ended) -> dict[str, TextWorld]:
    return {name: TextWorld(ended, make_rows, GRAMMARS) for name, make_rows in ROWS.items()}


Happening = Callable[[TextWorld, Engine, random.Random], list[Sequence]]


def _at_once(world: TextWorld, engine: Engine, chance: random.Random) -> list[Sequence]:
    return list(run(engine, world.rows()))


def _in_another_order(world: TextWorld, engine: Engine, chance: random.Random) -> list[Sequence]:
    own = world.rows()
    chance.shuffle(own)
    return list(run(engine, own))


def _now_and_then(world: TextWorld, engine: Engine, chance: random.Random) -> list[Sequence]:
    waiting, finished = world.rows(), []
    while waiting or engine.has_work:
        num_arriving = chance.choice([0, 0, 1, 2])
        engine.submit(waiting[:num_arriving])
        waiting = waiting[num_arriving:]
        finished += engine.step()
    return finished


def _evicted(world: TextWorld, engine: Engine, chance: random.Random) -> list[Sequence]:
    own = world.rows()
    engine.submit(own)
    while engine.has_work:
        engine.step()
        if chance.random() < 0.3:
            engine.evict(chance.sample(engine.in_flight, len(engine.in_flight) // 2))
            for lane in engine.lanes:
                for slot, resident in enumerate(lane.admission._residents):
                    if resident is None:  # what it held is not to be relied on
                        lane.target.cache.zero(slot)
    return own


def _some_dropped(world: TextWorld, engine: Engine, chance: random.Random) -> list[Sequence]:
    own, finished = world.rows(), []
    unwanted = chance.sample(own, len(own) // 2)
    wanted = [row for row in own if row not in unwanted]
    engine.submit(own)
    while engine.has_work:
        finished += engine.step()
        if unwanted and chance.random() < 0.4:
            engine.drop([unwanted.pop()])
    assert_each_once(finished, own)
    return wanted


def _behind_others(world: TextWorld, engine: Engine, chance: random.Random) -> list[Sequence]:
    run(engine, numbered(rows.PROMPTS, max_tokens=rows.NUM_NEW_TOKENS - 3, seed=50))
    return list(run(engine, world.rows()))


def _masks_sometimes_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, chance = MasksBeside.begin, random.Random(0)

    def begin_sometimes(self: MasksBeside, request: ScoreRequest, when_busy: object) -> None:
        if chance.random() < 0.5:
            begin(self, request, when_busy)

    monkeypatch.setattr(MasksBeside, "begin", begin_sometimes)


HAPPENINGS: dict[str, Happening] = {
    "at once": _at_once,
    "in another order": _in_another_order,
    "now and then": _now_and_then,
    "evicted": _evicted,
    "some dropped": _some_dropped,
    "behind others": _behind_others,
    "any draft lengths": _at_once,
    "masks sometimes beside": _at_once,
    "masks never beside": _at_once,
    "every pick scored again": _at_once,
}


@pytest.mark.parametrize(
    ("kind", "length", "num_slots", "budget", "happening", "which"),
    covering(DRAFTS, NUM_SPECULATIVE_TOKENS, NUM_SLOTS, BUDGETS, list(HAPPENINGS), list(ROWS)),
)
def test_text_is_that_of_the_target_alone_whatever_drafts_and_happens(
    worlds, kind, length, num_slots, budget, happening, which, monkeypatch
):
    world, chance = worlds[which], random.Random(f"{kind} {length} {num_slots}")
    assert world.alone, "before anything is patched"
    match happening:
        case "any draft lengths":
            tiny.schedule_at_random(monkeypatch, seed=chance.randrange(9))
        case "masks sometimes beside":
            _masks_sometimes_beside(monkeypatch)
        case "masks never beside":
            monkeypatch.setattr(MasksBeside, "begin", lambda *_: None)
    sizes = {"num_slots": num_slots, "max_prefill_tokens": budget, "max_model_len": rows.MAX_MODEL_LEN}
    engine = world.engine(kind, num_speculative_tokens=length, **sizes)
    if happening == "every pick scored again":
        monkeypatch.setattr(engine.target, "close_call", 1e6)
    world.compare(HAPPENINGS[happening](world, engine, chance))


def test_the_rows_of_the_table_differ_and_end_in_every_way(worlds):
    mixed = worlds["mixed"].alone
    assert len({tuple(text) for text in mixed}) == len(mixed)
    assert any(row.finish_reason == "stop" for row in worlds["mixed"].each_alone), "some text ends by a stop id"
    assert len({tuple(text) for text in worlds["samples"].alone}) == 3 * rows.NUM_SAMPLES
    sizes = [n + len(text) for n, text in zip(rows.LENGTHS, worlds["near limits"].alone, strict=True)]
    assert sizes == [rows.MAX_MODEL_LEN] * len(rows.LENGTHS)


def test_the_table_sees_tokens_that_are_forbidden_one_position_late(worlds, monkeypatch):
    world = worlds["mixed"]
    apply, expected = ForbiddenTokens.apply, world.alone

    def late(forbidden: ForbiddenTokens, logits, history):
        lengths_BJ = history.lengths_BJ.clone()
        lengths_BJ[:, 1:] -= 1
        return apply(forbidden, logits, replace(history, lengths_BJ=lengths_BJ))

    monkeypatch.setattr(ForbiddenTokens, "apply", late)
    assert outputs(run(world.engine("perfect_draft"), world.rows())) != expected


def test_noise_decides_the_text_and_the_same_noise_the_same_text(models):
    engine = engine_over(models.target)
    params = SamplingParams(temperature=1.0, max_tokens=rows.NUM_NEW_TOKENS)

    def text(run_seed: int, seed: int | None = None) -> list[int]:
        own = SamplingParams(temperature=1.0, max_tokens=rows.NUM_NEW_TOKENS, seed=seed)
        return outputs(run(engine, [Sequence.create(rows.PROMPTS[0], own, run_seed=run_seed)]))[0]

    assert text(1) == text(1) != text(2)
    assert text(1, seed=7) == text(2, seed=7) != text(1)
    same_prompt_twice = outputs(engine.generate([rows.PROMPTS[0], rows.PROMPTS[0]], params))
    assert same_prompt_twice[0] != same_prompt_twice[1]
