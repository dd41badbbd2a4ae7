"""The rules of `make check` that are our own notice what they are there for."""

from pathlib import PurePath

import pytest

from checks import docstrings, pages, paths, rooms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('def f():\n    """The result."""\n', "begin with a verb"),
        ('class A:\n    """Of a row."""\n', "begins with 'of'"),
        ('def f():\n    """Return what nobody needs."""\n', "'nobody' in a docstring"),
        ("x = 1  # so many\n", "'so many' in a comment"),
    ],
)
def test_a_text_that_does_not_say_who_acts_is_a_violation(text: str, message: str) -> None:
    (violation,) = docstrings.violations("decoding/made_up.py", text)
    assert message in violation


def test_plain_docstrings_are_no_violation() -> None:
    text = '"""Rows."""\n\nclass A:\n    """A row."""\n\n    def f(self):\n        """Return the row."""\n'
    assert not list(docstrings.violations("decoding/made_up.py", text))


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("See `pipeline/run/commit.py` and `python -m jobs.serve`.", []),
        ("See `pipeline/run/comit.py`.", ["pipeline/run/comit.py"]),
        ("| `decoding/motor/` | the loop |", ["decoding/motor/"]),
        ("| `decoding/engine/` | the loop (`engine.py`), one round (`cycles.py`) |", ["cycles.py"]),
    ],
)
def test_a_path_that_does_not_exist_is_noticed(line: str, absent: list[str]) -> None:
    assert [message.rpartition(" ")[2] for message in paths.missing("ARCHITECTURE.md", line)] == absent


def test_a_stale_page_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pages, "schema_page", lambda: "# Another page\n")
    assert pages.main(["--check"]) == 1
    assert "docs/schema.md is stale; run make pages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('if settings.backend == "vllm":\n    pass\n', "a backend is compared with its name"),
        (
            'is_cut = self.engine.verification in ("rejection", "unadjusted")\n',
            "a verification is compared with its name",
        ),
        ('match config.task:\n    case "score":\n        pass\n', "a task is compared with its name"),
        ("\n" * 301, "301 lines; at most 300"),
    ],
)
def test_a_module_that_breaks_a_rule_of_rooms_is_noticed(text: str, message: str) -> None:
    (violation,) = rooms.of_file(PurePath("jobs/made_up.py"), text)
    assert message in violation


def test_a_comparison_in_its_room_and_one_with_another_word_break_no_rule() -> None:
    assert not list(rooms.of_file(PurePath("actors/engines/made_up.py"), 'is_own = backend == "dray"\n'))
    assert not list(rooms.of_file(PurePath("jobs/made_up.py"), 'is_it = backend == "gloo" or task == other\n'))


def test_a_crowded_room_and_one_without_a_sentence_are_noticed() -> None:
    files = [PurePath(f"decoding/made_up/{number}.py") for number in range(11)]
    without_sentence, crowded = rooms.of_room(PurePath("decoding/made_up"), files)
    assert "says what the room is for" in without_sentence
    assert "11 modules" in crowded
