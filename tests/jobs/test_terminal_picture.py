"""The pictures of a terminal show what the commands print now."""

import html
import re
from pathlib import Path

from jobs.work.tuning.result import HEADINGS
from tests.jobs.terminal_picture import COLUMNS, COMMANDS, ROOT, is_half_done, screens

_LABEL = re.compile(r"^  (\w[\w ]*):", re.MULTILINE)
_MOST_BYTES = 60_000


def _shown(name: str) -> str:
    """Return the text of a picture, line by line."""
    lines = dict[str, str]()
    for line, text in re.findall(r'clip-path="url\(#[\w-]+-line-(\d+)\)">(.*?)</text>', _picture(name).read_text()):
        lines[line] = lines.get(line, "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(lines.values())


def _picture(name: str) -> Path:
    return ROOT / f"docs/pictures/{name}.svg"


def test_the_picture_of_a_plan_has_the_lines_that_a_plan_has(tmp_path):
    plan = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screens(COMMANDS["plan"], tmp_path)[-1])
    assert _LABEL.findall(_shown("plan")) == _LABEL.findall(plan)
    assert max(map(len, plan.splitlines())) <= COLUMNS


def test_the_picture_of_a_run_is_of_its_middle():
    run = _shown("run")
    assert is_half_done(run)
    assert re.search(r"\d rows +[\d,]+ tokens +[\d,]+ tokens/s .*\d:\d\d left$", run.rstrip())


def test_the_picture_of_tuning_has_the_columns_that_its_table_has():
    (headings,) = re.findall(r"^drafter .*$", _shown("tune"), re.MULTILINE)
    in_a_row = "".join(("drafter", *HEADINGS)).replace(" ", "")  # a picture places words, and has no spaces between
    assert headings.replace(" ", "") == in_a_row


def test_pictures_are_small_and_ask_no_other_host():
    for name in COMMANDS:
        assert _picture(name).stat().st_size < _MOST_BYTES
        assert "url(http" not in _picture(name).read_text().replace('"', "")
