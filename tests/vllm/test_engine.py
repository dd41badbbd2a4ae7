"""VllmEngine: what it writes, counts and refuses, beside Dray's own engine with the same target."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from actors.engine.translation import EncodedRow, decode_row
from decoding import Engine, SamplingParams, Sequence
from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import TargetLostError
from decoding.sequence import TokenLogprobs
from pipeline.run.check import contradictions
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import StopStrings
from tests.pipeline.made_up import input_row

PROMPTS = (
    "Write a shopping list for Nadia on 9 February.",
    "Once upon a time",
    '{"name": "Sandra", "age": 42, "city":',
    "What is 25 x 19?",
    "The magpie of the cave",
    "7 x 8 =",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=48)


def written(engine: Any, sequences: list[Sequence]) -> list[Sequence]:
    """Let an engine write all sequences."""
    engine.submit(sequences)
    finished: list[Sequence] = []
    while engine.has_work:
        finished += engine.step()
    assert Counter(map(id, finished)) == Counter(map(id, sequences)), "each comes back once"
    return sequences


def sequences_of(codec: TextCodec, params: SamplingParams, num: int = len(PROMPTS)) -> list[Sequence]:
    """Return a sequence for each of the first prompts."""
    stop = StopStrings(codec, params.stop).find if params.stop else None
    prompts = [codec.encode(prompt, is_chat=False) for prompt in PROMPTS[:num]]
    return [Sequence.create(prompt, params, row=row, stop_condition=stop) for row, prompt in enumerate(prompts)]


def test_greedy_rows_with_allowed_ids_and_bad_words_are_drays(engine: Any, plain: Engine, codec: TextCodec) -> None:
    """Words of one token and of two, beside rows without any."""
    free = written(plain, sequences_of(codec, GREEDY))
    tokens = [row.output_token_ids for row in free]
    words = [(row[index],) for index, row in enumerate(tokens)] + [tuple(row[6:8]) for row in tokens]
    allowed = tuple(token_id for token_id in range(plain.vocab_size) if token_id % 7)
    for params in (replace(GREEDY, bad_words=words), replace(GREEDY, bad_words=words[:1], allowed_token_ids=allowed)):
        rows = written(engine, [*sequences_of(codec, params), *sequences_of(codec, GREEDY, 1)])
        expected = written(plain, sequences_of(codec, params))
        assert [row.output_token_ids for row in rows] == [*(row.output_token_ids for row in expected), tokens[0]]
        assert [row.output_token_ids for row in expected] != tokens


def test_greedy_rows_beside_sampled_ones_are_drays(engine: Any, plain: Engine, codec: TextCodec) -> None:
    mixed = [
        greedy if number % 2 else sampled
        for number, (greedy, sampled) in enumerate(
            zip(sequences_of(codec, GREEDY), sequences_of(codec, SamplingParams(max_tokens=48)), strict=True)
        )
    ]
    written(engine, mixed)
    expected = written(plain, sequences_of(codec, GREEDY))
    for number in range(1, len(PROMPTS), 2):
        assert mixed[number].output_token_ids == expected[number].output_token_ids
        assert mixed[number].finish_reason == expected[number].finish_reason
        assert mixed[number].stop_reason == expected[number].stop_reason


def test_the_counts_of_every_row_agree(engine: Any, codec: TextCodec) -> None:
    num_drafted = 0
    for params in (
        SamplingParams(max_tokens=60),
        SamplingParams(temperature=0.0, max_tokens=7),
        SamplingParams(max_tokens=60, stop=("a", ". ")),
        SamplingParams(max_tokens=60, stop_token_ids=tuple(range(200, 260))),
    ):
        for sequence in written(engine, sequences_of(codec, params)):
            encoded = EncodedRow(input_row(), ChatPrompt("", []), (sequence,))
            (row,) = decode_row(encoded, codec)
            assert list(contradictions(row)) == []
            num_drafted += sequence.num_draft_tokens
    assert (num_drafted > 0) == engine.has_drafts


def test_limits_and_ends_are_those_of_drays_engine(engine: Any, plain: Engine, codec: TextCodec) -> None:
    eos = next(iter(plain.target.eos_token_ids))
    for params in (
        SamplingParams(temperature=0.0, max_tokens=200),  # up to the end of the context
        SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=60, min_tokens=50),
        SamplingParams(temperature=0.0, max_tokens=60, stop_token_ids=(eos,)),
        SamplingParams(temperature=0.0, max_tokens=40, repetition_penalty=1.3, presence_penalty=0.5),
    ):
        ours = written(plain, sequences_of(codec, params))
        theirs = written(engine, sequences_of(codec, params))
        for own, other in zip(ours, theirs, strict=True):
            assert other.output_token_ids == own.output_token_ids
            assert (other.finish_reason, other.stop_reason) == (own.finish_reason, own.stop_reason)


def test_logprobs_have_the_form_and_values_of_drays_engine(engine: Any, plain: Engine, codec: TextCodec) -> None:
    for num_top in (0, 3):
        params = SamplingParams(temperature=0.0, max_tokens=20, logprobs=num_top)
        (own,), (other,) = (written(each, sequences_of(codec, params, 1)) for each in (plain, engine))
        assert len(other.logprobs) == len(other.output_token_ids)
        for ours, theirs in zip(own.logprobs, other.logprobs, strict=True):
            assert theirs.logprob == pytest.approx(ours.logprob, abs=1e-3)
            assert [token for token, _ in theirs.top] == [token for token, _ in ours.top]


def scores_of(engine: Any, text: ScoredText) -> list[list[TokenLogprobs]]:
    engine.score([text])
    assert text.error is None
    return text.scores


def test_the_tokens_of_a_prompt_are_scored_while_rows_run(engine: Any, plain: Engine, codec: TextCodec) -> None:
    prompt = codec.encode(PROMPTS[0], is_chat=False)
    rows = sequences_of(codec, GREEDY, 2)
    engine.submit(rows)
    (scores,) = scores_of(engine, ScoredText.whole(prompt, 2))
    while engine.has_work:
        engine.step()
    assert all(row.finish_reason in ("stop", "length") for row in rows)
    (expected,) = scores_of(plain, ScoredText.whole(prompt, 2))
    assert [score.logprob for score in scores] == pytest.approx([score.logprob for score in expected], abs=1e-3)
    assert "the prompt has no tokens" in str(engine.problem_with_text(ScoredText.whole([])))
    several = (tuple(prompt[-3:]), (prompt[-1],), ())
    for one, other in zip(
        *(scores_of(each, ScoredText(tuple(prompt[:-3]), several)) for each in (engine, plain)), strict=True
    ):
        assert [score.logprob for score in one] == pytest.approx([score.logprob for score in other], abs=1e-3)


def test_rows_that_end_while_a_prompt_is_scored_come_back_once(engine: Any, codec: TextCodec) -> None:
    rows = sequences_of(codec, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), 2)
    engine.submit(rows)
    engine.submit(sequences_of(codec, SamplingParams(max_tokens=1, stop_token_ids=(10**6,)), 1))  # refused at once
    finished = engine.step()
    more = sequences_of(codec, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), 2)
    engine.submit(more)
    finished += engine.step()
    scores_of(engine, ScoredText.whole(codec.encode(PROMPTS[1], is_chat=False), 1))
    while engine.has_work:
        finished += engine.step()
    assert len(finished) == len(set(finished)) == 5


def test_the_slots_may_become_fewer_and_not_more(engine: Any, codec: TextCodec) -> None:
    for num_slots in (0, 4):
        with pytest.raises(RuntimeError, match=f"loaded with 3 slots, and cannot go on with {num_slots}"):
            engine.resize(num_slots)
    engine.resize(1)
    engine.submit(sequences_of(codec, GREEDY, 3))
    engine.step()
    assert engine.num_running == 1
    engine.resize(3)
    engine.step()
    assert engine.num_running == 3
    engine.clear()


def test_what_vllm_refuses_is_an_error_of_that_row(engine: Any, codec: TextCodec) -> None:
    rows = [
        *sequences_of(codec, SamplingParams(temperature=3.0, max_tokens=4), 1),
        *sequences_of(codec, SamplingParams(max_tokens=4, stop_token_ids=(10**6,)), 1),
        *sequences_of(codec, SamplingParams(max_tokens=4, logprobs=20), 1),
        *sequences_of(codec, GREEDY, 1),
    ]
    written(engine, rows)
    assert "vLLM takes at most 2" in str(rows[0].error)
    assert "sampling.stop_token_ids names 1000000" in str(rows[1].error)
    assert [row.error for row in rows[2:]] == [None, None]


def test_rows_wait_for_slots_and_can_be_dropped_before_and_while_they_run(engine: Any, codec: TextCodec) -> None:
    rows = sequences_of(codec, GREEDY, 5)
    engine.submit(rows)
    assert engine.up_next() == set(rows[:3])
    assert engine.step() == []
    assert (engine.num_running, engine.up_next()) == (3, set())
    engine.drop([rows[0], rows[4]], "not wanted")
    assert engine.up_next() == {rows[3]}
    while engine.has_work:
        engine.step()
    assert [row.finish_reason == "error" for row in rows] == [True, False, False, False, True]
    assert rows[0].error == "not wanted"


def test_a_row_that_cannot_run_is_an_error_of_its_own(engine: Any, codec: TextCodec) -> None:
    good, long, foreign, penalized = sequences_of(codec, GREEDY, 4)
    long.prompt_token_ids = tuple(range(200))
    foreign.prompt_token_ids = (10**6,)
    penalized.params = SamplingParams(temperature=0.0, max_tokens=4, min_p=0.2)
    written(engine, [good, long, foreign, penalized])
    assert good.error is None
    assert "the prompt has 200 tokens and the context is 160" in str(long.error)
    assert "is outside the target's vocabulary" in str(foreign.error)
    if engine.has_drafts:
        assert "sampling.min_p does not work in vLLM beside drafts" in str(penalized.error)
    else:
        assert penalized.error is None


def test_an_engine_whose_step_failed_does_not_go_on(
    engine: Any, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(engine, "_take", lambda _: 1 / 0)
        engine.submit(sequences_of(codec, GREEDY, 2))
        with pytest.raises(TargetLostError, match="vLLM failed: ZeroDivisionError"):
            engine.step()
    with pytest.raises(TargetLostError, match="vLLM failed: ZeroDivisionError"):
        engine.step()
    engine.clear()
    engine._failure = None
