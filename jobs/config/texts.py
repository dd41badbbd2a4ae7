"""Options that hold a text, or the path of a file with it: one rule for all of them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXTS = ("chat_template", "system_prompt", "prompt_template")  # fields of sections
_OF_FORMS = ("json_schema", "regex", "grammar")  # fields of `sampling.structured`
_FILE_NAME = re.compile(r"[\w./~:-]+\.(jinja2?|j2|txt|md|json|lark|gbnf|ebnf|ya?ml)")


def text_of(value: Any) -> Any:
    """Return the text of the file that the value names, or the value itself.

    A value that is written like a file's name and names none is a ValueError. An option that is no text is returned.
    """
    if not isinstance(value, str) or "\n" in value:
        return value
    path = os.path.expanduser(value)
    if os.path.isfile(path):
        try:
            return Path(path).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the file {value!r} cannot be read as a text in UTF-8: {error}") from error
    if _FILE_NAME.fullmatch(value):
        raise ValueError(f"there is no file {value!r}; name one that is there, or give the text itself")
    return value


def form_of(value: Any) -> Any:
    """Return `sampling.structured` with the texts of the files that it names."""
    if not isinstance(value, Mapping):
        return value
    return {name: text_of(each) if name in _OF_FORMS else each for name, each in value.items()}
