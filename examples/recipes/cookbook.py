"""Runs the recipes of README.md: `python -m examples.recipes.cookbook [NAME ...]`, all of them unless some are named.

A recipe is a section of README.md: what it is for, its commands, and what the last of them prints. `--write` puts into
README.md what was printed, and `--table` runs nothing, prints a line for each recipe, and puts these lines there.
Everything is run in the working directory, and recipes write to out/recipes, which is emptied of theirs.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = Path(__file__).parent / "README.md"
_SECTION = re.compile(
    r"^## (?P<name>\w+)\n\n(?P<text>.*?)\n\n```sh\n(?P<commands>.*?)```\n\n```json\n(?P<shown>.*?)```", re.M | re.S
)
_TABLE = re.compile(
    r"(?<=<!-- table: written by python -m examples.recipes.cookbook --table -->\n).*?(?=<!-- end)", re.S
)


@dataclass(frozen=True)
class Recipe:
    """A recipe: its name, what it is for, its commands, and the lines that README.md shows of what the last prints."""

    name: str
    text: str
    commands: tuple[str, ...]
    shown: tuple[str, ...]

    def run(self, folder: Path) -> list[str]:
        """Run the commands in a folder that has `examples`, and return the lines that the last one printed."""
        shutil.rmtree(folder / "out" / "recipes" / self.name, ignore_errors=True)
        paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment = {"HF_HOME": ".real-models/kept", **os.environ, **paths}
        for command in self.commands[:-1]:
            print(f"$ {command}", flush=True)
            subprocess.run(command, shell=True, check=True, cwd=folder, env=environment)
        print(f"$ {self.commands[-1]}", flush=True)
        last = subprocess.run(
            self.commands[-1], shell=True, check=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        print(last.stdout, flush=True)
        return last.stdout.splitlines()

    def in_a_line(self) -> str:
        """Return its line of the table: the first sentence of its text, and the last line that it prints."""
        sentence = " ".join(re.split(r"(?<=\.)\s", self.text)[0].split())
        shown = json.loads(self.shown[-1]).items()
        measured = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in shown)
        return f"| [{self.name}](#{self.name}) | {sentence} | {measured} |"


def recipes() -> dict[str, Recipe]:
    """Return the recipes of README.md by their names, in its order."""
    found = (each.groupdict() for each in _SECTION.finditer(README.read_text(encoding="utf-8")))
    return {
        each["name"]: Recipe(
            each["name"], each["text"], tuple(each["commands"].splitlines()), tuple(each["shown"].splitlines())
        )
        for each in found
    }


def with_table(text: str) -> str:
    """Return the text of README.md with the table of its recipes as it has to be."""
    lines = ["| recipe | what it is | measured |", "|---|---|---|", *(each.in_a_line() for each in recipes().values())]
    return _TABLE.sub(lambda _: "".join(f"{line}\n" for line in lines), text)


def main() -> int:
    """Run the recipes that are asked for; return 1 if one fails."""
    known = recipes()
    parser = argparse.ArgumentParser(prog="python -m examples.recipes.cookbook", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--write", action="store_true", help="write what the recipes print into README.md")
    parser.add_argument("--table", action="store_true", help="print the table, and write it into README.md")
    options = parser.parse_args()
    if options.table:
        return _write_table()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no recipe {unknown[0]!r}; there are {', '.join(known)}")
    for name in options.names or known:
        began = time.monotonic()
        try:
            printed = known[name].run(Path.cwd())
        except subprocess.CalledProcessError as error:
            print(f"error: {name}: a command ended with exit code {error.returncode}: {error.cmd}", file=sys.stderr)
            return 1
        print(f"{name}: {time.monotonic() - began:.0f} s\n", flush=True)
        if options.write:
            text, shown = README.read_text(encoding="utf-8"), "".join(f"{line}\n" for line in known[name].shown)
            README.write_text(text.replace(shown, "".join(f"{line}\n" for line in printed)), encoding="utf-8")
            _write_table()
    return 0


def _write_table() -> int:
    text = with_table(README.read_text(encoding="utf-8"))
    README.write_text(text, encoding="utf-8")
    print(_TABLE.findall(text)[0], end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
