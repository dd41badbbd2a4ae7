"""Chat templates of a run: given as a file, and with a clock that stands still for the whole run."""

import json
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.loading import load_codec
from actors.workers.batch_worker import SharedEngine, UnitOrder, unit_worker
from decoding.sampling_params import SamplingParams
from endpoint.batches.run import BatchModel, ReplicaUnits
from endpoint.service.served_model import ServedModel, ServiceSettings
from jobs.config.fields import text_of
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import Plan, create_run, make_plan
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from tests.jobs.conftest import Job
from tests.jobs.runs import errors, generations
from tests.pipeline.made_up import input_row

CHAT_URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
CLOCK = "--chat.chat_template={{ strftime_now('%H:%M:%S.%f') }} {{ messages[0].content }}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def _config(job: Job, *flags: str) -> RunConfig:
    return load(RunConfig, job.command(*flags), prog="test")


def _prompt(plan: Plan) -> str:
    return load_codec(plan.settings).prompt(input_row(prompt=None, messages=HELLO))[0]


def test_an_option_that_holds_a_text_may_name_its_file(job, tmp_path):
    job.read(1)
    forms: dict[str, tuple[str, Any]] = {
        "json_schema": (json.dumps(SCHEMA), SCHEMA),
        "grammar": ('start: "a"\n', 'start: "a"'),
        "regex": ("[0-9]+\n", "[0-9]+"),
    }
    for name, (text, held) in forms.items():
        (tmp_path / name).write_text(text)
        flag = f"--sampling.structured={json.dumps({name: str(tmp_path / name)})}"
        assert getattr(_config(job, flag).generator_settings().sampling.structured, name) == held
    own, system, prompt = (tmp_path / name for name in ("own.jinja", "system.txt", "prompt.txt"))
    own.write_text("FILE {{ messages[0].content }}\n")
    system.write_text("be\nkind\n")
    prompt.write_text("Q: {kind}\n")
    assert _config(job, f"--chat.system_prompt={system}").generator_settings().chat.system_prompt == "be\nkind"
    plan = make_plan(_config(job, f"--chat.chat_template={own}", f"--input.prompt_template={prompt}"))
    assert _prompt(plan) == "FILE hello"
    assert create_run(plan).run["settings"]["chat"]["chat_template"] == "FILE {{ messages[0].content }}"
    own.write_text("ANOTHER {{ messages[0].content }}")
    with pytest.raises(ValueError, match=r"chat\.chat_template: was") as caught:
        make_plan(_config(job, f"--chat.chat_template={own}", "--input.prompt_template=Q: {kind}"))
    assert "prompt_template" not in str(caught.value), "a file and its text are the same"


@pytest.mark.parametrize(
    "flag",
    [
        "--chat.chat_template=nowhere/own.jinja",
        "--input.prompt_template=~/nowhere.txt",
        '--sampling.structured={"grammar": "nowhere.lark"}',
    ],
)
def test_a_file_that_is_not_there_is_refused_by_name_before_anything(job, flag):
    job.read(1)
    assert job.generate(flag) == 2
    said = job.printed()
    assert "there is no file '" in said
    assert flag.partition("=")[0].removeprefix("--") in said
    assert not job.output.exists()


@pytest.mark.parametrize("text", ["either/or", "Be kind.", "a.b", "[a-z]+/[0-9]+"])
def test_a_text_that_only_looks_like_a_path_to_some_stays_a_text(text):
    assert text_of(text) == text


def test_a_run_has_the_moment_at_which_it_began_on_every_day(job):
    job.read(1)
    first = make_plan(_config(job, CLOCK))
    run = create_run(first)
    assert run.run["identity"]["moment"] == first.settings.chat.moment
    later = make_plan(_config(job, CLOCK))
    assert _prompt(later) == _prompt(first)
    given = "--chat.moment=2026-01-31T12:00:00.5"
    with pytest.raises(ValueError, match=r"  moment: was .*, is \"2026-01-31T12:00:00\.5\""):
        make_plan(_config(job, CLOCK, given))
    job.output = job.folder / "other"
    assert _prompt(make_plan(_config(job, CLOCK, given))) == "12:00:00.500000 hello"
    assert "moment" not in make_plan(_config(job)).identity, "two runs of a template without a clock are the same"
    plan = make_plan(_config(job, CLOCK))
    del plan.identity["moment"]
    create_run(plan)
    assert "moment" not in make_plan(_config(job, CLOCK)).identity, "a run of a version without moments goes on"
    with pytest.raises(ValueError, match=r"chat\.moment must be a date and a time such as .*, got 'noon'"):
        _config(job, "--chat.moment=noon")


def test_a_batch_has_one_moment_in_every_process(job, tmp_path):
    job.read([{"custom_id": "1", "method": "POST", "url": CHAT_URL, "body": {"messages": HELLO}}])
    settings = _config(job, CLOCK).generator_settings()
    codec, service = load_codec(settings), ServiceSettings(model="m")
    path, content = Location.parse(str(tmp_path / "batch")), Location.parse(str(job.source))
    runs = [
        BatchModel(ServedModel(settings=settings, service=service), codec, ReplicaUnits(None), 4, 1) for _ in range(2)
    ]
    moments = [each.open_run(path, content, CHAT_URL).run["identity"]["moment"] for each in runs]
    assert moments[0] == moments[1]
    (unit,) = RunDirectory.open(path).units()
    order = UnitOrder(run_path=path.name, unit=unit, sampling=SamplingParams(), ledger=None)  # type: ignore[arg-type]
    loop = SimpleNamespace(engine=SimpleNamespace(max_model_len=64))
    engine = SimpleNamespace(settings=settings, codec=codec, loop=loop, footer={})
    shared = SharedEngine(engine=engine, finish=None, scope_of=str)  # type: ignore[arg-type]
    (prompt,) = {
        unit_worker(shared, order).rows.codec.prompt(input_row(prompt=None, messages=HELLO))[0] for _ in range(2)
    }
    assert prompt == f"{datetime.fromisoformat(moments[0]):%H:%M:%S.%f} hello"


@pytest.mark.usefixtures("local")
def test_rows_tried_again_have_the_moment_of_the_others(job):
    source = "{% if messages[0].content == 'bad' and strftime_now('%Y') != '' %}{{ raise_exception('bad') }}{% endif %}"
    clock = f"--chat.chat_template={source}{CLOCK.partition('=')[2]}"
    job.read([{"id": name, "kind": "a", "messages": [{"role": "user", "content": name}]} for name in ("a", "b", "bad")])
    assert job.generate(clock) == 0
    assert job.retry(clock) == 0
    (shown,) = {row["prompt"].split()[0] for row in generations(job.output)}
    moment = RunDirectory.open(str(job.output)).run["identity"]["moment"]
    assert shown == f"{datetime.fromisoformat(moment):%H:%M:%S.%f}"
    assert [row["message"] for row in errors(job.output)] == ["the chat template failed: bad"]
