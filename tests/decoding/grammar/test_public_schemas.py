"""Texts that the bundled target writes under public schemas are validated by `jsonschema`.

The schemas are those of Kubernetes' objects, which the package kubernetes-validate ships: all that stand alone, have
`type: object` and that llguidance can compile.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from transformers import AutoTokenizer

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.grammar.definition import problem_with
from decoding.grammar.structured import Structured

FOLDER = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
TARGET = "examples/tiny_pair/target"


def _schemas(*versions: str) -> list[Structured]:
    """Different schemas of these versions of Kubernetes, in the order of their names."""
    found: dict[str, Structured] = {}
    for version in versions:
        for file in sorted((FOLDER / version).glob("*.json")):
            text = file.read_text(encoding="utf-8")
            if '"$ref"' in text or len(text) > 20_000:
                continue
            schema: dict[str, Any] = {name: value for name, value in json.loads(text).items() if name != "$id"}
            structured = Structured(json_schema=schema, disable_any_whitespace=len(found) % 2 == 0)
            if schema.get("type") == "object" and problem_with(structured) is None:
                found.setdefault(json.dumps(schema), structured)
    return list(found.values())


def _written(schemas: list[Structured], temperature: float) -> list[Sequence]:
    """A text for each schema, by the bundled target with drafts that are looked up."""
    engine = Engine.load(TARGET, None, EngineOptions(drafter="suffix", num_slots=16, draft_length="fixed"))
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    made = []
    for row, schema in enumerate(schemas):
        chat = [{"role": "user", "content": "Write a JSON object for a person."}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        params = SamplingParams(structured=schema, temperature=temperature, max_tokens=150)
        made.append(Sequence.create(prompt, params, row=row))
    list(engine.stream(made))
    for sequence in made:
        sequence.tag = tokenizer.decode(sequence.output_token_ids, skip_special_tokens=True)
    return made


def _num_valid(texts: list[Sequence]) -> int:
    """Validate the texts that ended, and count them."""
    num_valid = 0
    for text in texts:
        assert text.error is None
        if text.finish_reason == "stop":
            jsonschema.Draft202012Validator(text.params.structured.schema).validate(json.loads(text.tag))
            num_valid += 1
        else:
            assert len(text.output_token_ids) == 150
    return num_valid


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_under_some_public_schemas_are_valid(temperature: float) -> None:
    schemas = _schemas("v1.37.0-local-strict")[::6]
    assert len(schemas) > 30
    assert _num_valid(_written(schemas, temperature)) > len(schemas) / 3


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_under_500_public_schemas_are_valid(temperature: float) -> None:
    schemas = _schemas("v1.37.0-local-strict", "v1.37.0-local", "v1.31.0-local", "v1.29.0-local")[:500]
    assert len(schemas) == 500
    assert _num_valid(_written(schemas, temperature)) > 150
