"""Logs of a run: which events they hold, where they go, and that they hold no prompt or output."""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
import ray

from actors.workers.engine_worker import EngineWorker
from jobs.driver import execution
from tests.jobs.driver.scraping import scrape, sums
from tests.jobs.runs import errors, generations, prompts, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
JSON = "--run.log_format=json"
DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def secret_rows(secret: str) -> list[Any]:
    """Return rows that succeed and rows that fail at every stage, most of them with messages that quote the row."""
    chat = [{"role": "user", "content": secret}]
    return [
        {"id": "good", "kind": secret, "prompt": f"hello {secret}"},
        {"id": "chat", "kind": "a", "messages": chat},
        f'{{"id": "broken", "prompt": "{secret}',
        {"id": "read", "kind": "a", "messages": secret},
        {"id": "both", "kind": "a", "prompt": secret, "messages": chat},
        {"id": "role", "kind": "a", "messages": [{"role": [secret], "content": "x"}]},
        {"id": "template", "kind": "a", "messages": [*chat, {"role": "user", "content": 5}]},
        {"id": "surrogate", "kind": "a", "prompt": f"{secret} \ud83d"},
        {"id": "params", "kind": "a", "prompt": secret, "sampling": {secret: 1}},
        {"id": "value", "kind": "a", "prompt": secret, "sampling": {"temperature": secret}},
        {"id": "long", "kind": "a", "prompt": secret * 400},
    ]


def dies_once(seen: Path) -> type[EngineWorker]:
    """Return a generator whose first process dies over its first unit."""

    class Dying(EngineWorker):
        async def _finish(self, rows: list[Any]) -> None:
            if not seen.exists():
                seen.touch()
                os._exit(9)
            await super()._finish(rows)

    return Dying


class Warned(EngineWorker):
    """A generator whose engine warns of one thing twice, as two engines do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for number in range(2):
            logging.getLogger("decoding.network").warning("engine %d is slow", number)


def worker_logs() -> str:
    """Return everything in the session's log folder, Ray's own files included."""
    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def events(text: str, run: str) -> list[dict[str, Any]]:
    """Return the JSON lines of one run."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    return [event for event in found if event["run"] == run]


def test_json_logs_hold_every_event_of_a_run_and_no_prompt_or_output(job):
    secret = "Zq7secretXk"
    job.read([*secret_rows(secret), *prompts(5)])
    output = job.output = job.folder / "logged-run"
    assert job.generate(JSON, "--run.max_error_rate=1") == 0

    said = job.capsys.readouterr()
    driver = [json.loads(line) for line in said.err.splitlines()]
    names = ["lease taken", "run started", "run finished", "lease given back", "run ended"]
    assert [event["event"] for event in driver] == names
    started, finished, ended = driver[1], driver[2], driver[-1]
    assert (started["units"], started["rows"], started["units_to_do"]) == (2, 16, 2)
    assert len(started["identity"]) == 64
    report = json.loads((output / "report.json").read_text())["counts"]
    logged = (finished["rows"], finished["errors"], finished["tokens"], finished["accepted"])
    assert logged == (16, 9, report["num_output_tokens"], report["num_accepted_tokens"])
    assert (ended["outcome"], ended["exit_code"]) == ("complete", 0)

    logs = worker_logs()
    workers = events(logs, "logged-run")
    (loaded,) = [event for event in workers if event["event"] == "actor loaded"]
    assert (loaded["target"], loaded["draft"], loaded["drafter"], loaded["dtype"]) == (*job.pair, "model", "float32")
    assert all(seconds > 0 for table in ("target_ms", "draft_ms") for seconds in loaded[table].values())
    (query,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    ((engine, num_parts),) = duckdb.sql(query.replace("out/demo", str(output))).fetchall()
    assert json.loads(engine) == {
        name: loaded[name]
        for name in (
            "coded_layers",
            "device",
            "drafter",
            "dtype",
            "exact",
            "exact_text",
            "is_batch_invariant",
            "kernels",
            "placement",
            "stages",
            "ranks",
            "verification",
        )
    }
    assert num_parts == 2
    units = [event for event in workers if event["event"] == "unit committed"]
    assert sorted(event["unit"] for event in units) == [0, 1]
    for name, total in (("rows", 16), ("errors", 9), ("tokens", finished["tokens"]), ("rounds", finished["rounds"])):
        assert sum(event[name] for event in units) == total
    failed = [event for event in workers if event["event"] == "row failed"]
    assert sorted((event["row_id"], event["stage"], event["error_type"]) for event in failed) == [
        (row["row_id"], row["stage"], row["error_type"]) for row in errors(output)
    ]
    assert all(event["worker"] and event["node"] for event in workers)

    for name, text in {"stdout": said.out, "stderr": said.err, "the logs": logs}.items():
        assert secret not in text, name
    written = next(row["text"] for row in generations(output) if row["id"] == "good")
    assert len(written) > 3
    assert not any(form in logs for form in (written, json.dumps(written)[1:-1]))
    assert sum(secret in row["message"] for row in errors(output)) >= 3, "messages quote rows: this test needs some"


def test_prompts_are_logged_if_the_configuration_asks_for_them(job):
    secret = "Wv3askedJh"
    job.read(secret_rows(secret))
    output = job.output = job.folder / "asked-run"
    assert job.generate("--run.max_error_rate=1", "--run.log_prompts", JSON) == 0
    assert secret not in job.capsys.readouterr().err
    failed = {e["row_id"]: e for e in events(worker_logs(), "asked-run") if e["event"] == "row failed"}
    assert {row["row_id"]: row["message"] for row in errors(output)} == {i: e["message"] for i, e in failed.items()}
    by_id = {row["id"]: failed[row["row_id"]] for row in errors(output)}
    assert by_id["params"]["prompt"] == secret
    assert by_id["long"]["prompt"] == (secret * 400)[:200]
    assert secret in by_id["template"]["prompt"]
    assert "prompt" not in by_id["read"], "a row that could not be read has none"


@pytest.mark.slow
def test_a_dead_worker_and_its_repeated_unit_are_logged_and_counted(job, monkeypatch):
    job.read(4)
    job.output = job.folder / "repeated-run"
    monkeypatch.setattr(execution, "EngineWorker", dies_once(job.folder / "died"))
    assert job.generate(JSON) == 0
    (again,) = [event for event in events(worker_logs(), "repeated-run") if event["event"] == "unit repeated"]
    assert (again["unit"], again["attempt"], again["after_death"], again["careful"]) == (0, 1, True, False)
    (said,) = [e for e in map(json.loads, job.capsys.readouterr().err.splitlines()) if e["event"] == "said"]
    assert said["text"].startswith("1 worker processes died over units")
    expected = {("ray_dray_worker_deaths_total",): 1, ("ray_dray_units_repeated_total",): 1}
    expected |= {("ray_dray_units_committed_total",): 1, ("ray_dray_rows_total", "generated"): 4}
    wait_until(lambda: expected.items() <= sums(scrape("repeated-run")).items())


def test_workers_log_lines_of_text_and_a_warning_of_theirs_reaches_the_driver_once(job, monkeypatch):
    job.read([*prompts(4), "{not json"])
    monkeypatch.setattr(execution, "EngineWorker", Warned)
    assert job.generate() == 0
    (line,), said = job.capsys.readouterr().err.splitlines(), worker_logs()
    assert line.endswith("WARNING engine 0 is slow")
    assert "engine 1 is slow" in said
    assert f"INFO actor loaded target={job.pair[0]}" in said
    assert "unit committed unit=0 attempt=0 rows=5 errors=1" in said


def test_an_error_is_an_event_in_json_and_a_line_in_text(job):
    job.read(3)
    assert job.generate("--models.target=/nowhere") == 2
    assert job.capsys.readouterr().err.startswith("error: no model at '/nowhere'")
    assert job.generate("--models.target=/nowhere", JSON, "--run.log_level=error") == 2
    (line,) = job.capsys.readouterr().err.splitlines()
    assert json.loads(line)["level"] == "error"
    assert json.loads(line)["text"].startswith("error: no model at '/nowhere'")
