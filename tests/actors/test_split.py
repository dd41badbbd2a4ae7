"""Draft and target apart: the same tokens as together, whatever happens to the draft actor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

from actors.draft_actor import DraftActor
from actors.draft_link import DraftLink
from actors.draft_mirror import DraftTerms
from actors.remote_drafter import RemoteDrafter
from actors.settings import DraftSettings, ModelSettings
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters import make_drafter
from decoding.model import LanguageModel
from pipeline.logs import LogSettings

pytestmark = pytest.mark.ray
Pair = tuple[str, str]
NUM_SLOTS, MAX_LEN, K = 4, 96, 5
PROMPTS = [[5, 6, 7, 8, 9] * n + [20 + n] for n in (1, 3, 2, 6, 1, 4, 9, 2)]
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "sampled": SamplingParams(temperature=0.8, max_tokens=24, n=2),
    "penalized": SamplingParams(
        temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.3, max_tokens=20, min_tokens=4
    ),
    "stopped": SamplingParams(temperature=0.8, max_tokens=24, stop_token_ids=tuple(range(0, 300, 9))),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices: threads only cost, and others work on this machine, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(text_pair: Pair) -> LanguageModel:
    return LanguageModel.load(text_pair[0], "cpu")


@pytest.fixture(scope="module")
def draft_actor(text_pair: Pair, ray_address: str) -> Iterator[Any]:
    models = ModelSettings(target=text_pair[0], draft=text_pair[1], device="cpu", dtype="float32")
    actor = ray.remote(DraftActor).options(num_cpus=0).remote(models, 3, "test", LogSettings(level="error"))
    yield actor
    ray.kill(actor)


def link_to(actor: Any, **settings: Any) -> DraftLink:
    return DraftLink(lambda lost: ray.put(actor), DraftSettings(**{"timeout_s": 60.0, **settings}))


def engine_over(target: LanguageModel, drafter: Any, verification: str = "coupled") -> Engine:
    options = EngineOptions(
        num_slots=NUM_SLOTS, max_model_len=MAX_LEN, num_speculative_tokens=K, verification=verification
    )
    return Engine([(target, drafter)], options, MAX_LEN)


def terms(target: LanguageModel, verification: str = "coupled", most_candidates: int = 0) -> DraftTerms:
    return DraftTerms(NUM_SLOTS, MAX_LEN, target.vocab_size, target.eos_token_ids, verification, most_candidates)


@pytest.fixture
def remote(target: LanguageModel, draft_actor: Any) -> RemoteDrafter:
    link = link_to(draft_actor)
    assert link.connect(target.vocab_size)
    return RemoteDrafter(link, "lane", terms(target), 60.0)


def counts_and_tokens(sequences: list[Sequence]) -> list[Any]:
    return [(s.output_token_ids, s.finish_reason, s.num_rounds, s.num_accepted_tokens) for s in sequences]


@pytest.mark.parametrize("name", PARAMS)
def test_a_remote_drafter_drafts_what_a_local_one_drafts(
    target: LanguageModel, text_pair: Pair, remote: RemoteDrafter, name: str
) -> None:
    draft = LanguageModel.load(text_pair[1], "cpu")
    local = make_drafter("model", draft, target.vocab_size, NUM_SLOTS, MAX_LEN)
    expected = counts_and_tokens(engine_over(target, local).generate(PROMPTS, PARAMS[name], seed=3))
    assert counts_and_tokens(engine_over(target, remote).generate(PROMPTS, PARAMS[name], seed=3)) == expected
    assert sum(row[3] for row in expected) > 40
