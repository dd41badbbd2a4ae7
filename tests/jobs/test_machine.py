"""dray doctor and dray completion: what is said of this machine, and which words a shell completes."""

import re
import subprocess

import pytest

from jobs import completion, doctor
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_a_shell_has_every_command_and_its_flags(shell, capsys):
    assert completion.main([shell]) == 0
    script = capsys.readouterr().out
    for name in commands():
        assert re.search(rf"\b{typed(name)}\b", script)
    of_command = {"fish": "^complete .* '__fish_seen_subcommand_from %s' -l "}.get(shell, r"^ +%s\) .*--")
    assert re.search(of_command % "generate" + r"sampling\.top_k\b", script, re.MULTILINE)
    assert not re.search(of_command % "export" + r"sampling\.top_k\b", script, re.MULTILINE)


def test_bash_completes_a_flag_of_the_command_that_was_typed(capsys):
    assert completion.main(["bash"]) == 0
    typed = "COMP_WORDS=(dray export --fo); COMP_CWORD=2; _dray; echo ${COMPREPLY[@]}"
    asked = capsys.readouterr().out + typed
    found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["--format"]
