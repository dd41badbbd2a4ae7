"""Events take one line each, whatever they hold, as text or as JSON, in Dray's handlers or the host's."""

import io
import json
import logging
import sys

from pipeline.logs import Event, LogFormat, LogSettings, logs_to, tell_warnings

LOG = logging.getLogger("pipeline.somewhere")


def logged(format: LogFormat, *events: object, level: str = "info") -> list[str]:
    stream = io.StringIO()
    settings = LogSettings(format=format, level=level)  # type: ignore[arg-type]
    with logs_to(stream, settings, run="demo"):
        for event in events:
            LOG.info(event)
    return stream.getvalue().splitlines()


def test_an_event_is_one_line_of_text_whose_fields_cannot_run_into_each_other():
    event = Event("row failed", row_id=7, file="in.jsonl", message='a "b"\nERROR faked=1', empty="", none=None)
    (line,) = logged("text", event)
    assert line.endswith(
        ' INFO row failed row_id=7 file=in.jsonl message="a \\"b\\"\\nERROR faked=1" empty="" none=null'
    )


def test_an_event_is_one_line_of_json_with_its_context_and_its_fields():
    (line,) = logged("json", Event("unit committed", unit=3, seconds=0.5, costs={"1": 2.0}, text="half \ud83d\n"))
    entry = json.loads(line)
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "pipeline.somewhere",
        "event": "unit committed",
        "run": "demo",
        "unit": 3,
        "seconds": 0.5,
        "costs": {"1": 2.0},
        "text": "half \ud83d\n",
    }


def test_plain_messages_and_their_exceptions_are_lines_of_json_too():
    stream = io.StringIO()
    with logs_to(stream, LogSettings(format="json")):
        try:
            raise ValueError("no\nway")
        except ValueError:
            LOG.exception("%s failed", "it")
    entry = json.loads(stream.getvalue())
    assert (entry["event"], entry["level"]) == ("it failed", "error")
    assert entry["exception"].endswith("ValueError: no\nway")


def test_an_event_below_the_level_is_not_logged():
    assert logged("json", Event("unit committed"), level="warning") == []


def test_without_a_set_up_events_go_through_the_hosts_own_handlers(caplog):
    logged("json", Event("of a block that has ended"))
    caplog.set_level("INFO")
    LOG.info(Event("unit committed", unit=3))
    assert caplog.messages == ["unit committed unit=3"]


def test_a_stream_that_replaces_stderr_later_gets_the_lines(monkeypatch):
    bar = io.StringIO()
    with logs_to(None, LogSettings()):
        monkeypatch.setattr(sys, "stderr", bar)
        LOG.warning(Event("storage retry", tries=1))
    assert bar.getvalue().endswith("WARNING storage retry tries=1\n")


def test_warnings_in_words_are_passed_on_by_their_kind_and_events_are_not():
    told: list[tuple[str, str]] = []
    with logs_to(io.StringIO(), LogSettings()):
        tell_warnings(lambda kind, text: told.append((kind, text)))
        LOG.warning("%r is off by %.1e", "a", 0.5)
        LOG.warning("%r is off by %.1e", "b", 0.5)
        LOG.warning(Event("unit repeated", unit=3))
        LOG.info("all is well")
    LOG.warning("the block has ended")
    assert told == [(f"{name} is off by 0.0e-0", f"{name} is off by 5.0e-01") for name in ("'a'", "'b'")]
