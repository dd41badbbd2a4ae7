"""JSON may be laid out as printers of JSON do it, and no further: white space has an end."""

import json
from pathlib import Path

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer

from decoding.grammar.definition import definition_of
from decoding.grammar.structured import Structured
from pipeline.text.answer_parts import ReasoningTags, Thought
from pipeline.text.tools.grammar import GrammarWriter

TOKENIZER = AutoTokenizer.from_pretrained(Path(__file__).parents[3] / "examples" / "tiny_pair" / "target")
SCHEMA = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "object"}}, "required": ["a", "b"]}
VALUE = {"a": [1, [2, [True]]], "b": {"c": {"d": []}}}
STRUCTURED = Structured(json_schema=SCHEMA)


def _behind_a_thought() -> Structured:
    tags = ReasoningTags("<think>", "</think>")
    grammar = GrammarWriter({}).of_structured(STRUCTURED.as_dict(), tags, Thought.OPEN)
    assert grammar is not None
    return Structured(grammar=grammar)


def _takes(structured: Structured, text: str) -> bool:
    """Tell whether the whole text is one that the grammar allows."""
    matcher = LLMatcher(from_tokenizer(TOKENIZER), definition_of(structured))
    token_ids = TOKENIZER.encode(text)
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@pytest.mark.parametrize("indent", [None, 1, 4, 8, "\t"])
@pytest.mark.parametrize("separators", [None, (",", ":"), (", ", ": ")])
def test_every_layout_of_a_printer_is_allowed(indent, separators):
    text = json.dumps(VALUE, indent=indent, separators=separators)
    assert _takes(STRUCTURED, text)
    assert _takes(_behind_a_thought(), f"so</think>{text}")


@pytest.mark.parametrize("space", ["\n\n", "\n \n", " " * 42, "\t" * 41])
def test_white_space_without_an_end_is_not_allowed(space):
    text = json.dumps(VALUE).replace(": [1", f":{space}[1")
    assert not _takes(STRUCTURED, text)
    assert not _takes(_behind_a_thought(), f"so</think>{text}")
    assert _takes(Structured(json_schema={**SCHEMA, "x-guidance": {"whitespace_flexible": True}}), text)
