"""dray doctor and dray completion: what is said of this machine, and which words a shell completes."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import completion, doctor
from jobs.machine.completion import words_after
from jobs.names import commands, typed

ROOT = Path(__file__).parents[2]


def test_the_doctor_names_what_is_promised_here_and_what_is_missing(monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nothing answers
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^bfloat16: +(not )?exact on this CPU .*measured", said, re.MULTILINE)
    assert re.search(r"^hub: .*127.0.0.1:9 cannot be reached", said, re.MULTILINE)
    monkeypatch.setattr("jobs.machine.doctor._PACKAGES", ("torch", "no-such-package"))
    assert doctor.main([]) == 1
    assert "Dray cannot run here: no-such-package is missing; pip install no-such-package" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dray gen", ["generate"]),
        ("dray train-", ["train-draft"]),
        ("dray  export --fo", ["--format"]),
        ("dray generate --sampling.top_", ["--sampling.top_k", "--sampling.top_p"]),
        ("dray export --sampling.top_", []),
        ("dray generate ques", []),
        ("dray nothing --f", []),
    ],
)
def test_a_line_goes_on_with_the_commands_and_with_the_flags_of_its_command(line, words):
    assert words_after(line) == words


def test_every_command_is_a_word():
    assert words_after("dray ") == [typed(name) for name in commands()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_with_its_script_completes_a_command(shell, capsys, tmp_path, monkeypatch):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here: apt-get install {shell}")
    assert completion.main([shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "dray").write_text(f'#!/bin/sh\nexec {sys.executable} -m jobs "$@"\n')
    (tmp_path / "dray").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the shell begins in another folder
    monkeypatch.chdir(tmp_path)
    if shell == "fish":
        asked = ["fish", "--no-config", "-c", "source script; complete -C 'dray st'"]
        assert subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.split() == ["status"]
    else:
        plain = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}[shell]
        typed_in = ["source ./script\n", "dray st\t"]
        assert "dray status" in _on_a_terminal(plain, typed_in, "dray status")


def _on_a_terminal(command: list[str], typed_in: list[str], until: str) -> str:
    """Type behind each prompt of a shell; return what it shows until this text comes, for at most a minute."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PS1": "PROMPT ", "TERM": "dumb"}
    shell = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    shown = ""
    for text, awaited in zip([*typed_in, ""], [*["PROMPT "] * len(typed_in), until], strict=True):
        new = ""
        while awaited not in new and select.select([ours], [], [], 60)[0]:
            new += os.read(ours, 4096).decode()
        shown += new
        os.write(ours, text.encode())
    shell.kill()
    shell.wait()
    os.close(ours)
    os.close(theirs)
    return shown
