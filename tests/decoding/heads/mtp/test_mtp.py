"""A target's own MTP head drafts what its equations say, from the committed text alone, and changes no text."""

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding import SamplingParams
from decoding.drafters.base import NoDrafter
from decoding.drafters.making import make_drafter
from decoding.heads import attach
from decoding.heads.mtp.network import MtpModule
from decoding.network.language_model import LanguageModel
from decoding.pace.schedule import FixedSchedule
from tests.decoding.drafters import over_heads
from tests.decoding.drafters.over_heads import Watched, engine_over
from tests.decoding.heads.mtp.reference import ReferenceHead
from tests.decoding.heads.mtp.tiny_targets import FAMILIES, VOCAB_SIZE, save_target
from tests.decoding.tiny import numbered, outputs, random_prompts

PROMPTS = [[token % VOCAB_SIZE for token in prompt] for prompt in over_heads.PROMPTS]
GREEDY = SamplingParams(max_tokens=12, temperature=0)


class Case:
    """A target with a random head, a textbook's head over the same tensors, and drafters that are watched."""

    def __init__(self, family: str, folder) -> None:
        self.path, modules = save_target(family, folder)
        network = AutoModelForCausalLM.from_pretrained(self.path).eval()
        self.reference, self.target = ReferenceHead(family, modules, network), LanguageModel.load(self.path, "cpu")
        self.head = attach.attach_own(self.target, self.path)
        self.head.reads = "normed" if FAMILIES[family].reads_normed else "stream"  # a random head agrees with neither

    def watched(self, num_slots: int = 3):
        kind = type(make_drafter("mtp", self.head.share(), VOCAB_SIZE, 1, 8))
        drafter = type("WatchedMtp", (Watched, kind), {"seen": []})(self.head.share(), num_slots, 80)
        return drafter

    def check(self, drafter) -> None:
        """Compare every draft with that of the textbook."""
        assert len(drafter.seen) > 10
        texts: list[tuple[list[int], torch.Tensor]] = []
        for tokens, drafted, _ in sorted(drafter.seen, key=lambda each: -len(each[0])):
            if not any(text[: len(tokens)] == tokens for text, _ in texts):
                texts.append((tokens, self.reference.states_of_target(tokens)))
            states = next(states for text, states in texts if text[: len(tokens)] == tokens)[: len(tokens) - 1]
            assert drafted == self.reference.draft(tokens, states, len(drafted)), tokens


@pytest.fixture(scope="module")
def case_of(tmp_path_factory) -> Callable[[str], Case]:
    found: dict[str, Case] = {}

    def case(family: str) -> Case:
        if family not in found:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(attach, "LEAST_AGREEMENT", 0.0)  # a random head agrees on less
                found[family] = Case(family, tmp_path_factory.mktemp("target"))
        return found[family]

    return case


@pytest.fixture(params=FAMILIES)
def case(request, case_of) -> Case:
    return case_of(request.param)


@pytest.mark.parametrize("num_drafted", [1, 5])
def test_each_draft_is_that_of_a_textbook_head_over_the_committed_text(case, num_drafted):
    drafter = case.watched()
    sequences = engine_over(case.target, drafter, num_drafted=num_drafted).generate(PROMPTS, GREEDY)
    assert any(sequence.num_cached_tokens for sequence in sequences)  # a prefix was copied
    case.check(drafter)


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_text_is_that_of_the_target_alone(case, temperature):
    params = SamplingParams(max_tokens=14, temperature=temperature, seed=5)
    plain = outputs(engine_over(case.target.share(), NoDrafter(), num_slots=1).generate(PROMPTS, params))
    for num_slots, num_drafted in ((1, 2), (3, 8)):
        drafter = make_drafter("mtp", case.head.share(), VOCAB_SIZE, num_slots, 80)
        engine = engine_over(case.target, drafter, num_slots=num_slots, num_drafted=num_drafted)
        found = engine.generate(PROMPTS, params)
        assert outputs(found) == plain
        assert 0 < sum(row.num_accepted_tokens for row in found) < sum(row.num_draft_tokens for row in found)


def with_pauses(case: Case, monkeypatch):
    """Write texts of which the first row never drafts, and the others in one round of fifteen; return the drafter."""
    lengths, rounds = FixedSchedule.lengths, []

    def now_and_then(schedule, sequences):
        rounds.append(None)
        drafts = len(rounds) % 30 in (0, 1)  # asked twice a round
        return tuple(n if drafts and row else 0 for row, n in enumerate(lengths(schedule, sequences)))

    drafter = case.watched()
    with monkeypatch.context() as patched:
        patched.setattr(FixedSchedule, "lengths", now_and_then)
        params = SamplingParams(max_tokens=60, temperature=0)
        engine_over(case.target, drafter).generate(random_prompts([9, 4, 6, 7, 3, 8], VOCAB_SIZE), params)
    return drafter


def test_rows_that_did_not_draft_for_long_draft_as_if_they_had(case, monkeypatch):
    case.check(with_pauses(case, monkeypatch))


def test_rows_that_are_read_again_draft_as_before(case):
    drafter = case.watched()
    engine = engine_over(case.target, drafter)
    engine.submit(numbered(PROMPTS, max_tokens=14, temperature=0))
    for _ in range(4):
        engine.step()
    num_before = len(drafter.seen)
    engine.evict(engine.in_flight)
    list(engine.stream([]))
    assert len(drafter.seen) > num_before
    case.check(drafter)


def test_rows_that_leave_the_steps_of_a_draft_and_come_back_change_no_other(case_of, monkeypatch):
    """The first step has all rows, the second four of them, and the third one row that was not in the second."""
    case, wanted = case_of("mimo_v2_flash"), [4, 1, 4, *[1] * 7, 2, 2]
    lengths, drafter = FixedSchedule.lengths, case.watched(12)
    monkeypatch.setattr(FixedSchedule, "lengths", lambda *given: tuple(map(min, lengths(*given), wanted)))
    params = SamplingParams(max_tokens=8, temperature=0)
    engine_over(case.target, drafter, num_slots=12, num_drafted=4).generate(
        random_prompts([6] * 12, VOCAB_SIZE), params
    )
    case.check(drafter)


def _swap_halves(case: Case, drafter, patched) -> None:
    for module in case.head.modules:
        product = module._projection
        patched.setattr(module, "_projection", lambda both, product=product: product(both.roll(32, -1)))


def _forget_that_norms_add_one(case: Case, drafter, patched) -> None:
    (module,) = case.head.modules
    norm = module._hidden_norm
    patched.setattr(module, "_hidden_norm", lambda x: norm(x) - norm._norm(x))


def _be_one_position_off(case: Case, drafter, patched) -> None:
    read = MtpModule.read

    def late(module, embedded, states, places, cache):
        starts, lengths, slots = places
        starts = [start + (length == 1) for start, length in zip(starts, lengths, strict=True)]
        return read(module, embedded, states, (starts, lengths, slots), cache)

    patched.setattr(MtpModule, "read", late)


def _feed_the_stream(case: Case, drafter, patched) -> None:
    patched.setattr(drafter.head, "reads", "stream")


def _forget_waiting_pairs(case: Case, drafter, patched) -> None:
    def forget(ends, tokens=None):
        for slot, end in ends.items():
            drafter._forget(slot, max(drafter.slots.num_known[slot], end))

    patched.setattr(drafter, "_read", forget)


@pytest.mark.parametrize(
    "plant", [_swap_halves, _forget_that_norms_add_one, _be_one_position_off, _feed_the_stream, _forget_waiting_pairs]
)
def test_a_planted_bug_is_caught(case_of, monkeypatch, plant):
    case = case_of("qwen3_5")
    watched = case.watched
    with monkeypatch.context() as patched:

        def planted():
            drafter = watched()
            plant(case, drafter, patched)
            return drafter

        patched.setattr(case, "watched", planted)
        drafter = with_pauses(case, monkeypatch)
    with pytest.raises(AssertionError, match="assert "):
        case.check(drafter)
