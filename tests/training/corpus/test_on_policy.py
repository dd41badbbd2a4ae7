"""Texts of another model, or with another prompt, are refused with the figures that were found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from decoding.device import to_device
from decoding.engine.engine import Engine
from decoding.engine.options import EngineOptions
from decoding.network.language_model import LanguageModel
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.text.codec import TextCodec
from tests.training.pair import DRAFT, TARGET, Prompt, examples_of
from training.corpus.corpus import Corpus
from training.corpus.on_policy import LogitsOf, check_is_targets_text, compare
from training.corpus.options import CorpusOptions

CODEC = TextCodec.load(TARGET)


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return LanguageModel.load(TARGET, "cpu", "float32")


@pytest.fixture(scope="module")
def logits_of(target: LanguageModel) -> LogitsOf:
    return lambda token_ids, num_logits: target.plain(to_device(list(token_ids), target.device), num_logits)


@pytest.fixture
def corpus_of(tmp_path: Path, some_prompts: list[Prompt]) -> Callable[..., Corpus]:
    """Write texts as Parquet beside their prompts, which `change` may change, and open it."""

    def save(rows: list[Sequence], change: Callable[[str], str] = str, temperature: float = 0.8) -> Corpus:
        columns = {
            "prompt": [change(prompt.text) for prompt in some_prompts],
            "is_chat": [prompt.is_chat for prompt in some_prompts],
            "text": [CODEC.decode(row.output_token_ids) for row in rows],
            "finish_reason": [row.finish_reason for row in rows],
        }
        pq.write_table(pa.table(columns), tmp_path / "texts.parquet")
        return Corpus.open(CorpusOptions(path=str(tmp_path / "texts.parquet"), temperature=temperature), TARGET)

    return save


def drawn_by(path: str, some_prompts: list[Prompt], temperature: float) -> list[Sequence]:
    engine = Engine.load(path, None, EngineOptions(num_slots=8), device="cpu", dtype="float32")
    params = SamplingParams(temperature=temperature, max_tokens=60)
    rows = [Sequence.create(prompt.token_ids, params, row=index) for index, prompt in enumerate(some_prompts)]
    list(engine.stream(rows))
    return rows


def test_the_target_reproduces_all_tokens_of_its_rows_with_their_keys(some_texts, logits_of, target):
    found = compare(examples_of(some_texts), logits_of, target.eos_token_ids)
    assert found.num_reproduced == found.num_tokens > 1500


def test_noise_of_other_positions_or_rows_reproduces_less(some_texts, logits_of, target):
    others = [replace(example, noise_key=(example.noise_key or 0) + 1) for example in examples_of(some_texts)]
    assert compare(others, logits_of, target.eos_token_ids).reproduced < 0.9
    longer = [replace(each, prompt_token_ids=(each.prompt_token_ids[0], *each.prompt_token_ids)) for each in others]
    assert compare(longer, logits_of, target.eos_token_ids).reproduced < 0.9


def test_a_run_of_the_target_passes(plain_run, text_pair):
    corpus = Corpus.open(CorpusOptions(path=str(plain_run / "out")), text_pair[0])
    model = LanguageModel.load(text_pair[0], "cpu", "float32")
    (found,) = check_is_targets_text(
        corpus, lambda ids, number: model.plain(torch.tensor(ids), number), model.eos_token_ids
    ).values()
    assert found.reproduced == 1
    assert found.num_tokens > 100


def test_a_run_that_another_model_would_not_have_written_is_refused_with_the_share(plain_run, text_pair):
    """The fingerprint says so at once; here the weights behind it are other ones."""
    corpus = Corpus.open(CorpusOptions(path=str(plain_run / "out")), text_pair[0])
    other = LanguageModel.load(text_pair[1], "cpu", "float32")
    with pytest.raises(ValueError, match=r"picks \d+\.\d% of \d+ tokens, expected 99% or more; name the texts of this"):
        check_is_targets_text(corpus, lambda ids, number: other.plain(torch.tensor(ids), number), other.eos_token_ids)


def test_texts_without_keys_pass_at_the_temperature_that_they_were_drawn_with(some_texts, corpus_of, logits_of, target):
    (found,) = check_is_targets_text(corpus_of(some_texts), logits_of, target.eos_token_ids).values()
    assert abs(found.deviations) < 5
    assert found.num_drawn > 1000


def test_the_excess_of_the_target_s_own_tokens_is_chance(some_texts, logits_of, target):
    """Text is tokenized anew, now and then into other tokens than the target wrote; its token ids are not."""
    without_keys = [replace(example, noise_key=None) for example in examples_of(some_texts)]
    found = compare(without_keys, logits_of, target.eos_token_ids)
    assert abs(found.deviations) < 3


def test_texts_of_another_model_are_refused_with_their_excess(some_prompts, corpus_of, logits_of, target):
    with pytest.raises(ValueError, match=r"less likely than the target's own by \d\.\d\d nats each \(1,\d+ tokens, "):
        check_is_targets_text(
            corpus_of(drawn_by(DRAFT, some_prompts, 1.0), temperature=1.0), logits_of, target.eos_token_ids
        )


def test_texts_with_another_template_are_refused_with_their_excess(some_texts, corpus_of, logits_of, target):
    corpus = corpus_of(some_texts, lambda prompt: "Question: " + prompt[-6:])
    with pytest.raises(ValueError, match="holds texts of another model, or with another prompt: its tokens are less"):
        check_is_targets_text(corpus, logits_of, target.eos_token_ids)


def test_greedy_texts_must_be_the_likeliest_tokens(some_prompts, some_texts, corpus_of, logits_of, target):
    greedy = drawn_by(TARGET, some_prompts, 0.0)
    (found,) = check_is_targets_text(corpus_of(greedy, temperature=0.0), logits_of, target.eos_token_ids).values()
    assert found.reproduced > 0.99
    with pytest.raises(ValueError, match=r"picks \d+\.\d% of"):
        check_is_targets_text(corpus_of(some_texts, temperature=0.0), logits_of, target.eos_token_ids)
