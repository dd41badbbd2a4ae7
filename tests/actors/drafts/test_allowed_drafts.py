"""Each token that a draft actor drafts for a row with a grammar is one that the grammar allows at its place.

Engine, remote drafter and the draft actor's mirror are the real ones; they are in one process, and what goes from one
to another is pickled.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from actors.drafts.link import DraftLink
from actors.drafts.mirror import DraftMirror, DraftRequest, DraftTerms
from actors.drafts.remote_drafter import RemoteDrafter
from actors.placement import DraftSettings
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.choices import Verification
from decoding.drafters.base import Drafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.engine.rounds.host_rounds import HostRounds
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.vocabulary.grammars import grammars_of
from tests.actors.drafts.fake_calls import FakeCalls, Reference, actor_named
from tests.decoding.tiny import drafted

NUM_SLOTS, MAX_LEN, K = 3, 96, 5
FORMS = [
    Structured(regex="([0-9]{2}-){6}(one|two)"),
    Structured(json_schema={"type": "array", "items": {"enum": ["yes", "no", 12]}, "minItems": 3, "maxItems": 6}),
    Structured(choice=["a raven and a lighthouse", "a raven and a lamp"]),
]


class Actor:
    """A draft actor's mirror behind calls."""

    def __init__(self, model: LanguageModel, grammars: Grammars) -> None:
        self._model, self._grammars = model, grammars
        self._mirror: DraftMirror | None = None
        self.drafts: list[list[int]] = []  # all that it replied
        self.handle = actor_named("01", draft=self._draft)

    def _draft(self, lane: str, terms: DraftTerms | None, request: DraftRequest) -> Reference:
        if terms is not None:
            self._mirror = DraftMirror(self._model.share(), pickle.loads(pickle.dumps(terms)), self._grammars)
        assert self._mirror is not None
        reply = pickle.loads(pickle.dumps(self._mirror.draft(pickle.loads(pickle.dumps(request)))))
        self.drafts += [draft for draft in reply.drafts if draft]
        return Reference(reply)


@pytest.fixture(scope="module")
def target(text_pair: tuple[str, str]) -> LanguageModel:
    return LanguageModel.load(text_pair[0], "cpu")


@pytest.fixture(scope="module")
def grammars(target: LanguageModel, text_pair: tuple[str, str]) -> Grammars:
    return grammars_of(text_pair[0], target.vocab_size, target.eos_token_ids)


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", ["model", "hybrid"])
def test_every_token_of_a_draft_actor_is_one_that_the_grammar_allows(
    target: LanguageModel,
    text_pair: tuple[str, str],
    grammars: Grammars,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    verification: Verification,
    temperature: float,
) -> None:
    actor = Actor(LanguageModel.load(text_pair[1], "cpu"), grammars)
    link = DraftLink(lambda lost: Reference(actor.handle), DraftSettings(), calls=FakeCalls())
    terms = DraftTerms(NUM_SLOTS, MAX_LEN, target.vocab_size, target.eos_token_ids, verification, 16)
    drafter: Drafter = RemoteDrafter(link, "lane", terms, 60.0)
    if kind == "hybrid":
        drafter = HybridDrafter(SuffixDrafter(), drafter)
    options = EngineOptions(
        num_slots=NUM_SLOTS, max_model_len=MAX_LEN, num_speculative_tokens=K, verification=verification
    )
    engine = Engine([(target.share(), drafter)], options, MAX_LEN, grammars=grammars)

    num_looked_at, forbidden, score_request = 0, list[Any](), HostRounds._score_request

    def asked(rounds: HostRounds, rows: Rows, draft: Draft) -> Any:
        nonlocal num_looked_at
        request = score_request(rounds, rows, draft)
        for sequence, tokens in zip(request.rows.sequences, drafted(request.draft), strict=True):
            num_looked_at += len(tokens)
            forbidden.extend(_forbidden(grammars, sequence, tokens))
        return request

    monkeypatch.setattr(HostRounds, "_score_request", asked)
    params = [SamplingParams(temperature=temperature, max_tokens=40, structured=form) for form in FORMS]
    sequences = [
        Sequence.create([30 + row, 31, 32, 33], each, row=row, sample=sample)
        for row, each in enumerate(params)
        for sample in range(2)
    ]
    for sequence in engine.stream(sequences):
        assert sequence.error is None
    assert forbidden == []
    assert num_looked_at > 50
    assert sum(map(len, actor.drafts)) > 20


def _forbidden(grammars: Grammars, sequence: Sequence, tokens: list[int]) -> list[tuple[list[int], list[int]]]:
    """Return the output tokens and the draft if a matcher that has read nothing else forbids a token of it."""
    assert sequence.params.structured is not None
    matcher = grammars.matcher(sequence.params.structured)
    for place, token in enumerate(tokens):
        mask = matcher.mask(sequence.output_token_ids, tokens[:place])
        if mask is None or not mask[token // 32] >> (token % 32) & 1:
            return [(list(sequence.output_token_ids), tokens)]
    return []
