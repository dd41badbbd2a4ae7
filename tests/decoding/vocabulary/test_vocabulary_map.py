"""Tokens of two tokenizers are the same if they write the same bytes, and any text can be written by the draft's."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from decoding.vocabulary.draft_ids import DraftIds, RetokenizedText
from decoding.vocabulary.vocabulary_map import VocabularyMap, load_tokenizer, token_bytes
from tests.decoding.vocabulary.tiny_tokenizers import BYTES, byte_level, like_llama_2, map_of
from tests.text_pair import save_byte_fallback_tokenizer, save_tokenizer

TEXT = "the cat sat on the mat. hello, the hello cat; übergroß, naïve 你好 🙂 e\u0301 the end"


def test_a_byte_level_and_a_sentencepiece_token_are_the_same_if_they_write_the_same_bytes():
    target = byte_level([*BYTES, "th", "he", "Ġthe"])
    draft = like_llama_2(["▁", "t", "h", "e", "th", "▁t", "▁th", "▁the"])
    vocabulary = map_of(target, draft)
    for own, other in (("Ġthe", "▁the"), ("th", "th"), ("t", "t"), ("Ġ", "▁"), ("Ċ", "<0x0A>"), ("ÿ", "<0xFF>")):
        expected = draft.convert_tokens_to_ids(other)
        assert vocabulary.draft_ids_V[target.convert_tokens_to_ids(own)] == expected, own
    assert len([each for each in vocabulary.draft_ids_V if each >= 0]) == vocabulary.num_common


def test_no_two_tokens_of_the_target_are_one_of_the_draft():
    target = like_llama_2(["▁", "t", "h", "e", "th", "▁t", "▁th", "▁the"])
    draft = byte_level([*BYTES, "th", "he", "Ġthe"])
    taken = [each for each in map_of(target, draft).draft_ids_V if each >= 0]
    assert len(set(taken)) == len(taken)


def test_the_tokens_that_begin_and_end_a_text_are_the_same_whatever_their_names():
    target = byte_level([*BYTES, "<|begin|>", "<|end|>"], bos_token="<|begin|>", eos_token="<|end|>")
    draft = like_llama_2(["▁", "a"])
    vocabulary = map_of(target, draft)
    assert vocabulary.draft_ids_V[target.bos_token_id] == draft.bos_token_id
    assert vocabulary.draft_ids_V[target.eos_token_id] == draft.eos_token_id
    text = RetokenizedText(vocabulary)
    text.extend([target.bos_token_id, *target.encode("a")])
    assert text.token_ids == draft.encode("a"), "the target's first token stands for the draft's, which is there once"


def test_one_token_of_the_draft_may_begin_and_end_a_text_and_be_the_unknown_one():
    """Like GPT-2's. A text that begins with it can be read, and the target's last token can be drafted."""
    name = "<|endoftext|>"
    draft = byte_level([*BYTES, name], bos_token=name, eos_token=name, unk_token=name)
    target = like_llama_2(["▁", "a", "▁a"])
    vocabulary = map_of(target, draft)
    text = RetokenizedText(vocabulary)
    text.extend(target.encode("a"))
    assert text.can_be_read
    assert text.token_ids == draft.encode(f"{name} a")
    assert vocabulary.draft_ids_V[target.eos_token_id] == draft.eos_token_id


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", ["byte level", "sentencepiece"])
def test_a_text_that_grows_is_written_in_tokens_of_the_draft_that_spell_it(family, seed):
    chance = random.Random(seed)
    target = byte_level([*BYTES, "th", "he", "Ġthe", "hel", "lo", "Ġc", "at"])
    words = ["▁t", "▁th", "▁the", "he", "hel", "hell", "hello", "▁c", "▁ca", "▁cat", "sa", "sat"]
    draft = like_llama_2(["▁", *"thelocasmnd", *words])
    if family == "byte level":
        draft = byte_level([*BYTES, *(word.replace("▁", "Ġ") for word in words)])
    vocabulary = map_of(target, draft)
    token_ids = target.encode(TEXT) if seed else [chance.randrange(len(target)) for _ in range(200)]
    text, first = RetokenizedText(vocabulary), 0
    while first < len(token_ids):
        number = chance.randint(1, 5)
        before = list(text.token_ids)
        kept = text.extend(token_ids[first : first + number])
        first += number
        assert text.token_ids[:kept] == before[:kept]
        assert text.can_be_read
        written = b"".join(vocabulary.draft_bytes[token_id] for token_id in text.token_ids)
        expected = vocabulary.written(token_ids[:first])
        if family == "sentencepiece" and not seed:  # a space more behind each byte that is no character
            written, expected = written.replace(b" ", b""), expected.replace(b" ", b"")
        assert written.removeprefix(b"<s>").removeprefix(b" " if family == "sentencepiece" else b"") == expected
    if seed:
        assert text.token_ids == draft.encode(TEXT), "written step by step, the text has the tokens of the whole"


def test_a_character_that_a_tokenizer_leaves_out_is_noticed():
    core = Tokenizer(models.BPE({"a": 0, "b": 1}, []))  # it has no unknown token
    core.decoder = decoders.ByteLevel()
    vocabulary = map_of(byte_level([*BYTES]), PreTrainedTokenizerFast(tokenizer_object=core))
    assert vocabulary.draft_tokens(b"ab") == ([0, 1], [1, 2])
    assert vocabulary.draft_tokens(b"acb") is None


def test_a_text_longer_than_its_tokenizer_is_set_to_is_written_as_a_whole():
    draft = byte_level([*BYTES])
    draft.backend_tokenizer.enable_truncation(3)
    tokens = map_of(byte_level([*BYTES]), draft).draft_tokens(b"hello")
    assert tokens is not None
    assert len(tokens[0]) == 5


def test_tokens_that_a_model_has_no_id_for_are_not_in_the_map():
    target, draft = byte_level([*BYTES, "th", "he"]), byte_level([*reversed(BYTES), "he", "th"])
    sizes = target.convert_tokens_to_ids("he"), draft.convert_tokens_to_ids("th")  # without the last token of each
    vocabulary = VocabularyMap(target, draft, *sizes, ("the target", "the draft"))
    assert len(vocabulary.draft_ids_V) == sizes[0]
    assert max(vocabulary.draft_ids_V) < sizes[1]
    assert vocabulary.num_common == 256
    assert vocabulary.draft_tokens(b"th") is None, "its tokenizer would write a token that the draft lacks"


def test_what_a_tokenizer_cannot_write_is_never_written_as_unknown():
    target = byte_level([*BYTES])
    core = Tokenizer(models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"))
    core.decoder = decoders.ByteLevel()
    vocabulary = map_of(target, PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"))
    text = RetokenizedText(vocabulary)
    text.extend(target.encode("ab"))
    assert text.can_be_read
    assert text.token_ids == [1, 2]
    text.extend(target.encode("c"))
    assert not text.can_be_read
    text.extend(target.encode("a"))
    assert not text.can_be_read


def test_the_tokens_of_a_saved_tokenizer_write_what_it_decodes(tmp_path):
    for save in (save_tokenizer, save_byte_fallback_tokenizer):
        folder = tmp_path / save.__name__
        save(folder)
        tokenizer = load_tokenizer(str(folder))
        for token_id, written in enumerate(token_bytes(tokenizer, str(folder))):
            name = tokenizer.convert_ids_to_tokens(token_id)
            text = tokenizer.decode([token_id], skip_special_tokens=False)
            assert written is not None
            if "\ufffd" not in text:
                assert written.decode().removeprefix(" ") == text.removeprefix(" "), name  # a leading one is not shown


def test_tokens_that_write_something_unknown_are_refused():
    core = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    core.decoder = decoders.WordPiece()
    bert = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    with pytest.raises(ValueError, match=r"'the draft' writes its tokens in a way .*WordPiece.* target's own family"):
        map_of(byte_level([*BYTES]), bert)


def test_the_logits_of_a_draft_that_lacks_no_id_are_not_copied():
    logits_NV = torch.randn(2, 7)
    for size in (5, 7):
        found = DraftIds(size, 7).to_target(logits_NV)
        assert found.data_ptr() == logits_NV.data_ptr()
        assert found.equal(logits_NV[:, :size])
    assert DraftIds(9, 7).to_target(logits_NV)[:, 7:].eq(float("-inf")).all()
