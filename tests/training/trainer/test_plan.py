"""What a plan says of a training before it begins, and what it refuses."""

from dataclasses import replace
from math import ceil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from decoding.heads.format.folder import Head, save_head
from tests.decoding.fp8.checkpoints import save_fp8
from tests.decoding.heads.tiny_heads import block_config, random_head
from tests.decoding.tiny import build, llama_config, save
from tests.training.pair import DRAFT, HEAD, TARGET
from training.corpus.options import CorpusOptions
from training.learners.packing import Document
from training.trainer.optimizer import learning_rate_factor
from training.trainer.options import ModelOptions, TrainOptions, WorkerOptions
from training.trainer.plan import TrainingPlan, check_can_learn

OPTIONS = TrainOptions(seq_len=128, tokens_per_step=512)


def _plan(texts: str, **changes: object) -> TrainingPlan:
    models = changes.pop("models", ModelOptions(target=TARGET, draft=DRAFT))
    corpus = CorpusOptions(path=texts, temperature=0.8, held_out_share=0.0)
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    return TrainingPlan.make(models, corpus, options, WorkerOptions())  # type: ignore[arg-type]


def test_texts_are_counted_and_steps_follow(texts: str, documents: list[Document]) -> None:
    plan = _plan(texts, epochs=3.0)
    assert plan.counts.num_rows == len(documents)
    assert plan.counts.num_output_tokens == sum(len(document.output_token_ids) for document in documents)
    num_tokens = sum(min(len(each.prompt_token_ids) + len(each.output_token_ids), 128) for each in documents)
    assert plan.counts.num_tokens == num_tokens
    assert plan.num_steps == ceil(3 * num_tokens / 512)
    assert _plan(texts, max_steps=7).num_steps == 7


@pytest.mark.parametrize("seq_len", [32, 48, 256])
def test_output_tokens_behind_the_end_of_a_row_are_counted_as_not_taught(
    seq_len: int, texts: str, documents: list[Document]
) -> None:
    counts = _plan(texts, seq_len=seq_len).counts
    left = [max(0, min(len(each.output_token_ids), seq_len - len(each.prompt_token_ids))) for each in documents]
    assert counts.num_taught == sum(left)
    assert (counts.num_taught < counts.num_output_tokens) == (seq_len < 256)


def test_texts_of_which_only_the_prompts_would_be_read_are_refused(tmp_path: object) -> None:
    path = f"{tmp_path}/long.parquet"
    pq.write_table(pa.table({"prompt": ["hello world " * 40] * 3, "text": ["an answer"] * 3}), path)
    with pytest.raises(ValueError, match="no output to learn from: all 3 prompts fill the 16 tokens that are read"):
        _plan(path, seq_len=16, tokens_per_step=64)


def test_a_draft_takes_four_float32_numbers_for_each_weight(texts: str) -> None:
    draft, target = (
        sum(weight.numel() for weight in load_file(f"{folder}/model.safetensors").values())
        for folder in (DRAFT, TARGET)
    )
    assert _plan(texts).num_bytes == 16 * draft + 4 * target


def test_a_new_head_knows_the_end_tokens_and_the_special_ones(texts: str) -> None:
    plan = _plan(texts, models=ModelOptions(target=TARGET), what="eagle3", draft_vocab=300)
    assert plan.known_ids is not None
    assert len(plan.known_ids) == 300
    assert {0, 1, 2, 3, 4} <= set(plan.known_ids)
    assert 0.8 < plan.coverage < 1
    every = _plan(texts, models=ModelOptions(target=TARGET), what="eagle3", draft_vocab=3072)
    assert every.known_ids is None
    assert every.coverage == 1


def test_what_changes_nothing_in_the_draft_does_not_change_the_identity(texts: str) -> None:
    plan = _plan(texts)
    assert _plan(texts, checkpoint_every=5).identity == plan.identity
    assert _plan(texts, seed=5).identity != plan.identity
    assert _plan(texts, loss="tv").identity != plan.identity


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ModelOptions(target=TARGET)}, "models.draft names none"),
        ({"models": ModelOptions(target=TARGET, draft=HEAD)}, "is a head of kind eagle3, and train.what is 'draft'"),
        ({"models": ModelOptions(target=TARGET, draft=HEAD), "what": "dflash2"}, "set train.what to 'eagle3'"),
        ({"models": ModelOptions(target=TARGET), "what": "mtp"}, r"\(llama\) could not be read: known are deepseek_v3"),
        ({"models": ModelOptions(target=TARGET), "what": "assistant"}, "are trained for Gemma 4, and .* of type llama"),
        ({"what": "eagle3"}, "is a model of its own, and train.what is 'eagle3'"),
        ({"models": ModelOptions(target=TARGET), "what": "eagle3", "draft_vocab": 2}, "fewer than the target's 5"),
        ({"tokens_per_step": 100}, "less than one row of train.seq_len 128"),
        ({"loss": "mse"}, "train.loss must be one of kl, ce, tv, kl_tv"),
        ({"models": ModelOptions(target=TARGET, draft=DRAFT, device="cuda")}, "give each worker a GPU"),
    ],
)
def test_a_training_that_cannot_be_is_refused(changes: dict[str, object], message: str, texts: str) -> None:
    with pytest.raises(ValueError, match=message):
        _plan(texts, **changes)


def test_drafts_that_are_not_trained_here_are_refused_by_their_folders(tmp_path: Path) -> None:
    target, config = save(build(llama_config(), 1), tmp_path / "target"), block_config(kind="dspark")
    save_head(Head(config, random_head(config)[1]), str(tmp_path / "head"), "speculators")
    with pytest.raises(ValueError, match="kind dspark with 2 layers, and only eagle3 heads of one layer, and dflash"):
        check_can_learn(str(tmp_path / "head"), target)
    quantized = save_fp8(build(llama_config(hidden_size=128), 1), tmp_path / "fp8", "blocks")
    with pytest.raises(ValueError, match="has FP8 weights, which cannot be trained"):
        check_can_learn(quantized, target)
    with pytest.raises(ValueError, match="has 3072 token ids and the target"):
        check_can_learn(DRAFT, target)


def test_a_step_that_has_no_row_for_a_worker_is_refused(texts: str) -> None:
    with pytest.raises(ValueError, match=r"a step has 4 rows .* for 5 workers"):
        TrainingPlan.make(
            ModelOptions(target=TARGET, draft=DRAFT), CorpusOptions(path=texts), OPTIONS, WorkerOptions(num=5)
        )


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    assert learning_rate_factor(0.01, 0.02) == pytest.approx(0.5)
    assert learning_rate_factor(0.02, 0.02) == 1.0
    assert learning_rate_factor(0.51, 0.02) == pytest.approx(0.5)
    assert learning_rate_factor(1.0, 0.02) == pytest.approx(0.0)
    assert learning_rate_factor(0.0, 0.0) == 1.0
