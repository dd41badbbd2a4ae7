"""A target's own MTP head drafts what its equations say, from the committed text alone, and changes no text."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding import Engine, EngineOptions, SamplingParams
from decoding.drafters import make_drafter
from decoding.heads import attach
from decoding.network.language_model import LanguageModel
from decoding.pace.schedule import FixedSchedule
from tests.decoding.drafters.over_heads import PROMPTS, Watched, engine_over
from tests.decoding.heads.mtp.reference import ReferenceHead
from tests.decoding.heads.mtp.tiny_targets import FAMILIES, save_target
from tests.decoding.tiny import outputs, random_prompts


class Case:
    """A target with a random head, and a drafter that is watched."""

    def __init__(self, family: str, folder) -> None:
        self.path, modules = save_target(family, folder)
        network = AutoModelForCausalLM.from_pretrained(self.path).eval()
        self.reference, self.target = ReferenceHead(family, modules, network), LanguageModel.load(self.path, "cpu")
        self.head = attach.attach_own(self.target, self.path)

    def watched(self, num_slots: int = 3):
        plain = type(make_drafter("mtp", self.head.share(), 48, 1, 8))
        drafter = type("WatchedMtp", (Watched, plain), {})(self.head.share(), num_slots, 80)
        drafter.seen = []
        return drafter

    def check(self, drafter) -> None:
        assert len(drafter.seen) > 10
        for tokens, drafted, _ in drafter.seen:
            assert drafted == self.reference.draft(tokens, len(drafted)), tokens


@pytest.fixture(autouse=True)
def random_heads_are_taken(monkeypatch):
    monkeypatch.setattr(attach, "LEAST_AGREEMENT", 0.0)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory) -> Case:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attach, "LEAST_AGREEMENT", 0.0)
        found = Case(request.param, tmp_path_factory.mktemp("target"))
    found.head.reads = "normed" if FAMILIES[request.param].reads_normed else "stream"
    return found


def test_each_draft_is_that_of_a_textbook_head_over_the_committed_text(case):
    drafter = case.watched()
    engine = engine_over(case.target, drafter, num_drafted=5)
    sequences = engine.generate(PROMPTS, SamplingParams(max_tokens=14, temperature=0))
    assert any(sequence.num_cached_tokens for sequence in sequences)  # a prefix was copied
    case.check(drafter)
