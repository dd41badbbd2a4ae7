"""Each token that is drafted for a row with a grammar is one that the grammar allows at its place."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.hybrid import HybridDrafter
from decoding.engine.rounds.host_rounds import HostRounds
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rows import ExtensionLimit, Rows
from decoding.sampling.verdicts import Draft
from tests.decoding.grammar.tiny_grammars import END, RECORD, SHORT, STRUCTURED, allowed, grammars
from tests.decoding.tiny import EVERY_DRAFTER, drafted, engine_by, random_prompts, run

GRAMMARS = grammars()
DRAFTERS = [name for name in EVERY_DRAFTER if name != "none"]
# With these a tiny model writes long texts, in which something was written before.
LONG = [Structured(regex="([a-c]{1,3}-){12}"), Structured(json_schema=RECORD), Structured(json_schema=SHORT)]


@dataclass
class Watch:
    """What was drafted for rows with a grammar, and what of it the grammar forbids."""

    grammars: Grammars
    num_by_drafter: int = 0
    num_asked: int = 0  # of the target, forced tokens among them
    forbidden: list[tuple[list[int], list[int]]] = field(default_factory=list)  # output tokens, and the draft

    def propose(self, rows: Rows, draft: Draft) -> None:
        """Look at a drafter's own draft; an engine drops what stands behind an end."""
        for sequence, tokens in zip(rows.sequences, drafted(draft), strict=True):
            self.num_by_drafter += self._look(sequence, tokens[: tokens.index(END) + 1] if END in tokens else tokens)

    def ask(self, rows: Rows, draft: Draft) -> None:
        """Look at what the target is asked about."""
        for sequence, tokens in zip(rows.sequences, drafted(draft), strict=True):
            self.num_asked += self._look(sequence, tokens)

    def _look(self, sequence: Sequence, tokens: list[int]) -> int:
        """Compare with the masks of a matcher that has read nothing else; return the number of tokens."""
        if sequence.params.structured is None:
            return 0
        matcher = self.grammars.matcher(sequence.params.structured)
        for place, token in enumerate(tokens):
            if token not in (allowed(matcher.mask(sequence.output_token_ids, tokens[:place])) or ()):
                self.forbidden.append((list(sequence.output_token_ids), tokens))
                break
        return len(tokens)


def _sequences(temperature: float) -> list[Sequence]:
    """Prompts of which some repeat themselves, and several samples of each, so that lookups find something."""
    prompts = [(prompt * 4)[:24] for prompt in random_prompts([3, 5, 7], vocab_size=48, seed=4)]
    kinds = [*LONG, *STRUCTURED, None]
    return [
        Sequence.create(
            prompts[row % len(prompts)],
            SamplingParams(structured=structured, temperature=temperature, max_tokens=30),
            run_seed=3,
            row=row,
            sample=sample,
        )
        for row, structured in enumerate(kinds)
        for sample in range(2)
    ]


@pytest.fixture
def watch(monkeypatch) -> Iterator[Watch]:
    watch, score_request = Watch(GRAMMARS), HostRounds._score_request

    def asked(rounds: HostRounds, rows: Rows, draft: Draft):
        request = score_request(rounds, rows, draft)
        watch.ask(request.rows, request.draft)
        return request

    monkeypatch.setattr(HostRounds, "_score_request", asked)
    return watch


def _watched(engine: Engine, watch: Watch) -> Engine:
    for lane in engine.lanes:
        propose = lane.drafter.propose

        def watched(rows: Rows, propose=propose) -> Draft:
            draft = propose(rows)
            watch.propose(rows, draft)
            return draft

        lane.drafter.propose = watched
    return engine


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_every_token_that_is_drafted_is_one_that_the_grammar_allows(ended, watch, kind, verification):
    engine = engine_by(ended, kind, grammars=GRAMMARS, verification=verification, num_slots=4, num_speculative_tokens=6)
    run(_watched(engine, watch), _sequences(0.8 * (verification == "coupled")))
    assert watch.forbidden == []
    assert watch.num_by_drafter > 20
    assert watch.num_asked >= watch.num_by_drafter


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_what_is_looked_up_behind_a_models_tokens_is_allowed_too(ended, watch, verification, monkeypatch):
    extensions, plan = [], FixedSchedule.plan

    def with_extensions(self: FixedSchedule, *args: object):
        planned = plan(self, *args)
        rows = len(planned.lengths)
        lengths = tuple(min(length, 2) for length in planned.lengths)
        limits = tuple(ExtensionLimit(max(0, length - 2), 0.0) for length in planned.lengths)
        return replace(planned, lengths=lengths, uses_lookup=(False,) * rows, extension_limits=limits)

    def noted(self: HybridDrafter, *args: object) -> Draft:
        draft = found(self, *args)
        extensions.extend(offer.tokens for _, offer in self._extensions.values() if offer.tokens)
        return draft

    found = HybridDrafter._with_extensions
    monkeypatch.setattr(FixedSchedule, "plan", with_extensions)
    monkeypatch.setattr(HybridDrafter, "_with_extensions", noted)
    engine = engine_by(ended, "hybrid", grammars=GRAMMARS, verification=verification, num_slots=4)
    run(_watched(engine, watch), _sequences(0.8))
    assert watch.forbidden == []
    assert len(extensions) > 10
