"""The programs in examples/, with the bundled pair."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.engines.loading import LoadedEngine, load_codec
from actors.programs.program_rows import ProgramRows
from actors.settings import ChatSettings, EngineSettings, GeneratorSettings, ModelSettings, ProgramSettings
from examples.programs.calculator import calculate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from tests.pipeline.made_up import committed_run, input_row

EXAMPLES = Path(__file__).parents[3] / "examples"
SETTINGS = GeneratorSettings(
    models=ModelSettings(
        target=str(EXAMPLES / "tiny_pair/target"),
        draft=str(EXAMPLES / "tiny_pair/draft"),
        device="cpu",
        dtype="float32",
    ),
    engine=EngineSettings(num_slots=4),
)


@pytest.fixture(scope="module")
def engine() -> LoadedEngine:
    return LoadedEngine(SETTINGS, None, 60.0)


def configured(name: str) -> RunConfig:
    return load(RunConfig, ["--config", str(EXAMPLES / "configs" / name)], prog="test")


def written(config: RunConfig, engine: LoadedEngine, folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The generations of these rows by the program of a configuration."""
    program = ProgramSettings(function=config.program.function)
    programs = ProgramRows(program, SETTINGS, committed_run(folder / "run"), engine.loop, engine.codec)
    overrides = {"temperature": config.sampling.params.temperature, "max_tokens": 60}
    encoded = [programs.encode(input_row(overrides=overrides, **row), ordinal) for ordinal, row in enumerate(rows)]
    asyncio.run(programs.finish(encoded))
    return [generation for row in encoded for generation in programs.decode(row)]


def test_sums_of_the_calculator_loop_are_right(engine, tmp_path):
    lines = (EXAMPLES / "sums.jsonl").read_text().splitlines()[:6]
    rows = [{"prompt": json.loads(line)["prompt"]} for line in lines]
    generations = written(configured("calculator.yaml"), engine, tmp_path, rows)
    texts = [row["prompt"][-20:] + row["text"] for row in generations]  # a prompt may end in the middle of a sum
    sums = [found for text in texts for found in re.findall(r"(\d[\d x+-]*\d) = (\d+)", text)]
    assert len(sums) > 10
    assert all(calculate(expression) == value for expression, value in sums)
    assert all(row["tool_results"] for row in generations)


HERMES = (  # a template of the family, as short as it can be
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for message in messages %}<{{ message.role }}>"
    "{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_model_calls_a_tool_and_reads_its_result(engine, tmp_path):
    config = ProgramSettings(function="tests.actors.programs.some_programs:calls_a_tool")
    codec = load_codec(replace(SETTINGS, chat=ChatSettings(chat_template=HERMES)))
    programs = ProgramRows(config, SETTINGS, committed_run(tmp_path / "run"), engine.loop, codec)
    row = programs.encode(input_row(prompt="How is the weather?", overrides={"max_tokens": 60}), 0)
    asyncio.run(programs.finish([row]))
    (generation,) = programs.decode(row)
    result = json.loads(generation["result"])
    (call,) = result["call"]
    assert call["function"]["name"] == generation["tool_results"][0]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == json.loads(generation["tool_results"][0]["arguments"])
    assert result["forecast"].startswith("sun over ")
    assert result["forecast"] in generation["turns"][1]["prompt"]


def test_self_refinement_writes_twice_and_what_was_wrong(engine, tmp_path):
    rows = [
        {"prompt": None, "messages": [{"role": "user", "content": "Write a shopping list for Nadia."}]},
        {"prompt": "7 x 87: 7 x 80"},
    ]
    for row in written(configured("self_refine.yaml"), engine, tmp_path, rows):
        assert json.loads(row["result"]).keys() == {"first", "criticism", "second"}
        assert [turn["text"] for turn in row["turns"]] == list(json.loads(row["result"]).values())
        assert row["turns"][2]["prompt"].startswith(row["turns"][0]["prompt"])
