"""A draft that is replaced between two rounds: no token changes, and what drafts afterwards is the new one alone."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.engine.draft_folder import check_replacement, read_replacement
from decoding.heads.format.folder import Head, read_head, save_head
from decoding.network.language_model import LanguageModel
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rows import sampling_batch
from tests.decoding.heads.tiny_heads import head_config, random_head
from tests.decoding.tiny import build, engine_over, llama_config, noised, numbered, outputs, random_prompts, run, save

PAIR = Path(__file__).parents[3] / "examples" / "tiny_pair"
PROMPTS = random_prompts([7, 1, 12, 3, 25, 9, 2, 16, 5, 4, 31, 1], seed=4)
PROMPTS[4] = [5, 6, 7, 8, 9] * 5  # something to look up


@pytest.fixture(params=["on", "off"])
def _kernels(request, monkeypatch):
    monkeypatch.setenv("DRAY_KERNELS", request.param)


def _engine(target: str, draft: str, drafter: str | None = None, **options) -> Engine:
    settings = {"num_slots": 3, "num_speculative_tokens": 4, "draft_length": "fixed", "max_model_len": 80, **options}
    return Engine.load(target, draft, EngineOptions(drafter=drafter, **settings), device="cpu")


def _random_like(weights: dict[str, torch.Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.2 * torch.randn(each.shape, generator=generator) for name, each in weights.items()}


def _weights(engine: Engine) -> dict[str, torch.Tensor]:
    return engine._live_weights().snapshot()


def _run_swapping(engine: Engine, sequences: list[Sequence], seed: int) -> list[Sequence]:
    """Run these with a swap behind two steps of five: to the draft's own weights, or to random ones."""
    chance, own, num_swaps = random.Random(seed), _weights(engine), 0
    engine.submit(sequences)
    while engine.has_work:
        engine.step()
        if chance.random() < 0.4:
            number, num_swaps = chance.randrange(4), num_swaps + 1
            engine.replace_draft(_random_like(own, number) if number else own, num_swaps)
    assert num_swaps > 5
    return sequences


def _counts(sequences: list[Sequence]) -> list[tuple[object, ...]]:
    return [(s.output_token_ids, s.num_rounds, s.num_draft_tokens, s.accepted_per_position) for s in sequences]


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> dict[str, str]:
    """A draft and a head of the bundled ones' architectures, with random weights."""
    folder = tmp_path_factory.mktemp("untrained")
    config = LanguageModel.load(str(PAIR / "draft"), "cpu").network.config
    head = read_head(str(PAIR / "head"))
    floats = {name: each for name, each in head.tensors.items() if each.is_floating_point()}
    save_head(Head(head.config, {**head.tensors, **_random_like(floats)}), str(folder / "head"), head.config.format)
    return {"draft": save(build(config, seed=7), folder / "draft"), "head": str(folder / "head")}


# A lookup keeps what it learned from the first texts, so a warm hybrid drafts more than a new one.
@pytest.mark.parametrize(
    ("draft", "drafter", "is_warm"),
    [
        ("draft", "model", False),
        ("draft", "model", True),
        ("head", "eagle3", False),
        ("head", "eagle3", True),
        ("head", "hybrid", False),
    ],
)
@pytest.mark.usefixtures("_kernels", "_any_head")
def test_a_draft_that_is_swapped_in_drafts_what_it_drafts_when_it_is_loaded(untrained, draft, drafter, is_warm):
    prompts = random_prompts([9, 4, 14, 6], vocab_size=900, seed=2)
    params = {"max_tokens": 24, "temperature": 0.8}
    target, path = str(PAIR / "target"), str(PAIR / draft)
    loaded = _engine(target, path, drafter)
    expected = _counts(run(loaded, numbered(prompts, **params)))
    engine = _engine(target, untrained[draft], drafter)
    if is_warm:  # rows that read and drafted with the other weights, and one that is in the middle of it
        run(engine, numbered(prompts, **params))
    engine.replace_draft(read_replacement(path, untrained[draft]), 1)
    found = run(engine, numbered(prompts, **params))
    assert _counts(found) == expected
    assert sum(s.num_accepted_tokens for s in found) > 0
    assert {s.draft_version for s in found} == {1}


@pytest.mark.usefixtures("_any_head")
def test_a_block_head_that_is_swapped_in_drafts_what_it_drafts_when_it_is_loaded(folders, tmp_path):
    head = read_head(folders.block_head)
    save_head(Head(head.config, _random_like(head.tensors, 3)), str(tmp_path / "other"), head.config.format)
    params = {"max_tokens": 30, "temperature": 0.8}

    def drafted(engine: Engine) -> list[list[int]]:
        drafts, (lane,) = [], engine.lanes
        propose = lane.drafter.propose
        lane.drafter.propose = lambda rows: drafts.append(propose(rows)) or drafts[-1]
        run(engine, numbered(PROMPTS, **params))
        return [draft.token_ids_BK.tolist() for draft in drafts]

    expected = drafted(_engine(folders.target, str(tmp_path / "other")))
    engine = _engine(folders.target, folders.block_head)
    before = drafted(engine)
    engine = _engine(folders.target, folders.block_head)
    engine.replace_draft(read_replacement(str(tmp_path / "other"), folders.block_head), 1)
    assert before != drafted(engine) == expected


def test_rows_under_way_draft_with_the_new_weights_from_the_next_round_on(folders, tmp_path):
    bad = save(noised(build(llama_config(), seed=9), 0.0), tmp_path / "bad")
    engine = _engine(folders.target, bad, num_slots=6)
    sequences = numbered(PROMPTS, max_tokens=50, temperature=0)
    engine.submit(sequences)
    for _ in range(5):
        engine.step()
    before = [s.num_accepted_tokens for s in sequences]
    rounds = [s.num_rounds for s in sequences]
    engine.replace_draft(read_replacement(folders.perfect_draft, bad), 1)
    while engine.has_work:
        engine.step()
    for s, accepted, num in zip(sequences, before, rounds, strict=True):
        drafting = s.num_rounds - num
        assert s.num_accepted_tokens - accepted >= 4 * (drafting - 1), "the target itself drafts: all is accepted"


def _writing(number: int) -> list[Sequence]:
    params = SamplingParams(max_tokens=40, temperature=0.8)
    return [Sequence.create([1 + row % 40, 3], params, row=row) for row in range(number)]


def test_a_draft_that_is_far_worse_is_taken_back_once(folders):
    engine = _engine(folders.target, folders.perfect_draft, num_slots=1)
    plain = outputs(run(engine_over(LanguageModel.load(folders.target, "cpu")), _writing(24)))
    own = _weights(engine)
    sequences = _writing(24)
    run(engine, sequences[:10])
    engine.replace_draft(_random_like(own), 5)
    run(engine, sequences[10:12])
    assert engine.draft_version == 5, "it is on trial"
    assert engine.take_rollback() is None
    run(engine, sequences[12:])
    assert engine.draft_version == 0
    rollback = engine.take_rollback()
    assert rollback is not None
    assert rollback.version == 5
    assert rollback.after < 0.5 * rollback.before
    assert engine.take_rollback() is None
    assert outputs(sequences) == plain
    assert [s.draft_version for s in sequences[:12]] == [0] * 10 + [5] * 2
    assert sequences[-1].draft_version == 0
    for name, weight in _weights(engine).items():
        assert torch.equal(weight, own[name])


def test_a_draft_that_is_as_good_stays(folders):
    engine = _engine(folders.target, folders.good_draft, num_slots=1)
    run(engine, _writing(10))
    engine.replace_draft(_weights(engine), 1)
    run(engine, _writing(24))
    assert (engine.draft_version, engine.take_rollback()) == (1, None)


def test_a_draft_on_trial_is_no_measure_of_the_next_one(folders):
    """The second of two bad drafts in a row goes too, and the one that had proved itself comes back."""
    engine = _engine(folders.target, folders.perfect_draft, num_slots=1)
    own = _weights(engine)
    run(engine, _writing(10))
    engine.replace_draft(_random_like(own, 1), 1)
    run(engine, _writing(2))
    engine.replace_draft(_random_like(own, 2), 2)
    run(engine, _writing(12))
    assert engine.draft_version == 0
    assert engine.take_rollback().version == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "lacks 1 tensors"),
        (lambda w: w.update({"model.more": torch.zeros(1)}), "no place, first 'model.more'"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(5)}), r"of shape \[5\]"),
        (lambda w: w["model.norm.weight"].fill_(float("nan")), "not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_has_changed(folders, damage, message):
    engine = _engine(folders.target, folders.good_draft)
    own, other = _weights(engine), _random_like(_weights(engine))
    damage(other)
    with pytest.raises(ValueError, match=message):
        engine.replace_draft(other, 1)
    assert engine.draft_version == 0
    for name, weight in _weights(engine).items():
        assert torch.equal(weight, own[name])


@pytest.mark.parametrize("verification", ["rejection", "unadjusted"])
def test_a_draft_that_the_text_depends_on_is_not_replaced(folders, verification):
    engine = _engine(folders.target, folders.good_draft, verification=verification)
    with pytest.raises(ValueError, match=f"verification is '{verification}'"):
        engine.replace_draft(_weights(engine), 1)


def test_an_engine_without_a_draft_model_has_none_to_replace(folders):
    engine = Engine.load(folders.target, None, EngineOptions(drafter="ngram", num_slots=1), device="cpu")
    with pytest.raises(ValueError, match="without a draft model or head"):
        engine.replace_draft({}, 1)


def test_a_lent_tensor_of_the_target_is_not_touched(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("decoding.heads.attach.LEAST_AGREEMENT", 0.0)
    head = read_head(folders.head)
    own = {name: each for name, each in head.tensors.items() if name not in ("embed_tokens.weight", "lm_head.weight")}
    save_head(Head(head.config, own), str(tmp_path / "head"), "speculators")
    engine = _engine(folders.target, str(tmp_path / "head"))
    plain = outputs(run(engine_over(LanguageModel.load(folders.target, "cpu")), numbered(PROMPTS, max_tokens=20)))
    assert outputs(_run_swapping(engine, numbered(PROMPTS, max_tokens=20), 0)) == plain
    with pytest.raises(ValueError, match="no place, first 'embed_tokens"):
        engine.replace_draft(head.tensors, 99)


def test_reading_a_draft_leaves_the_default_type_of_torch_alone(folders, monkeypatch):
    """All threads have the same one, and a temperature in bfloat16 is another temperature."""
    set_default_dtype, seen = torch.set_default_dtype, []
    monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: seen.append(dtype) or set_default_dtype(dtype))
    read_replacement(folders.good_draft, folders.good_draft, "bfloat16")
    assert set(seen) <= {torch.float32}


@pytest.fixture
def _other_default_type():
    """While a thread reads a draft with FP8 weights, the default type is that of what is beside them."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("draft", ["good_draft", "head"])
@pytest.mark.usefixtures("_any_head")
def test_the_default_type_of_torch_changes_no_token(folders, draft, request):
    params = [{"temperature": 0.8017}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}, {"temperature": 0.0}]
    params += [{"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {5: 1.3}}]
    each = [{"max_tokens": 30, **params[index % len(params)]} for index in range(len(PROMPTS))]
    engine = _engine(folders.target, getattr(folders, draft))
    expected = outputs(run(engine, numbered(PROMPTS, each)))
    request.getfixturevalue("_other_default_type")
    assert outputs(run(engine, numbered(PROMPTS, each))) == expected


def test_the_default_type_of_torch_rounds_no_sampling_parameter(request):
    params = {"temperature": 0.8017, "frequency_penalty": 0.317, "logit_bias": {5: 1.303}, "top_p": 0.917}
    sequences = tuple(numbered(PROMPTS[:2], **params))

    def tensors() -> list[torch.Tensor]:
        batch = sampling_batch(sequences, frozenset({2}), torch.device("cpu"))
        parts = [batch, *batch.kinds]
        return [each for part in parts for each in vars(part).values() if isinstance(each, torch.Tensor)]

    expected = tensors()
    assert len(expected) >= 4
    request.getfixturevalue("_other_default_type")
    for found, before in zip(tensors(), expected, strict=True):
        assert found.dtype is before.dtype
        assert torch.equal(found, before)


def test_a_folder_of_another_architecture_is_refused_by_what_differs(folders, tmp_path):
    other = save(
        build(llama_config(rope_parameters={"rope_type": "default", "rope_theta": 500.0}), 1), tmp_path / "rope"
    )
    check_replacement(folders.good_draft, folders.target)
    with pytest.raises(ValueError, match="rope_parameters"):
        check_replacement(other, folders.good_draft)
    with pytest.raises(ValueError, match="head_dim 4"):
        read_replacement(folders.unrelated_draft, folders.good_draft)
    with pytest.raises(ValueError, match="is a draft head and the draft in use"):
        check_replacement(folders.head, folders.good_draft)


def test_a_head_that_names_the_layers_it_reads_may_replace_one_that_leaves_them_open(tmp_path):
    target = save(build(llama_config(num_hidden_layers=8), 1), tmp_path / "target")
    for name, layer_ids in {"open": None, "named": (2, 4, 5), "others": (1, 4, 5)}.items():
        config = head_config((2, 4, 5))
        head = Head(replace(config, layer_ids=layer_ids), random_head(config, 1)[1])
        save_head(head, str(tmp_path / name), "speculators")
    check_replacement(str(tmp_path / "named"), str(tmp_path / "open"), target)
    with pytest.raises(ValueError, match=r"layer_ids \(1, 4, 5\) and the draft in use"):
        check_replacement(str(tmp_path / "others"), str(tmp_path / "open"), target)


def test_a_drafter_that_rests_drafts_again_with_new_weights(folders, monkeypatch):
    engine = _engine(folders.target, folders.perfect_draft, num_slots=1)
    resting = [True]
    monkeypatch.setattr(FixedSchedule, "rests", property(lambda _: resting[0]))
    monkeypatch.setattr(FixedSchedule, "observe_rest", lambda *_: None)
    monkeypatch.setattr(FixedSchedule, "forget", lambda _: resting.__setitem__(0, False))
    (sequence,) = numbered([[3, 4, 5]], max_tokens=40, temperature=0)
    engine.submit([sequence])
    for _ in range(6):
        engine.step()
    assert sequence.num_draft_tokens == 0
    engine.replace_draft(_weights(engine), 1)
    while engine.has_work:
        engine.step()
    assert sequence.num_accepted_tokens > 20
