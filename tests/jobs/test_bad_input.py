"""Bad input of jobs: a mistake of the configuration ends the command, and one of a row is its error row alone."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from jobs import generate
from tests.actors.programs.hostile_programs import HOSTILE
from tests.actors.programs.wrong_programs import WRONG
from tests.adapted import keep_merged_models_in, save_adapter
from tests.jobs.conftest import Job
from tests.jobs.hostile_rows import GOOD_ROWS, HOSTILE_ROWS
from tests.jobs.runs import arguments, errors, generations, problems

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


PROGRAMS = {  # and those of tests/actors/programs/test_program_rows.py
    "nowhere": "must be 'module:function'",
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


def _change(change: Callable[[dict[str, Any], str], dict[str, Any]]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        save_file(change(tensors, min(tensors)), folder / WEIGHTS)

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
