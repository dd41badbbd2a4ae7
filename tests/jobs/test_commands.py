"""All commands under one name, `dray`; what their help costs; and a user's folders with the names of our packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import names
from jobs.__main__ import main
from jobs.names import commands, summary

PAIR = Path(__file__).parents[2] / "examples" / "tiny_pair"
_HELP_OF_ALL = """
import contextlib, io, sys
from jobs.__main__ import commands, main
for name in commands():
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([name, "--help"])
    assert "usage:" in said.getvalue(), name
    wide = [line for line in said.getvalue().splitlines() if len(line) > 80]
    assert not wide, f"{name} --help has lines wider than a terminal of 80 columns: {wide}"
    heavy = {"torch", "transformers", "ray"} & sys.modules.keys()
    assert not heavy, f"{name} --help imports {heavy}"
"""


def test_the_help_of_every_command_fits_on_80_columns_and_imports_neither_torch_nor_transformers_nor_ray(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = subprocess.run([sys.executable, "-c", _HELP_OF_ALL], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_an_error_on_a_terminal_ends_its_lines_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    reader, terminal = os.openpty()
    assert subprocess.run([sys.executable, "-m", "jobs", "generat"], stderr=terminal, timeout=120).returncode == 2
    lines = os.read(reader, 10_000).decode().splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(lines) == "error: 'generat' is no command; did you mean generate? (dray --help lists them all)"


def test_a_wrong_configuration_is_refused_before_torch_and_ray_are_imported():
    code = (
        "import sys; from jobs import generate; code = generate.main(['--input.path=x', '--engine.bogus=1']); "
        "assert code == 2; assert not {'torch', 'ray'} & sys.modules.keys()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "--engine.bogus is not a flag" in ended.stderr


def test_dray_lists_every_command_with_what_it_does(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    files = {path.stem for path in Path(names.__file__).parent.glob("*.py")}
    assert set(commands()) == files - {"__init__", "__main__", "commands", "names", "shadows"}
    for name in commands():
        assert summary(name), f"the docstring of jobs/{name}.py does not begin with `dray ...`: what it does"
        assert summary(name) in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("generat", "'generat' is no command; did you mean generate?"),
        ("swap-drat", "'swap-drat' is no command; did you mean swap-draft?"),
        ("shadows", "'shadows' is no command"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest_name(given, said, capsys):
    assert main([given]) == 2
    assert said in capsys.readouterr().err


def test_a_command_may_be_named_with_a_hyphen(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["swap-draft", "--help"])
    assert ended.value.code == 0
    assert "let a run go on with another draft" in capsys.readouterr().out


def test_dray_works_beside_a_folder_of_the_user_that_is_named_jobs(tmp_path):
    _package(tmp_path / "jobs")
    # -P: the working directory is not searched for packages, as it is not by the script `dray`.
    ended = _run(tmp_path, "-P", "-m", "jobs", "generate", "--config=none.yaml")
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: --config 'none.yaml': no such file; `dray init` writes one to begin with\n",
    )


def test_the_script_dray_finds_a_program_in_the_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text("async def talk(row): pass\n")
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    model, program = f"--model={PAIR / 'target'}", "--program.function=mine:talk"
    ended = _run(tmp_path, "-P", "-m", "jobs", "generate", "in.jsonl", "out", model, program, "--dry-run")
    assert ended.returncode == 2
    assert "it is called with two arguments" in ended.stderr


def test_a_folder_that_shadows_a_package_of_the_workers_is_named(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("input: {path: in.jsonl}\noutput: {path: out}\nmodels: {target: m}\n")
    (tmp_path / "pipeline").mkdir()
    ended = _run(tmp_path, "-P", "-m", "jobs", "generate", "--config=run.yaml")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {tmp_path}/pipeline has the name of Dray's package 'pipeline'")


def test_a_folder_that_shadows_one_of_our_packages_gets_a_line_and_no_traceback(tmp_path):
    _package(tmp_path / "actors")
    ended = _run(tmp_path, "-m", "jobs.generate", "--help")
    assert ended.returncode != 0
    assert f"{tmp_path}/actors has the name of Dray's package 'actors'" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


def _package(folder: Path) -> None:
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('a file of the user')\n")


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120)
