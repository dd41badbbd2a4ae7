"""Arguments of a command line, before they are read: short names of fields, and those that no flag takes.

`dray generate FILE OUT --model MODEL` is `--input.path=FILE --output.path=OUT --models.target=MODEL`.
"""

import io
import re
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

from jobs.config.fields import all_fields, level_fields, members_of
from jobs.names import wrapped

# Short names of fields, for the commands that have these fields.
SHORTS = {
    "model": "models.target",
    "draft": "models.draft",
    "max_tokens": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "seed": "run.seed",
}
_NO_DEFAULT = re.compile(r"\s+\(default:\s+None\)")
_UNDERSCORED = re.compile(r"--[a-z-]+_[a-z_]+(?![\w.])")  # a flag of no section, which is typed with hyphens
_SENTENCE = re.compile(r"^  \w.*", re.MULTILINE)  # what a section is
_CHOICES = re.compile(r"^(  --\S+) (\{\S{60,}\})$", re.MULTILINE)  # more than a line holds
_SEVERAL = re.compile(r"\{tuple\[(.+?),\.\.\.\],\1\}")  # the type of a list for which one of its values may stand


def shorts_of(kind: type) -> dict[str, str]:
    """Return the fields of a configuration that have a short name, by that name as it is typed, such as max-tokens."""
    names = {each.name for each in all_fields(kind)}
    return {short.replace("_", "-"): name for short, name in SHORTS.items() if name in names}


def help_of(settings: Any, kind: type, prog: str) -> str:
    """Return the help of a command, whose first lines say what to type: argparse's own name every field there."""
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        settings(_cli_parse_args=["--help"], _cli_prog_name=prog)
    _, _, fields = said.getvalue().partition("\n\n")
    explanation, options, fields = fields.partition("\n\noptions:")
    fields = wrapped(explanation) + options + _SEVERAL.sub(r"\1", _NO_DEFAULT.sub("", fields))
    fields = _UNDERSCORED.sub(lambda flag: flag[0].replace("_", "-"), fields)
    fields = _SENTENCE.sub(lambda line: wrapped(line[0], "  "), fields)
    fields = _CHOICES.sub(lambda found: f"{found[1]}\n{wrapped(found[2].replace(',', ', '), ' ' * 6)}", fields)
    lines = [f"  {prog} {line} [--section.field X ...]" for line in getattr(kind, "usage", ("--config FILE",))]
    if example := getattr(kind, "example", ""):
        lines += ["example:", f"  {prog} {example}"]
    return "\n".join(["usage:", *lines, "", fields])


def spelled_out(arguments: Sequence[str], kind: type) -> list[str]:
    """Return the arguments under the names of their fields. Raises ValueError for a field that is given in two ways."""
    shorts = {short.replace("-", "_"): name for short, name in shorts_of(kind).items()}
    full_names = shorts | {each.name: each.name for each in level_fields(kind)}
    spelled, typed = [], dict[str, str]()
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            name = full_names.get(flag[2:].replace("-", "_"), flag[2:])
            if (other := typed.setdefault(name, flag)) != flag:
                raise ValueError(f"{other} and {flag} are two names of one field, {name}; keep one of them")
            if flag.startswith("--no-") and (switch := full_names.get(flag[5:].replace("-", "_"))) is not None:
                name = f"no-{switch}"
            argument = f"--{name}{equals}{value}"
        spelled.append(argument)
    return spelled


def apart(arguments: Iterable[str], kind: type) -> tuple[list[str], list[str]]:
    """Return the arguments that no flag takes, such as FILE and OUT, and all others; all are spelled out."""
    switches = {each.name for each in all_fields(kind) if bool in members_of(each.annotation)}
    flags_alone = {"-h", "--help"} | {f"--{no}{name}" for name in switches for no in ("", "no-")}
    places, others, is_value = list[str](), list[str](), False
    for argument in arguments:
        is_flag = not is_value and argument.startswith("-")
        (others if is_value or is_flag else places).append(argument)
        is_value = is_flag and "=" not in argument and argument not in flags_alone
    return places, others


def gives(arguments: Iterable[str], name: str) -> bool:
    """Tell whether a field is among the arguments, which are spelled out."""
    return any(argument.partition("=")[0] == f"--{name}" for argument in arguments)
