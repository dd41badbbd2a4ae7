"""dray doctor and dray completion: what is said of this machine, and which words a shell completes."""

import os
import re
import subprocess
import sys

import pytest

from jobs import completion, doctor
from jobs.machine.completion import words_after
from jobs.names import commands, typed


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
def test_a_script_lets_the_shell_ask_for_words(shell, capsys, tmp_path):
    assert completion.main([shell]) == 0
    script = capsys.readouterr().out
    assert "dray completion words" in script
    if shell == "bash":
        (tmp_path / "dray").write_text(f'#!/bin/sh\n{sys.executable} -m jobs "$@"\n')
        (tmp_path / "dray").chmod(0o755)
        asked = f"{script}complete -p dray; COMP_LINE='dray st' COMP_POINT=7 dray completion words dray st dray"
        places = f"{tmp_path}:{os.environ['PATH']}"
        found = subprocess.run(
            ["bash", "-c", asked], capture_output=True, text=True, env={**os.environ, "PATH": places}
        )
        assert found.stdout.split()[-1] == "status"
