"""Bad input of jobs: a mistake of the configuration ends the command, and one of a row is its error row alone."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import generate
from tests.actors.programs.hostile_programs import HOSTILE
from tests.actors.programs.wrong_programs import WRONG
from tests.adapted import keep_merged_models_in, save_adapter
from tests.endpoint.requests.hostile import CIRCLE, LARGE, MANY, OBJECT, called, deep, needing, tool
from tests.jobs.conftest import Job
from tests.jobs.runs import arguments, errors, generations, problems

HELLO = [{"role": "user", "content": "hello"}]
# The columns of a row, and what its error row says. None: the row is written.
Case = tuple[dict[str, Any], tuple[str, str] | None]
_PARAMS = "params"


def _form(said: str, stage: str = _PARAMS, **structured: Any) -> Case:
    return {"prompt": "hello", "sampling": {"structured": structured}}, (stage, said)


def _schema(schema: Any, said: str) -> Case:
    return _form(f"sampling.structured.json_schema {said}", json_schema=json.dumps(schema))


def _tools(said: str, *tools: Any, choice: str = "required", **more: Any) -> Case:
    asked = {"tools": json.dumps(tools), "tool_choice": choice}
    return {"messages": HELLO, **asked, **more}, ("template", said)


def _history(said: str, *messages: Any) -> Case:
    return {"messages": [*HELLO, *messages, *HELLO]}, ("template", said)


LARGE_FORM = "cannot be compiled: lexer error: the repetitions write out 1000000 bytes without a choice"
NO_TEXT = "sampling.structured: the grammar cannot be followed: no token can begin what it asks for"
LATE = {**needing(k={"const": "abcdefgh"}, a={"$ref": "#/$defs/a"}), "$defs": CIRCLE["$defs"]}
LARGE_TEXT = {"type": "string", "pattern": LARGE}
FORMS: dict[str, Case] = {
    "a million letters": _form(f"sampling.structured.regex {LARGE_FORM}", regex="(a{1000}){1000}"),
    "brackets": _form("sampling.structured.regex cannot be compiled: at 1(8): invalid regex", regex="a(b"),
    "letters in a pattern": _schema(LARGE_TEXT, LARGE_FORM),
    "letters behind a property": _schema(
        needing(k={"const": "ab"}, a=LARGE_TEXT), "cannot be compiled at /properties/a: "
    ),
    "3,000 properties": _schema(MANY, "cannot be compiled: grammar size (number of symbols) too big"),
    "400 levels": _schema(deep(400), "cannot be compiled: recursion limit exceeded"),
    "5,000 levels": _form("is not JSON that can be read: too many levels", json_schema='{"items":' * 5000),
    "no JSON": _form("sampling.structured.json_schema is not JSON: ", json_schema="{'a'"),
    "a circle": ({"prompt": "hello", "sampling": {"structured": {"json_schema": CIRCLE}}}, ("generate", NO_TEXT)),
    "a circle behind a property": (
        {
            "prompt": "hello",
            "sampling": {"structured": {"json_schema": LATE, "disable_any_whitespace": True}, "max_tokens": 60},
        },
        ("generate", "NoExtensionBias (no text goes on as it asks"),
    ),
    "a type that is none": _schema({"properties": {"a": {"type": "objekt"}}}, "cannot be compiled at /properties/a: "),
    "a reference to a page": _schema({"$ref": "https://a.test/b"}, "cannot be compiled: Resource 'https://a.test/b'"),
    "a schema that is a list": _schema([OBJECT], "must be an object, got ["),
    "no choice": _form("sampling.structured.choice must be a list of non-empty texts, got []", choice=[]),
    "an empty choice": _form("sampling.structured.choice must be a list of non-empty texts, got ['']", choice=[""]),
    "a grammar in a circle": _form(NO_TEXT, "generate", grammar="start: start"),
    "a grammar without a start": _form("sampling.structured.grammar cannot be compiled: ", grammar='a: "b"'),
    "two forms": _form("sampling.structured must have exactly one of", regex="a", choice=["a"]),
    "an unknown form": _form("sampling.structured has no ['regx']; it has json_schema", regx="a"),
    "a form that is a text": (
        {"prompt": "hello", "sampling": {"structured": "json"}},
        (_PARAMS, "sampling.structured must be an object with one of json_schema"),
    ),
    "a form without its end": (
        {"prompt": "hello", "sampling": {"structured": {"regex": "a"}, "ignore_eos": True}},
        (_PARAMS, "sampling.ignore_eos is True, which would forbid the end token"),
    ),
    "a form of bad words": (
        {"prompt": "hello", "sampling": {"structured": {"choice": ["a"]}, "bad_words": ["a"]}},
        ("generate", "sampling.bad_words and sampling.structured leave no token after 0 output tokens"),
    ),
}
NAME = "tools[0].function.name: expected a name of 1 to 64 letters, digits, - and _, got "
CALL = "messages[1].tool_calls[0]"
TOOLS: dict[str, Case] = {  # tests/endpoint/requests/bad_chats.py has others, which are checked in the same place
    "a name with lines": _tools(f"{NAME}'a\\nb'", tool("a\nb")),
    "bad parameters": _tools(
        "tools[0].function.parameters: it cannot be compiled at /properties/a: Invalid type: objekt",
        tool("f", needing(a={"type": "objekt"})),
    ),
    "large parameters": _tools(
        "tools[0].function.parameters: it cannot be compiled at /properties/a: lexer error",
        tool("f", needing(a=LARGE_TEXT)),
    ),
    "parameters of 3,000 properties": _tools("(use fewer properties or alternatives)", tool("f", MANY)),
    "no tools": _tools("tool_choice: it needs tools, and there are none"),
    "an unknown choice": _tools("tool_choice: expected none, auto, required, or", tool(), choice="any"),
    "no place": _tools("tools: the chat template of this model has no place for tools", tool(), choice="auto"),
    "calls at once": _tools("parallel_tool_calls: expected true or false", tool(), parallel_tool_calls="no"),
    "tools that are no JSON": ({"messages": HELLO, "tools": "[1"}, ("template", "tools: not JSON")),
    "tools that are a number": ({"messages": HELLO, "tools": 3}, ("template", "tools: expected a list, got int")),
    "arguments that are no JSON": _history(f"{CALL}.function.arguments: expected JSON text", called('{"a"')),
    "an answer to a number": _history(
        "messages[1].tool_call_id: expected the id of a call", {"role": "tool", "content": "1", "tool_call_id": 7}
    ),
}
HOSTILE_ROWS = {**FORMS, **TOOLS}
GOOD_ROWS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "hello"},
    "plain again": {"prompt": "hello"},
    "a good form": {"prompt": "hello", "sampling": {"structured": {"regex": "[ab]{2,4}"}}},
    "a good call": {"messages": HELLO, "tools": json.dumps([tool()]), "tool_choice": "required"},
}


PROGRAM = "--program.function=tests.actors.programs.hostile_programs:hostile"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def check_rows(job: Job, said: Mapping[str, tuple[str, str]], written: set[str]) -> None:
    """Check that each row of the input is either written or the error row that is expected, and nothing is lost."""
    found = {row["id"]: (row["stage"], row["message"]) for row in errors(job.output)}
    ids = [row["id"] for row in generations(job.output)]
    assert set(ids) ^ written == set(), "lost, or written though they are wrong"
    assert len(ids) == len(written)
    assert len(errors(job.output)) == len(found) == len(said)
    assert {name: stage for name, (stage, _) in found.items()} == {name: stage for name, (stage, _) in said.items()}
    unclear = {name: found[name][1] for name, (_, words) in said.items() if words not in found[name][1]}
    assert not unclear
    assert all("\n" not in message and len(message) < 700 for _, message in found.values())
    assert problems(job.output) == []


@pytest.mark.usefixtures("local")
def test_each_hostile_row_is_an_error_row_that_says_why_and_good_rows_are_written_beside_it(job):
    said = {name: wrong for name, (_, wrong) in HOSTILE_ROWS.items() if wrong is not None}
    good = list(GOOD_ROWS.items())
    rows = []
    for number, (name, (columns, _)) in enumerate(HOSTILE_ROWS.items()):
        rows.append({"id": name, "kind": "bad", **columns})
        if number % 8 == 3 and good:  # in the units of bad rows
            rows.append({"id": good[0][0], "kind": "good", **good.pop(0)[1]})
    job.read(rows + [{"id": name, "kind": "good", **columns} for name, columns in good])
    assert job.generate("--sampling.temperature=0", "--output.parts", "--run.max_error_rate=1") == 0, job.printed()
    check_rows(job, said, set(GOOD_ROWS))
    texts = {row["id"]: row for row in generations(job.output)}
    assert texts["plain"]["token_ids"] == texts["plain again"]["token_ids"]
    assert re.fullmatch("[ab]{2,4}", texts["a good form"]["text"])


# Some of each stage, and of those that would end an event loop. tests/actors/programs runs all, without a job.
WRONG_IN_A_JOB = ("raises", "says_nothing", "waits", "returns_itself", "leaves_one_behind")
WRONG_IN_A_JOB += ("asks_for_heat", "asks_for_a_bad_tool", "too_long")
HOSTILE_IN_A_JOB = ("exits", "interrupts", "raises_a_base_exception", "cancels_itself", "tool_exits", "tool_stops")
HOSTILE_IN_A_JOB += ("exits_in_a_task", "interrupts_in_a_task", "exits_in_a_group", "leaves_a_task_that_exits")
HOSTILE_IN_A_JOB += ("cancels_its_task", "tool_exits_beside_another", "recurses")
SOUND_IN_A_JOB = ("one_turn", "catches", "changes_its_row")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_each_program_that_goes_wrong_is_an_error_row_and_its_neighbours_are_written(job):
    hostile = {name: HOSTILE[name] for name in HOSTILE_IN_A_JOB}
    said = {name: WRONG[name] for name in WRONG_IN_A_JOB}
    said |= {name: ("program", words) for name, words in hostile.items() if words is not None}
    written = {*SOUND_IN_A_JOB, *(name for name, words in hostile.items() if words is None)}
    names = [*said, *written]
    job.read([{"id": name, "kind": "a", "prompt": "hello", "does": name, "notes": []} for name in names])
    flags = [PROGRAM, "--program.max_turns=5", "--program.timeout_s=3", "--run.max_error_rate=1"]
    assert job.generate(*flags) == 0, job.printed()
    check_rows(job, said, written)


@pytest.mark.parametrize(
    ("structured", "said"),
    [  # tests/decoding/grammar and tests/endpoint/requests have the other forms
        ({"json_schema": {"type": "objekt"}}, "json_schema cannot be compiled: Invalid type: objekt"),
        ({"json_schema": "{'a'"}, "sampling.structured.json_schema is not JSON"),
        ({"choice": []}, "sampling.structured.choice must be a list of non-empty texts"),
        ({}, "exactly one of"),
        (7, "structured"),
    ],
)
def test_a_form_of_a_configuration_that_is_wrong_ends_the_command(job, structured, said):
    path = job.folder / "form.yaml"
    path.write_text(yaml.safe_dump({"sampling": {"structured": structured}}))
    check_refused(job, [f"--config={path}"], said)


def check_refused(job: Job, flags: list[str], said: str) -> None:
    """Check that a command ends with one clear line, and without a run."""
    job.read(3)
    assert job.generate(*flags) == 2
    printed = job.capsys.readouterr().err
    assert said in " ".join(printed.split())
    assert "Traceback" not in printed
    assert not job.output.exists()


SOME = "tests.actors.programs.some_programs"
PROGRAMS = {
    "nowhere": "must be 'module:function', got 'nowhere'",
    "a b:c": "must be 'module:function'",
    f"{SOME}:nothing": "the module has no 'nothing'",
    f"{SOME}:not_async": "expected `async def not_async(generate, row)`",
    f"{SOME}:NUM_CALLS": "expected `async def NUM_CALLS(generate, row)`",
    f"{SOME}:one_argument": "it is called with two arguments, generate and row",
    "no_such_module:row": "the module 'no_such_module' cannot be imported (ModuleNotFoundError",
    "bad_syntax:row": "cannot be imported (SyntaxError",
    "bad_import:row": "cannot be imported (RuntimeError: not today)",
    "bad_exit:row": "cannot be imported (SystemExit: 5)",
}


@pytest.mark.parametrize("function", PROGRAMS)
def test_a_program_that_is_none_ends_the_command(job, function, monkeypatch):
    (job.folder / "bad_syntax.py").write_text("async def row(generate, row:\n")
    (job.folder / "bad_import.py").write_text("raise RuntimeError('not today')\n")
    (job.folder / "bad_exit.py").write_text("import sys\nsys.exit(5)\n")
    monkeypatch.syspath_prepend(str(job.folder))
    check_refused(job, [f"--program.function={function}"], PROGRAMS[function])


@pytest.fixture(scope="module")
def adapter(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an adapter of the pair's target."""
    return save_adapter(text_pair[0], tmp_path_factory.mktemp("adapter") / "own", 1)


def _say(**fields: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        said = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(said | fields))

    return spoil


ADAPTERS: dict[str, tuple[Callable[[Path], object], str]] = {  # tests/decoding/checkpoint/test_adapter.py has others
    "no weights": (lambda a: (a / WEIGHTS).unlink(), f"holds an adapter without {WEIGHTS}"),
    "weights that are cut": (lambda a: (a / WEIGHTS).write_bytes((a / WEIGHTS).read_bytes()[:999]), "cannot be merged"),
    "a configuration that is no JSON": (lambda a: (a / CONFIG).write_text("{"), CONFIG),
    "another type": (_say(peft_type="IA3"), "holds a PEFT adapter of type 'IA3', and only LORA is merged here"),
    "no base": (_say(base_model_name_or_path=None), "names no base model: write the base's folder"),
    "a base that is nowhere": (_say(base_model_name_or_path="/none"), f"which {CONFIG} calls '/none'"),
    "modules that do not exist": (_say(target_modules=["nothing"]), "cannot be merged"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_that_cannot_be_merged_ends_the_command(job, adapter, name, monkeypatch):
    keep_merged_models_in(job.folder / "cache", monkeypatch)
    spoil, said = ADAPTERS[name]
    folder = Path(shutil.copytree(adapter, job.folder / "spoiled"))
    spoil(folder)
    check_refused(job, [f"--models.target={folder}"], said)
    assert generate.main(arguments(job.source, job.output, job.pair, f"--models.draft={folder}")) == 2
    assert str(folder) in " ".join(job.capsys.readouterr().err.split())


def test_an_adapter_of_a_model_that_is_not_the_one_it_names_is_refused(job, text_pair, adapter, tmp_path_factory):
    folder = Path(shutil.copytree(adapter, job.folder / "spoiled"))
    _say(base_model_name_or_path="examples/tiny_pair/target")(folder)
    with pytest.MonkeyPatch.context() as patch:
        keep_merged_models_in(job.folder / "cache", patch)
        check_refused(job, [f"--models.target={folder}"], "lacks 16 tensors, first 'base_model.model.model.layers.2")
