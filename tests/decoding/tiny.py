"""Tiny random models, and the few questions every test of the engine asks about them."""

import copy
import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, PretrainedConfig, PreTrainedModel

from decoding import Engine, EngineOptions, SamplingParams
from decoding.cache.kv_cache import KVCache
from decoding.choices import DRAFTERS, NEED_A_HEAD, DrafterName, DType
from decoding.drafters.base import Drafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.making import make_drafter
from decoding.engine.rounds import room
from decoding.grammar.grammars import Grammars
from decoding.network.language_model import LanguageModel
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import RULES
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence
from decoding.vocabulary.vocabulary_map import VocabularyMap

VOCAB_SIZE = 48
CONTEXT = 96
# By other names than engine.drafter's: a draft model with another tokenizer, and a head that drafts in one forward.
OPTION_OF = {"mapped": "model", "peagle": "eagle3"}
EVERY_DRAFTER = (*DRAFTERS, *OPTION_OF)
POISON = 40  # a poisoned model's values after this token id are not finite


def llama_config(vocab_size: int = VOCAB_SIZE, **overrides: object) -> LlamaConfig:
    """Two layers, grouped heads, logits far apart (a wide initialization)."""
    settings = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **overrides,
    }
    return LlamaConfig(vocab_size=vocab_size, **settings)


def build(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A random model of this configuration; the same seed gives the same weights."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


@torch.no_grad()
def noised(model: PreTrainedModel, size: float, seed: int = 5) -> PreTrainedModel:
    """A copy that agrees with `model` often, but not always: a good draft."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    for weight in other.parameters():
        if weight.is_floating_point() and weight.dim() > 1:
            weight += size * weight.std() * torch.randn(weight.shape, generator=generator)
    return other


def save(model: PreTrainedModel, folder: Path, eos_token_id: int | list[int] | None = None) -> str:
    """The folder, as a path that `LanguageModel.load` takes."""
    model.generation_config = GenerationConfig(eos_token_id=eos_token_id)
    model.save_pretrained(folder)
    return str(folder)


def loaded(network: PreTrainedModel, folder: Path, dtype: DType = "float32") -> LanguageModel:
    """The model, by the real load path."""
    return LanguageModel.load(save(network, folder), "cpu", dtype)


def poisoned_models(root: Path, value: float) -> SimpleNamespace:
    """A target and a draft that feeding POISON breaks, each on its own, and a healthy draft."""
    target = build(llama_config(), seed=1)
    names = ("target", "good_draft", "poisoned_draft", "unrelated_draft", "perfect_draft")
    found = {name: noised(target, 0.0 if name in ("target", "perfect_draft") else 0.1) for name in names}
    for name in ("target", "poisoned_draft", "unrelated_draft"):
        with torch.no_grad():
            found[name].get_input_embeddings().weight[POISON] = value
    return SimpleNamespace(**{name: loaded(network, root / name) for name, network in found.items()})


def tied_models(root: Path, how: str) -> SimpleNamespace:
    """A target whose best tokens tie, always, in this way, and drafts that break the ties their own way."""
    target = build(llama_config(), seed=1)
    drafts = {"good_draft": noised(target, 0.02), "unrelated_draft": build(llama_config(), seed=2)}
    with torch.no_grad():
        head = target.get_output_embeddings().weight
        if how == "duplicated":
            head[24:] = head[:24]
        elif how == "nearly duplicated":  # within rounding: exact ties fall the same way in every batch
            generator = torch.Generator().manual_seed(0)
            head[24:] = head[:24] * (1 + 1e-7 * torch.randn(24, head.shape[1], generator=generator))
        else:
            head.zero_()
    found = {"target": target, "perfect_draft": target, **drafts}
    return SimpleNamespace(**{name: loaded(network, root / name) for name, network in found.items()})


def generated(path: str, prompts: Iterable[list[int]], num_tokens: int, **more: object) -> list[list[int]]:
    """What transformers' own `generate` writes after each prompt, greedily and one at a time."""
    network = AutoModelForCausalLM.from_pretrained(path).eval()
    settings = GenerationConfig(do_sample=False, max_new_tokens=num_tokens, pad_token_id=0)
    texts = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        output = network.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings, **more)
        texts.append(output[0, len(prompt) :].tolist())
    return texts


def random_prompts(lengths: Iterable[int], vocab_size: int = VOCAB_SIZE, seed: int = 0) -> list[list[int]]:
    """Prompts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]


def engine_over(
    target: LanguageModel,
    draft: LanguageModel | None = None,
    drafter: str = "none",
    *,
    num_slots: int = 3,
    num_speculative_tokens: int = 4,
    verification: str = "coupled",
    max_model_len: int = 80,
    max_prefill_tokens: int | None = None,
    grammars: Grammars | None = None,
) -> Engine:
    """An engine over models that are loaded already; only one engine at a time may use them."""
    options = EngineOptions(
        num_slots=num_slots,
        max_model_len=max_model_len,
        max_prefill_tokens=max_prefill_tokens,
        drafter=OPTION_OF.get(drafter, drafter),
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
    )
    part = drafter_over(drafter, draft, target, num_slots, max_model_len)
    return Engine([(target, part)], options, max_model_len, grammars=grammars)


def mapped(draft: LanguageModel, vocabulary: VocabularyMap) -> LanguageModel:
    """Return a draft that has another tokenizer than its target."""
    draft.vocabulary_map = vocabulary
    return draft


def drafter_over(
    name: DrafterName | Literal["mapped", "peagle"],
    draft: LanguageModel | None,
    target: LanguageModel,
    num_slots: int,
    max_model_len: int,
) -> Drafter:
    """The drafter of this name. Those that need a head have a random one for the target in place of the draft model."""
    if name == "mapped":
        from tests.decoding.vocabulary.tiny_tokenizers import nearly_the_same

        draft = mapped(draft.share(), nearly_the_same(target.vocab_size))
        name = "model"
    if OPTION_OF.get(name, name) in NEED_A_HEAD:
        from tests.decoding.heads.beside import drafter_beside

        return drafter_beside(name, target, num_slots, max_model_len)
    return make_drafter(name, draft, target.vocab_size, num_slots, max_model_len)


def engine_by(models: object, kind: str, **options: object) -> Engine:
    """An engine in which this drafter (by the good draft), or the draft model of this name, drafts."""
    is_model = kind.endswith("_draft")
    draft = getattr(models, kind if is_model else "good_draft")
    return engine_over(models.target, draft, "model" if is_model else kind, **options)


def slots_that_give_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots of rows in flight that give way because no page is free, from now on."""
    empty, slots = room.Room.empty, list[int]()

    def noted(self: room.Room, slot: int) -> None:
        resident = self.residents[slot]
        slots.extend([slot] * (resident is not None and not resident.sequence.is_finished))
        empty(self, slot)

    monkeypatch.setattr(room.Room, "empty", noted)
    return slots


def numbered(prompts: Seq[Seq[int]], each: Iterable[dict] | None = None, **params: object) -> list[Sequence]:
    """A sequence for each prompt, with these parameters, those of its own in `each`, noise and a tag of its own."""
    rows = enumerate(zip(prompts, each or [{}] * len(prompts), strict=True))
    return [Sequence.create(prompt, SamplingParams(**params, **own), row=row, tag=row) for row, (prompt, own) in rows]


def rows_over(sequences: Seq[Sequence], limits: Seq[int], verification: str = "coupled", **more: object) -> Rows:
    """The rows of a round, and how many tokens each may draft."""
    sampling = sampling_batch(tuple(sequences), frozenset(), torch.device("cpu"))
    return Rows(tuple(sequences), sampling, tuple(limits), RULES[verification], **more)


def drafted(draft: Draft) -> list[list[int]]:
    """Return the drafted tokens of each row."""
    return [row[:n] for row, n in zip(draft.token_ids_BK.tolist(), draft.num_draft_tokens_B.tolist(), strict=True)]


def stored(cache: KVCache, slot: int, length: int) -> list[tuple[torch.Tensor, ...]]:
    """Return keys and values [length, H, D] of a slot, per layer."""
    return [tuple(stored_SPHD[slot, :length] for stored_SPHD in layer.stored()) for layer in cache.layers]


def assert_slot_equals_fresh_prefill(model: LanguageModel, other: LanguageModel, slot: int, tokens: list[int]) -> None:
    """Compare a slot of a model with a prefill of the same tokens by the same model with another cache."""
    if not tokens:
        return
    other.allocate(1, len(tokens))
    other.prefill([0], [tokens])
    pairs = zip(stored(model.cache, slot, len(tokens)), stored(other.cache, 0, len(tokens)), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def schedule_at_random(monkeypatch, seed: int) -> None:
    """Let some rows draft nothing in some rounds, others any number of tokens, and in some rounds no row draft.

    In some rounds the drafter is not there at all, and in some no grammar is asked what it foresees.
    """
    chance, rest, foresight = (random.Random(seed + number) for number in range(3))
    resting = [False]

    def rests(self: FixedSchedule) -> bool:
        if rest.random() < 0.4:
            resting[0] = not resting[0]
        return resting[0]

    def lengths(self: FixedSchedule, sequences: Seq[Sequence]) -> tuple[int, ...]:
        is_plain = chance.random() < 0.3
        ceilings = [min(self.ceiling, s.max_draft_tokens) for s in sequences]
        return tuple(0 if is_plain or chance.random() < 0.3 else chance.randint(0, c) for c in ceilings)

    monkeypatch.setattr(FixedSchedule, "lengths", lengths)
    monkeypatch.setattr(FixedSchedule, "rests", property(rests))
    monkeypatch.setattr(FixedSchedule, "foresees", property(lambda _: foresight.random() < 0.6))
    monkeypatch.setattr(FixedSchedule, "observe_rest", lambda *_: None)


def audit(engine: Engine, fresh_target: LanguageModel, fresh_draft: LanguageModel | None = None) -> int:
    """Compare every slot with a fresh prefill of its row; return the most tokens that the draft's slot of a row lacks.

    Also slots whose prompts are not complete, and those of finished rows, whose prefixes may still be shared.
    """
    (lane,), max_missing = engine.lanes, 0
    drafter = lane.drafter._model if isinstance(lane.drafter, HybridDrafter) else lane.drafter
    for slot, resident in enumerate(lane.admission._residents):
        if resident is None:
            continue
        settled = resident.sequence.token_ids[:-1]  # the newest token has no keys and values yet
        if resident.is_filling:
            settled = settled[: resident.num_filled]
        assert_slot_equals_fresh_prefill(engine.target, fresh_target, slot, settled)
        if fresh_draft is not None:
            ingested = settled[: drafter.slots.num_known[slot]]
            if not resident.sequence.is_finished:
                max_missing = max(max_missing, len(settled) - len(ingested))
            assert_slot_equals_fresh_prefill(drafter.model, fresh_draft, slot, ingested)
    assert [r.sequence for r in lane.admission._residents[: len(lane.running)]] == list(lane.running)
    return max_missing


def num_rechecks(engine: Engine) -> int:
    """The number of close calls that were scored again alone."""
    return sum(lane.rounds.commits.num_rechecks for lane in engine.lanes)


def outputs(sequences: Iterable[Sequence]) -> list[list[int]]:
    """The output token ids of each."""
    return [sequence.output_token_ids for sequence in sequences]


def run(engine: Engine, sequences: Seq[Sequence]) -> Seq[Sequence]:
    """The same sequences, finished; every one of them came back exactly once."""
    assert_each_once(list(engine.stream(sequences)), sequences)
    return sequences


def assert_each_once(finished: Iterable[Sequence], expected: Iterable[Sequence]) -> None:
    """The same sequences, in any order."""
    assert sorted(map(id, finished)) == sorted(map(id, expected))


def check_counts(sequence: Sequence) -> None:
    """The identities that the counts of every sequence obey."""
    per_position = sequence.accepted_per_position
    assert sum(per_position) == sequence.num_accepted_tokens
    assert per_position == sorted(per_position, reverse=True)
    assert 0 <= sequence.num_accepted_tokens <= sequence.num_draft_tokens
    expected = sequence.num_accepted_tokens + sequence.num_rounds
    ended_inside_the_accepted_block = sequence.finish_reason == "stop"
    allowed = {expected, expected - 1} if ended_inside_the_accepted_block else {expected}
    assert len(sequence.output_token_ids) in allowed
