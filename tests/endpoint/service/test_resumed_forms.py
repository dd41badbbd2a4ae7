"""Forms that another engine goes on with, whose drafts are others, are those that the lost one would have written."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError
from transformers import AutoTokenizer

from actors.engine.deltas import Delta, Growth
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.engine.load import load_parts
from tests.decoding.tiny import check_counts
from tests.endpoint.service.test_backend import Handle, read
from tests.worlds.rows import TRAINED_FORMS, json_prompts

pytestmark = pytest.mark.anyio
PAIR = Path("examples/tiny_pair")
ASKED = [TRAINED_FORMS[0], *TRAINED_FORMS[:-1]]
Run = list[tuple[list[Delta], Sequence]]


@pytest.fixture(scope="module")
def runs() -> tuple[Run, Run]:
    """What two engines tell of the same rows, which they write beside others, whose texts they draft from."""
    options = EngineOptions(drafter="suffix", num_slots=16, max_model_len=256, num_speculative_tokens=4)
    target = load_parts(str(PAIR / "target"), None, options, "cpu", "float32").target
    prompts = json_prompts(AutoTokenizer.from_pretrained(PAIR / "target"))

    def row(number: int) -> Sequence:
        params = SamplingParams(structured=ASKED[number % len(ASKED)], temperature=0.8, max_tokens=24)
        return Sequence.create(prompts[number % 20], params, run_seed=1, row=number)

    def run(others: range) -> Run:
        parts = load_parts(str(PAIR / "target"), None, options, "cpu", "float32", target_model=target.share())
        engine, sequences = Engine.over(parts, options), [row(number) for number in range(len(ASKED))]
        growing = [(Growth(0, sequence), list[Delta](), sequence) for sequence in sequences]
        engine.submit([*(row(number) for number in others), *sequences])
        while not all(sequence.is_finished for sequence in sequences):
            engine.step()
            for growth, deltas, _ in growing:
                if not (deltas and deltas[-1].ending) and (delta := growth.look()) is not None:
                    deltas.append(delta)
        return [(deltas, sequence) for _, deltas, sequence in growing]

    return run(range(20, 36)), run(range(40, 44))


async def test_a_form_that_a_second_replica_goes_on_with_is_the_same_wherever_the_first_was_lost(runs):
    are_others = []
    for (first, lost), (again, whole) in zip(*runs, strict=True):
        assert (lost.output_token_ids, lost.error) == (whole.output_token_ids, None)
        check_counts(lost)
        check_counts(whole)
        are_others.append(first != again)
        for lost_after in range(1 + len(first)):
            told = await read(Handle([[delta] for delta in first[:lost_after]] + [ActorDiedError()], [again]))
            assert [token for delta in told for token in delta.token_ids] == whole.output_token_ids
            endings = [delta.ending for delta in told if delta.ending is not None]
            assert [(each.finish_reason, each.stop_reason) for each in endings] == [(whole.finish_reason, None)]
            for delta in told:
                may_end_inside_its_draft = delta is told[-1] and whole.finish_reason == "stop"
                own = len(delta.token_ids) - delta.num_accepted
                assert own == 1 or (own == 0 and (may_end_inside_its_draft or not delta.token_ids))
                assert delta.num_accepted <= delta.num_drafted
    assert sum(are_others) > 4, "the engines draft alike, and so nothing was tried"
