"""A draft and a head get nearer to the target when they learn from its texts, and what they write drafts."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding import Engine, EngineOptions, SamplingParams
from decoding.engine.draft_folder import check_replacement
from decoding.heads.format.folder import read_head, read_head_config, save_head
from decoding.heads.format.tensors import target_ids
from decoding.speculator import Speculator
from tests.training.pair import DRAFT, HEAD, TARGET
from training.learners.draft_learner import DraftLearner
from training.learners.head_learner import HeadLearner, coverage, layers_to_read, special_tokens, tokens_to_know
from training.learners.packing import Document, Learner, PackedRows, RowStream, pack
from training.learners.teacher import Teacher
from training.trainer.optimizer import Optimizer

SEQ_LEN, NUM_HELD_OUT = 256, 24


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher.load(TARGET, "cpu", "auto")


@pytest.fixture(scope="module")
def counts(documents: list[Document]) -> list[int]:
    """How often the target wrote each of its tokens."""
    found = [0] * 3072
    for document in documents:
        for token in document.output_token_ids:
            found[token] += 1
    return found


def _train(learner: Learner, documents: list[Document], num_steps: int, learning_rate: float) -> None:
    optimizer = Optimizer(learner.network, learning_rate, warmup=0.1, clip=1.0)
    stream = RowStream(lambda: documents[NUM_HELD_OUT:], SEQ_LEN, learner.max_len, seed=0)
    for step in range(num_steps):
        rows = PackedRows.of(stream.take(4))
        (learner.step(rows, step / num_steps).loss / learner.num_predictions(rows)).backward()
        optimizer.step((step + 0.5) / num_steps)


@torch.no_grad()
def _held_out(learner: Learner, documents: list[Document]) -> tuple[float, float]:
    """The loss of a prediction and the agreement on texts that were not trained on."""
    rows = PackedRows.of([*pack(documents[:NUM_HELD_OUT], SEQ_LEN)])
    result = learner.step(rows, 0.0)
    return float(result.loss) / learner.num_predictions(rows), float(result.num_agreed) / int(rows.is_taught_BT.sum())


@pytest.mark.parametrize("loss", ["kl", "tv", "kl_tv"])
def test_a_draft_gets_nearer_to_its_target(
    loss: str, teacher: Teacher, documents: list[Document], tmp_path: Path
) -> None:
    blurred = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.bfloat16)
    with torch.no_grad():
        for weight in blurred.parameters():
            weight += 0.3 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    blurred.save_pretrained(tmp_path / "draft")
    AutoTokenizer.from_pretrained(DRAFT).save_pretrained(tmp_path / "draft")
    learner = DraftLearner.load(str(tmp_path / "draft"), teacher, "cpu", loss)
    before, agreed_before = _held_out(learner, documents)
    _train(learner, documents, num_steps=20, learning_rate=2e-3)
    after, agreed_after = _held_out(learner, documents)
    assert after < 0.7 * before
    assert agreed_after > agreed_before


def test_a_saved_draft_is_what_was_trained_in_the_type_of_its_checkpoint(
    teacher: Teacher, documents: list[Document], tmp_path: Path
) -> None:
    learner = DraftLearner.load(DRAFT, teacher, "cpu")
    _train(learner, documents, num_steps=1, learning_rate=1e-2)
    learner.save(str(tmp_path / "out"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert saved.dtype is torch.bfloat16
    for name, weight in saved.named_parameters():
        assert torch.equal(weight, learner.network.get_parameter(name).bfloat16()), name
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (Path(DRAFT) / name).read_bytes()
    engine = Engine.load(TARGET, str(tmp_path / "out"), EngineOptions(drafter="model", num_slots=2, max_model_len=64))
    prompts = [list(documents[0].prompt_token_ids)]
    (written,) = engine.generate(prompts, SamplingParams(max_tokens=16, temperature=0), seed=0)
    assert written.num_accepted_tokens > 0


def test_a_draft_of_another_vocabulary_is_refused_by_name(teacher: Teacher, text_pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="does not share the vocabulary of the target"):
        DraftLearner.load(text_pair[1], teacher, "cpu")


def test_gradient_checkpointing_changes_no_gradient(teacher: Teacher, documents: list[Document]) -> None:
    rows = PackedRows.of([*pack(documents[:4], SEQ_LEN)])
    plain, checkpointed = (DraftLearner.load(DRAFT, teacher, "cpu", "kl", used) for used in (False, True))
    num_calls = []
    checkpointed.network.model.layers[0].input_layernorm.register_forward_hook(lambda *_: num_calls.append(1))
    for learner in (plain, checkpointed):
        learner.step(rows, 0.0).loss.backward()
    assert len(num_calls) == 2
    for name, weight in plain.network.named_parameters():
        torch.testing.assert_close(checkpointed.network.get_parameter(name).grad, weight.grad)


def test_a_new_head_with_few_tokens_beats_a_random_one_and_drafts(
    teacher: Teacher, documents: list[Document], counts: list[int], tmp_path: Path
) -> None:
    known = tokens_to_know(counts, 400, special_tokens(TARGET) | teacher.end_token_ids)
    assert coverage(counts, known) > 0.9
    learner = HeadLearner.new(teacher, known, steps_ahead=2)
    before, _ = _held_out(learner, documents)
    _train(learner, documents, num_steps=40, learning_rate=5e-3)
    after, agreed = _held_out(learner, documents)
    assert after < 0.6 * before
    assert agreed > 0.25
    learner.save(str(tmp_path / "head"))
    saved = read_head(str(tmp_path / "head"))
    assert target_ids(saved.tensors["d2t"], 3072).tolist() == known
    assert "embed_tokens.weight" not in saved.tensors
    assert saved.tensors["fc.weight"].dtype is torch.bfloat16
    speculator = Speculator.from_pretrained(str(tmp_path / "head"))
    speculator.attach(TARGET, device="cpu")
    prompts = [list(document.prompt_token_ids) for document in documents[:8]]
    options = EngineOptions(
        drafter="eagle3", num_slots=8, draft_length="fixed", num_speculative_tokens=2, max_model_len=128
    )
    written = speculator.generate(prompts, SamplingParams(max_tokens=32, temperature=0.8), options, seed=0)
    num_drafted = sum(sequence.num_draft_tokens for sequence in written)
    assert sum(sequence.num_accepted_tokens for sequence in written) > 0.12 * num_drafted


def test_the_bundled_head_knows_its_target_and_is_saved_as_it_was_read(
    teacher: Teacher, documents: list[Document], tmp_path: Path
) -> None:
    learner = HeadLearner.load(HEAD, teacher, steps_ahead=4)
    _, agreed = _held_out(learner, documents)
    assert agreed > 0.75  # a shift by one token would agree on a twentieth of them
    learner.save(str(tmp_path / "head"))
    saved, source = read_head(str(tmp_path / "head")), read_head(HEAD)
    assert {name: tensor.tolist() for name, tensor in saved.tensors.items()} == {
        name: tensor.tolist() for name, tensor in source.tensors.items()
    }


def test_a_head_in_its_authors_format_learns_from_the_layers_that_it_reads_and_may_take_its_own_place(
    teacher: Teacher, documents: list[Document], tmp_path: Path
) -> None:
    """The authors' format names layers by their outputs, and the speculators format by their inputs."""
    save_head(read_head(HEAD), str(tmp_path / "head"), "eagle")
    assert read_head_config(str(tmp_path / "head")).layer_ids == (0, 2, 4)
    learner = HeadLearner.load(str(tmp_path / "head"), teacher, steps_ahead=4)
    assert learner.config.layer_ids == (1, 3, 5)
    _, agreed = _held_out(learner, documents)
    assert agreed > 0.75
    learner.save(str(tmp_path / "learned"))
    check_replacement(str(tmp_path / "learned"), str(tmp_path / "head"), TARGET)


def test_a_head_that_does_not_say_which_layers_it_reads_is_refused_before_it_learns(
    teacher: Teacher, tmp_path: Path
) -> None:
    save_head(read_head(HEAD), str(tmp_path / "head"), "eagle")
    fields = json.loads((tmp_path / "head" / "config.json").read_text())
    del fields["eagle_config"]["aux_hidden_state_layer_ids_are"]
    (tmp_path / "head" / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"does not say whether its layer ids .* by dray convert-draft"):
        HeadLearner.load(str(tmp_path / "head"), teacher, steps_ahead=4)


def test_a_new_head_reads_distinct_layers_from_low_to_high() -> None:
    for num_layers in range(1, 40):
        ids = layers_to_read(num_layers)
        assert list(ids) == sorted(set(ids))
        assert len(ids) == min(3, num_layers)
        assert set(ids) <= set(range(num_layers))


def test_the_most_frequent_tokens_are_known_and_the_forced_ones() -> None:
    assert tokens_to_know([5, 0, 9, 0, 7, 7], 4, forced=[3]) == [2, 3, 4, 5]
    assert tokens_to_know([5, 0, 9, 0, 7, 7], 5, forced=[3]) == [0, 2, 3, 4, 5]
    assert coverage([5, 0, 9, 0, 7, 7], [2, 3, 4, 5]) == pytest.approx(23 / 28)
    with pytest.raises(ValueError, match="fewer than the target's 2 end tokens and special tokens"):
        tokens_to_know([1, 1, 1], 1, forced=[0, 2])
