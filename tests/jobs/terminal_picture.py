"""Command that takes the pictures of the terminal: a plan, a run that is half done, `dray tune`'s table, and more.

python -m tests.jobs.terminal_picture docs/pictures out/pictures [plan|run|tune|validate|audit|diff ...]

The commands run as a user types them, on the bundled pair, in a terminal of 100 columns and in the second folder.
"""

import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import torch
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from benchmarks.roofline.hardware import describe_machine

ROOT = Path(__file__).parents[2]
COLUMNS = 100
PAIR = "--model examples/tiny_pair/target --draft examples/tiny_pair/draft"
COMMANDS = {
    "plan": f"dray generate examples/prompts.jsonl corpus/ --dry-run \\\n  {PAIR}",
    "run": f"dray generate examples/prompts.jsonl out/ \\\n  {PAIR}",
    "tune": f"dray tune examples/prompts.jsonl corpus/ --tune.seconds 90 \\\n  {PAIR}",
    "validate": f'dray generate examples/prompts.jsonl corpus/ --run.validate.sql "length(text) > 60" \\\n  {PAIR}',
    "audit": "dray audit corpus/ --rows 100 --seed 7",
    "diff": "dray diff before/ after/ --by kind --rows 2 --html changes.html",
}
_KIND, _COOLER = "--input.carry_columns kind", "--sampling.temperature 0.95 --run.reuse before/"
BEFORE = {  # what runs before the command, and is not in the picture
    "audit": [f"dray generate examples/prompts.jsonl corpus/ {PAIR}"],
    "diff": [
        f"dray generate examples/prompts.jsonl before/ {PAIR} {_KIND}",
        f"dray generate examples/prompts.jsonl after/ {PAIR} {_KIND} {_COOLER}",
    ],
}
_SOME_DIFFER = {"diff": 1}  # exit codes that are not 0
_FROM = {"validate": "Corpus in"}  # where a picture of the end of a run begins
_BAR = re.compile(r"([\d,]+)/([\d,]+) rows")
_CLEARED = "\x1b[2K"  # the line, before the bar is drawn again
_BAR_ENDED = re.compile(r"[^\n]*\n(?:\r|\x1b\[\?25h)*\x1b\[1A\x1b\[2K")
_WEB_FONT = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)


def main() -> None:
    """Write the pictures into the folder that is named."""
    pictures, out, *names = sys.argv[1:]
    machine = describe_machine()
    title = f"{machine['processor']}, {machine['threads']} thread{'s' * (torch.get_num_threads() > 1)}"
    for name in names or COMMANDS:
        folder = Path(out, name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in BEFORE.get(name, ()):
            screens(command, folder)
        states = screens(COMMANDS[name], folder, _SOME_DIFFER.get(name, 0))
        screen = next(filter(is_half_done, states)) if name == "run" else states[-1]
        begin = screen.index(_FROM[name]) if name in _FROM else 0
        screen = screen[begin:].replace(f"{folder.resolve()}/", "")
        Path(pictures, f"{name}.svg").write_text(drawn(f"$ {COMMANDS[name]}\n{screen}", title))


def screens(command: str, folder: Path, exit_code: int = 0) -> list[str]:
    """Return what a terminal shows of a command each time that it draws something, and at its end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    said, found = b"", list[str]()
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    words = [sys.executable, "-m", "jobs", *shlex.split(command.replace("\\\n", ""))[1:]]
    process = subprocess.Popen(words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        while some := _read(ours):
            said += some
            found.append(_on_screen(said.decode(errors="ignore")))
        assert process.wait() == exit_code, found[-1]
    finally:
        process.kill()
        os.close(ours)
    return found


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the command has ended
        return b""


def _on_screen(said: str) -> str:
    """Return the lines that are on the screen, with their colours: the bar is drawn over and over in the last one."""
    lines = _BAR_ENDED.sub("", said.replace("\r\n", "\n")).split("\n")
    return "\n".join(line.rpartition(_CLEARED)[2] for line in lines)


def is_half_done(screen: str) -> bool:
    """Tell whether the bar at the bottom of a screen says that half of the rows are written."""
    found = _BAR.search(screen.rpartition("\n")[2])
    done, of = map(int, found.groups()) if found else (0, 1)
    return 2 * done >= of


def drawn(screen: str, title: str) -> str:
    """Return an SVG of a terminal, which asks no other host for a font."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(screen), highlight=False)
    return console.export_svg(title=title, code_format=_WEB_FONT.sub("", CONSOLE_SVG_FORMAT))


if __name__ == "__main__":
    main()
