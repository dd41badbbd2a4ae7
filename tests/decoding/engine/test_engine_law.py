"""What the engine as a whole draws follows the law that plain forwards of the target give (chi-square)."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.model import ModelDrafter
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import keep_best
from decoding.sampling.rules import draw_draft
from tests.decoding.tiny import EVERY_DRAFTER, build, engine_by, llama_config, loaded, noised
from tests.decoding.toy import Distribution, is_plausible

VOCAB_SIZE = 6
PROMPT = (2, 3, 2, 3, 2)  # the n-gram drafter finds something here
NUM_SAMPLES = 2000
NUM_TOKENS = 3
PARAMS = {
    "plain": SamplingParams(max_tokens=NUM_TOKENS, n=NUM_SAMPLES, temperature=1.0),
    "top_k": SamplingParams(max_tokens=NUM_TOKENS, n=NUM_SAMPLES, temperature=0.8, top_k=4),
    "repetition": SamplingParams(max_tokens=NUM_TOKENS, n=NUM_SAMPLES, repetition_penalty=1.8, min_p=0.03),
}
KINDS = [d for d in EVERY_DRAFTER if d != "model"] + ["good_draft", "unrelated_draft", "broken_draft"]


@pytest.fixture(scope="module")
def trio(tmp_path_factory):
    root = tmp_path_factory.mktemp("law")
    config = llama_config(VOCAB_SIZE, hidden_size=16)
    target = build(config, seed=1)
    broken = noised(target, 0.2)  # after token 4 its numbers are not finite, so what it drafts ends there
    with torch.no_grad():
        broken.get_input_embeddings().weight[4] = torch.nan
    drafts = {
        "target": target,
        "good_draft": noised(target, 0.2),
        "unrelated_draft": build(config, seed=2),
        "broken_draft": broken,
    }
    return SimpleNamespace(**{name: loaded(network, root / name) for name, network in drafts.items()})


@pytest.fixture(scope="module")
def law_of(trio):
    """The law of the next three tokens by plain forwards; repetition and truncation in a few plain lines."""

    @cache
    def law(name: str) -> Distribution:
        @cache
        def probs(behind: tuple[int, ...]) -> list[float]:
            return _probs(trio.target, PARAMS[name], (*PROMPT, *behind)).tolist()

        paths = product(range(VOCAB_SIZE), repeat=NUM_TOKENS)
        return {path: prod(probs(path[:index])[token] for index, token in enumerate(path)) for path in paths}

    return law


def _probs(model: LanguageModel, params: SamplingParams, behind: tuple[int, ...]) -> torch.Tensor:
    logits = model.plain_logits(behind).double()
    for token in set(behind):
        penalty = params.repetition_penalty
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    logits = logits / params.temperature
    if params.top_k:
        logits[logits < logits.topk(params.top_k).values[-1]] = -torch.inf
    probs = logits.softmax(-1)
    probs[probs < params.min_p * probs.max()] = 0
    return probs / probs.sum()


def _written(trio, kind: str, verification: str, name: str) -> Counter[tuple[int, ...]]:
    options = {"num_slots": 64, "num_speculative_tokens": 2, "max_model_len": 16}
    engine = engine_by(trio, kind, verification=verification, **options)
    return Counter(tuple(s.output_token_ids) for s in engine.generate([PROMPT], PARAMS[name], seed=1))


def _in_every_way() -> Iterator[Any]:
    """Every drafter with every kind of parameters. Slow: where these change nothing about the drafter; and coupled
    drafters, whose texts tests/decoding/engine/test_losslessness.py compares token by token with those of none.
    """
    for name, kind, verification in product(PARAMS, KINDS, ["coupled", "rejection"]):
        is_slow = kind != "none" if verification == "coupled" else name != "plain" and kind != "good_draft"
        yield pytest.param(kind, verification, name, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize(("kind", "verification", "name"), _in_every_way())
def test_texts_follow_the_targets_law(trio, law_of, kind, verification, name):
    assert is_plausible(_written(trio, kind, verification, name), law_of(name))


@pytest.mark.parametrize("kind", ["suffix", "good_draft"])
def test_texts_of_rows_that_lose_their_slots_follow_the_targets_law(trio, law_of, kind, monkeypatch):
    step, chance = Engine.step, random.Random(0)

    def step_and_evict(engine: Engine) -> list[Sequence]:
        finished = step(engine)
        engine.evict([row for row in engine.in_flight if chance.random() < 0.4])
        return finished

    monkeypatch.setattr(Engine, "step", step_and_evict)
    assert is_plausible(_written(trio, kind, "rejection", "plain"), law_of("plain"))


def test_texts_do_not_follow_the_law_where_old_texts_of_the_same_noise_are_drafted_under_rejection(
    trio, law_of, monkeypatch
):
    """Which is why an engine takes no prediction there. A prediction that says nothing of the noise does no harm."""
    options = {"num_slots": 64, "num_speculative_tokens": 2, "max_model_len": 16}
    monkeypatch.setattr(Engine, "problem_with", lambda self, sequence: self._limits.problem_with(sequence))

    def written(predictions: Iterable[Seq[int]]) -> list[tuple[int, ...]]:
        engine = engine_by(trio, "suffix", verification="rejection", **options)
        rows = [Sequence.create(PROMPT, PARAMS["plain"], row=row) for row in range(NUM_SAMPLES)]
        for row, prediction in zip(rows, predictions, strict=True):
            row.prediction = tuple(prediction)
        list(engine.stream(rows))
        return [tuple(row.output_token_ids) for row in rows]

    likely = max(law_of("plain").items(), key=lambda entry: entry[1])[0]
    texts = written([likely] * NUM_SAMPLES)
    assert is_plausible(Counter(texts), law_of("plain"))
    assert not is_plausible(Counter(written(texts)), law_of("plain"))


@pytest.mark.parametrize("kind", ["good_draft", "unrelated_draft", "suffix"])
def test_unadjusted_texts_do_not_follow_the_targets_law(trio, law_of, kind):
    assert not is_plausible(_written(trio, kind, "unadjusted", "plain"), law_of("plain"))


def test_unadjusted_texts_without_a_draft_follow_the_targets_law(trio, law_of):
    assert is_plausible(_written(trio, "none", "unadjusted", "plain"), law_of("plain"))


@pytest.mark.parametrize("most_candidates", [1, 3])
def test_texts_of_a_draft_that_draws_from_its_best_tokens_follow_the_law(trio, law_of, most_candidates, monkeypatch):
    monkeypatch.setattr("decoding.drafters.making.ModelDrafter", partial(ModelDrafter, most_candidates=most_candidates))
    assert is_plausible(_written(trio, "unrelated_draft", "rejection", "plain"), law_of("plain"))


def test_a_draft_that_draws_from_its_best_tokens_and_states_the_law_of_all_is_caught(trio, law_of, monkeypatch):
    draw = "decoding.sampling.rules.draw_draft"
    monkeypatch.setattr(draw, lambda scores_BJV, *rest: draw_draft(keep_best(scores_BJV, 2), *rest))
    assert not is_plausible(_written(trio, "unrelated_draft", "rejection", "plain"), law_of("plain"))


BUGS = {
    "a drafter that states the law of another position": lambda probs: probs.roll(1, dims=1),
    "a drafter that mixes up token ids": lambda probs: probs.flip(-1),
    "a drafter that states a flatter law than it drew from": lambda probs: probs.log().div(2).softmax(-1),
    "a drafter that states a uniform law": lambda probs: torch.full_like(probs, 1 / VOCAB_SIZE),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_drafter_that_misstates_its_law_is_caught(trio, law_of, bug, monkeypatch):
    real = ModelDrafter.propose

    def misstate(self, rows):
        draft = real(self, rows)
        return replace(draft, probs_BKV=None if draft.probs_BKV is None else BUGS[bug](draft.probs_BKV))

    monkeypatch.setattr(ModelDrafter, "propose", misstate)
    assert not is_plausible(_written(trio, "unrelated_draft", "rejection", "plain"), law_of("plain"))


def test_the_wrong_temperature_is_caught(trio, law_of):
    assert not is_plausible(_written(trio, "none", "coupled", "top_k"), law_of("plain"))
