"""Rounds with a head that begin before the last one is read draft what rounds of the host draft.

The kernels run in Triton's interpreter, on models of two layers and a few tokens: it is thousands of times slower.
"""

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.roofline.launched import FIRST_STEP_KERNELS, KEEP_KERNELS, NEXT_STEP_KERNELS
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters.base import NoDrafter
from decoding.drafters.block_drafter import DFlashDrafter
from decoding.drafters.head_drafters import Eagle3Drafter, PEagleDrafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds.host_rounds import HostRounds
from decoding.engine.rounds.overlapped.head_steps import HeadSteps
from decoding.engine.rounds.overlapped.rounds import DeviceRounds
from decoding.engine.rounds.overlapped.steps import RowsNow
from decoding.fused.recordings import CudaRecorder
from decoding.grammar.grammars import Grammars
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.format.networks import Eagle3Network
from decoding.network.language_model import LanguageModel
from decoding.sampling.rules import COUPLED
from tests.decoding.gpu.operations import Operations
from tests.decoding.grammar.tiny_grammars import END
from tests.decoding.heads.tiny_heads import perfect_blocks, perfect_pair, random_network
from tests.decoding.tiny import build, llama_config, noised

PROMPTS = [[1, 2, 3, 4] * 2, [5, 6, 5], [9], [1, 2, 3, 4] * 2 + [8], [3, 1]]
PLAIN = {"max_tokens": 12, "temperature": 0.8, "ignore_eos": True}
ATTRACTED = {"presence_penalty": -1.0, "frequency_penalty": -2.0, "repetition_penalty": 0.9}  # by what is written
PENALIZED = {"presence_penalty": 0.4, "frequency_penalty": 0.6, "repetition_penalty": 1.2}
FIELDS = [{"logprobs": 2}, ATTRACTED, PENALIZED, {"logprobs": 0, **PENALIZED}, {"logprobs": 2, "temperature": 0}]
LENGTH = 32


@pytest.fixture(autouse=True)
def _products_of_torch(monkeypatch):
    """The stand-in records the library's products, with which a head multiplies, and not those of our CPU kernels."""
    monkeypatch.setenv("DRAY_KERNELS", "off")


def numbered(num_rows: int = len(PROMPTS), fields: list[dict] = FIELDS) -> list[Sequence]:
    """Rows that ask for different things, unless these fields are empty."""
    rows = []
    for row, (prompt, own) in enumerate(zip(PROMPTS[:num_rows], fields[:num_rows], strict=True)):
        rows.append(Sequence.create(prompt, SamplingParams(**{**PLAIN, **own}), run_seed=1, row=row))
        rows[-1].rounds = []
    return rows


def engine_of(
    draft: str, num_slots: int, num_drafted: int, grammars: Grammars | None = None, seed: int | None = None
) -> Engine:
    """An engine over a target and a draft that knows it but for some noise; a head reads the features of each token.

    It reads "masks" behind its pairs (P-EAGLE) or fills in "blocks" (DSpark), or drafts token by token ("head").
    Only with a seed does the next token depend on others than the newest one.
    """
    network, saved = perfect_pair(reads_features=True)
    network = network if seed is None else build(llama_config(), seed)
    other = noised(network, 0.1)
    target, drafter = on_kernels(network), NoDrafter()
    if draft in ("head", "masks"):
        of_masks = {"kind": "peagle", "mask_token_id": 3, "num_speculative_tokens": 2} if draft == "masks" else {}
        generator, own = torch.Generator().manual_seed(4), Eagle3Network(replace(saved.config, **of_masks))
        for name, weight in own.named_parameters():
            known = saved.tensors.get(name, torch.ones(weight.shape))
            noise = torch.randn(weight.shape, generator=generator) * known.std()
            weight.data.copy_(known + 0.1 * noise)
        own.layers[0].self_attn.q_proj.bias.data *= 0.01  # pairs see those before them, too
        kind = PEagleDrafter if of_masks else Eagle3Drafter
        drafter = kind(Eagle3Head(own.bfloat16(), None, saved.config.layer_ids), num_slots, LENGTH)
    elif draft == "blocks":  # the target's bias of a token by the one before, and what a random head adds
        saved = perfect_blocks(reads_features=True, conv_kernel_size=2, conv_group_size=4, block_size=2)[1]
        own = random_network(saved.config)
        own.lm_head.weight.data *= 0.3
        for name in ("markov_w1", "markov_w2"):
            getattr(own.markov_head, name).weight.data.copy_(saved.tensors[f"markov_head.{name}.weight"])
        drafter = DFlashDrafter(DFlashHead(own.bfloat16(), None, saved.config.layer_ids), num_slots, LENGTH)
    elif draft == "model":
        drafter = ModelDrafter(on_kernels(other), target.vocab_size, num_slots, LENGTH)
    elif draft == "suffix":
        drafter = SuffixDrafter()
    elif draft == "hybrid":
        drafter = HybridDrafter(SuffixDrafter(), ModelDrafter(on_kernels(other), target.vocab_size, num_slots, LENGTH))
    options = EngineOptions(num_slots=num_slots, num_speculative_tokens=max(1, num_drafted), max_model_len=LENGTH)
    target.eos_token_ids = frozenset() if grammars is None else frozenset({END})
    return Engine([(target, drafter)], options, LENGTH, grammars=grammars)


def on_kernels(network: PreTrainedModel) -> LanguageModel:
    model = LanguageModel(network.bfloat16(), frozenset())
    model.exact, model.close_call = "on", 0.0
    model.speed_up()
    return model


def drafted(rows: list[Sequence]) -> list[object]:
    """What these rows drafted in each round; a row of one token has no pair, and its first guesses are any."""
    return [row.rounds for row in rows if len(row.prompt_token_ids) > 1]


def of_host(engine: Engine) -> Engine:
    """The same engine, in which the host starts each round."""
    (lane,) = engine.lanes
    lane.rounds._starters = [HostRounds(lane.target, lane.drafter, COUPLED, lane._num_slots)]
    return engine


@pytest.mark.parametrize(
    ("draft", "num_rows", "num_drafted", "num_tokens"),
    [
        ("masks", 2, 3, 8),  # a head of two, and so is the next one
        ("blocks", 2, 3, 8),
        pytest.param("head", 4, 2, 12, marks=pytest.mark.slow),
        pytest.param("model", 4, 2, 12, marks=pytest.mark.slow),
        pytest.param("none", 4, 0, 12, marks=pytest.mark.slow),
    ],
)
def test_recorded_rounds_do_what_the_host_does_with_few_operations_and_one_wait(
    gpu, monkeypatch, draft, num_rows, num_drafted, num_tokens
):
    """Rows with log-probabilities and with penalties are among them."""
    prepared = []  # rounds without these, by the most drafted tokens
    monkeypatch.setattr(DeviceRounds, "prepare", lambda _, __, most_drafted: prepared.append(most_drafted))
    fields = [{**own, "max_tokens": num_tokens} for own in FIELDS]
    engine = engine_of(draft, num_rows, num_drafted)
    expected, found = numbered(num_rows, fields), numbered(num_rows, fields)
    list(of_host(engine_of(draft, num_rows, num_drafted)).stream(expected))
    engine.lanes[0].ahead.record = CudaRecorder()
    engine.submit(found)
    counted = []
    while engine.has_work:
        num_waits, before = gpu.num_waits, (gpu.num_captured, gpu.num_replays)
        with Operations() as operations:
            engine.step()
        if (gpu.num_captured, gpu.num_replays) == (before[0], before[1] + 1 + (draft != "none")):
            counted.append((operations.launches.total(), gpu.num_waits - num_waits))
            assert not operations.waits.keys() - {"tolist"}, "only verdicts are read, on the host"
    assert len(counted) >= 2
    assert all(num_operations <= 6 and num_waits == 1 for num_operations, num_waits in counted)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in expected]
    assert drafted(found) == drafted(expected)
    assert [row.logprobs for row in found] == [row.logprobs for row in expected]
    assert sum(row.num_accepted_tokens for row in found) >= 2 * num_drafted
    assert not gpu.num_refused
    assert prepared == [max(1, min(num_drafted, 2))], "no longer ones than a head drafts"


@torch.inference_mode()
def test_the_steps_of_a_head_launch_as_many_kernels_as_a_round_is_predicted_to_take():
    drafter = engine_of("head", 3, 2).lanes[0].drafter
    steps, rows = HeadSteps(drafter, 3, 2), RowsNow(torch.tensor([5, 6, 7]), torch.zeros(3, 2), torch.ones(3) > 0)
    nothing_B1, nothing_BJ = torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 3, dtype=torch.int64)
    features_BJH = torch.zeros(3, 3, drafter.head.hidden_size).bfloat16()
    steps.first(rows, LENGTH, 2)  # which allocates the cache
    with Operations() as first:
        found = steps.first(rows, LENGTH, 2)
    with Operations() as later:
        steps.next(rows, nothing_B1, found, 1, LENGTH)
    with Operations() as kept:
        steps.keep_features(rows, features_BJH)
        steps.keep_tokens(rows, nothing_BJ)
    counted = [operations.launches.total() for operations in (first, later, kept)]
    of_a_pick = 2
    assert counted == [FIRST_STEP_KERNELS - of_a_pick, NEXT_STEP_KERNELS - of_a_pick, KEEP_KERNELS]


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["head", "masks", "blocks"])
def test_rows_that_come_go_and_change_slots_draft_with_their_own_features(draft):
    """Rows share a prefix, lose their slots with a round under way, and run beside a row that the host must start."""
    engine, rows, plain, expected = engine_of(draft, 3, 2), *(numbered() for _ in range(3))
    list(engine_of("none", 3, 0).stream(plain))
    list(of_host(engine_of(draft, 3, 2)).stream(expected))
    biased = SamplingParams(**{**PLAIN, "max_tokens": 2, "logit_bias": {3: 1.0}})
    other = Sequence.create([4, 4], biased, run_seed=1, row=len(rows))
    engine.submit([*rows[:3], other, *rows[3:]])
    for number in range(60):
        if number in (2, 4, 6, 8):
            engine.evict(engine.in_flight[:1])
        engine.step()
        if not engine.has_work:
            break
    assert [row.output_token_ids for row in rows] == [row.output_token_ids for row in plain]
    assert [row.logprobs for row in rows] == [row.logprobs for row in plain]
    assert drafted(rows) == drafted(expected)
    assert not other.error
