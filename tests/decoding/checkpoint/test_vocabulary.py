"""Target and draft must mean the same by a token id, and need not know equally many."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from decoding import Engine, EngineOptions, SamplingParams
from decoding.checkpoint.supported import check_same_vocabulary
from tests.decoding import tiny
from tests.decoding.tiny import VOCAB_SIZE, build, engine_over, llama_config, loaded, outputs, random_prompts, save

WORDS = [f"word{i}" for i in range(VOCAB_SIZE)]
PROMPTS = random_prompts([5, 1, 8, 3], seed=7)


def _save_tokenizer(folder: Path, words: list[str]) -> str:
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=words[0]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0]).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("target_words", "draft_words"), [(48, 48), (48, 45), (45, 48)])
def test_one_vocabulary_may_have_more_tokens_at_the_end(tmp_path, target_words, draft_words):
    target = _save_tokenizer(tmp_path / "t", WORDS[:target_words])
    draft = _save_tokenizer(tmp_path / "d", WORDS[:draft_words])
    check_same_vocabulary(target, draft, 64, 128)


def test_the_first_token_id_that_differs_is_named(tmp_path):
    other = WORDS.copy()
    other[7], other[30] = "zebra", "yak"
    target, draft = _save_tokenizer(tmp_path / "t", WORDS), _save_tokenizer(tmp_path / "d", other)
    with pytest.raises(ValueError, match=r"token id 7 is 'zebra' to the draft and 'word7' to the target"):
        check_same_vocabulary(target, draft, VOCAB_SIZE, VOCAB_SIZE)


@pytest.mark.parametrize("has_tokenizer", ["neither", "target", "draft"])
def test_without_a_tokenizer_beside_both_the_sizes_must_be_equal(tmp_path, has_tokenizer):
    paths = {}
    for name in ("target", "draft"):
        folder = tmp_path / name
        folder.mkdir()
        paths[name] = _save_tokenizer(folder, WORDS) if name == has_tokenizer else str(folder)
    check_same_vocabulary(paths["target"], paths["draft"], VOCAB_SIZE, VOCAB_SIZE)
    with pytest.raises(ValueError, match=r"50 token ids.*has 48.*tokenizer"):
        check_same_vocabulary(paths["target"], paths["draft"], VOCAB_SIZE, 50)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("draft_size", [40, VOCAB_SIZE, 64])
def test_a_draft_with_more_or_fewer_ids_is_lossless(models, tmp_path, draft_size, verification):
    """Prompts and texts hold ids that the small draft lacks; the large one has ids that the target lacks."""
    draft = loaded(build(llama_config(draft_size), seed=4), tmp_path)
    greedy = SamplingParams(temperature=0, max_tokens=16)
    sampled = SamplingParams(temperature=1.2, max_tokens=16, top_p=0.95, repetition_penalty=1.2, logit_bias={45: 3.0})
    for params in (greedy, sampled) if verification == "coupled" else (greedy,):
        plain = engine_over(models.target).generate(PROMPTS, params)
        engine = engine_over(models.target, draft, "model", verification=verification)
        sequences = engine.generate(PROMPTS, params)
        assert outputs(sequences) == outputs(plain)
        assert sum(s.num_draft_tokens for s in sequences) > 0
    assert any(token >= 40 for text in outputs(plain) for token in text)


def test_a_pair_with_different_vocabularies_is_refused_at_load(tmp_path):
    other = ["zebra", *WORDS[1:]]
    paths = []
    for name, words in (("target", WORDS), ("draft", other)):
        paths.append(save(build(llama_config(), seed=1), tmp_path / name))
        _save_tokenizer(tmp_path / name, words)
    with pytest.raises(ValueError, match="token id 0 is 'zebra'"):
        Engine.load(*paths, device="cpu")
    Engine.load(*paths, EngineOptions(drafter="ngram"), device="cpu")


@pytest.mark.parametrize("draft_context", [17, 20, 33])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_a_draft_of_short_context_is_lossless_and_drafts_where_it_sees(models, tmp_path, draft_context, verification):
    # With the target's weights.
    draft = loaded(build(llama_config(max_position_embeddings=draft_context), seed=1), tmp_path)
    prompts = random_prompts([4, draft_context - 1, draft_context, draft_context + 1, 50, 1], seed=3)
    sequences = tiny.numbered(prompts, temperature=0, max_tokens=40)
    plain = engine_over(models.target).generate(prompts, SamplingParams(temperature=0, max_tokens=40))
    tiny.run(engine_over(models.target, draft, "model", verification=verification), sequences)
    assert outputs(sequences) == outputs(plain)
    for sequence in sequences:
        longest_drafted = max(0, draft_context - len(sequence.prompt_token_ids))
        assert (sequence.num_draft_tokens > 0) == (longest_drafted > 0)
        assert sequence.num_accepted_tokens == sequence.num_draft_tokens


def test_a_tokenizer_that_needs_a_missing_package_is_told_in_one_line(tmp_path):
    target = _save_tokenizer(tmp_path / "t", WORDS)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "vocab.json").write_text(json.dumps({word: token_id for token_id, word in enumerate(WORDS)}))
    (tmp_path / "d" / "merges.txt").write_text("#version: 0.2\na b 1\n")
    (tmp_path / "d" / "tokenizer_config.json").write_text('{"tokenizer_class": "BioGptTokenizer"}')
    with pytest.raises(ValueError, match=r"compare vocabularies: .*install sacremoses.*; mend that, or use"):
        check_same_vocabulary(target, str(tmp_path / "d"), VOCAB_SIZE, VOCAB_SIZE)
