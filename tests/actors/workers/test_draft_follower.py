"""An engine that follows the drafts of its run, here without Ray: the newest that no engine has rejected."""

import asyncio
from pathlib import Path

import pytest
import torch

from actors.engine.loop import EngineLoop
from actors.run_notes import Rejection, RunNotes, WantedDraft
from actors.settings import ModelSettings
from actors.workers.engine_worker import DraftFollower
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.network.language_model import LanguageModel


class Run:
    """The offers of a run in this process."""

    def __init__(self) -> None:
        self.drafts = RunNotes()

    def wanted(self) -> WantedDraft:
        return self.drafts.wanted_draft()

    def reject(self, number: int, rejection: Rejection) -> None:
        self.drafts.reject_draft(number, rejection)


@pytest.fixture
def followed(text_pair: tuple[str, str]) -> tuple[DraftFollower, EngineLoop, Run]:
    target, draft = text_pair
    options = EngineOptions(num_slots=1, num_speculative_tokens=4, draft_length="fixed")
    loop, run = EngineLoop(Engine.load(target, draft, options, device="cpu")), Run()
    return (
        DraftFollower(loop, ModelSettings(target=target, draft=draft, dtype="float32"), run.wanted, run.reject),
        loop,
        run,
    )


def _write(loop: EngineLoop, number: int, first: int = 0) -> list[list[int]]:
    params = SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True)
    sequences = [Sequence.create([5, row], params, row=row) for row in range(first, first + number)]
    asyncio.run(loop.finish(sequences))
    return [sequence.output_token_ids for sequence in sequences]


def test_an_engine_uses_the_newest_draft_and_goes_back_when_another_engine_rejects_it(followed, text_pair):
    follower, loop, run = followed
    follower.look()
    assert loop.engine.draft_version == 0
    run.drafts.offer_drafts({1: text_pair[1], 2: text_pair[1]})
    follower.look()
    assert loop.engine.draft_version == 2
    run.reject(2, Rejection("rolled back", "elsewhere"))
    follower.look()
    assert loop.engine.draft_version == 1
    run.drafts.offer_drafts({})
    follower.look()
    assert loop.engine.draft_version == 0


def test_a_draft_that_cannot_be_used_is_rejected_and_the_engine_keeps_its_own(followed, tmp_path):
    follower, loop, run = followed
    run.drafts.offer_drafts({1: str(tmp_path / "nowhere")})
    follower.look()
    follower.look()
    assert loop.engine.draft_version == 0
    assert run.drafts.rejected_drafts()[1].state == "refused"
    assert "no model at" in run.drafts.rejected_drafts()[1].reason


def test_a_draft_that_an_engine_takes_back_is_rejected_for_all(followed, text_pair, tmp_path):
    follower, loop, run = followed
    plain = _write(EngineLoop(Engine.load(text_pair[0], None, EngineOptions(num_slots=4), device="cpu")), 40)
    network = LanguageModel.load(text_pair[1], "cpu").network
    generator = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator))
    for file in Path(text_pair[1]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    network.save_pretrained(tmp_path)
    texts = _write(loop, 12)
    run.drafts.offer_drafts({1: str(tmp_path)})
    follower.look()
    assert loop.engine.draft_version == 1
    texts += _write(loop, 28, first=12)
    follower.look()
    assert loop.engine.draft_version == 0
    assert run.drafts.rejected_drafts()[1].state == "rolled back"
    assert run.wanted() == WantedDraft()
    assert texts == plain
