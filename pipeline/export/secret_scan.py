"""Secrets in what is about to be published: keys and tokens by their form, and fields by their name."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# By the prefixes that their issuers give them, so that scanners can find them.
_FORMS = {
    "a token of the Hugging Face hub": r"\bhf_[A-Za-z0-9]{30,}",
    "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of GitHub": r"\b(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "an API key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "a token of Slack": r"\bxox[abprs]-[0-9A-Za-z-]{20,}",
}
_ANY_FORM = "|".join(f"({form})" for form in _FORMS.values())
_ANY = re.compile(_ANY_FORM, re.ASCII)  # as RE2 reads it, by which Arrow searches columns
Secret = tuple[str, str]  # the field that holds what looks like a secret, and what and where that is; not its value
_NAME = re.compile(r"(^|[_.-])(secret|password|passwd|api_?key|access_?key|private_?key|auth_?token|hf_token)$", re.I)


def secrets_in_table(table: pa.Table, file: str) -> Iterator[Secret]:
    """Yield the first find in each column of a table of generations, nested text included."""
    for name in table.schema.names:
        column = table[name].combine_chunks()
        if _NAME.search(name) and column.null_count < len(column):
            yield name, f"{name} (by its name, {file})"
            continue
        for text in _texts(column):
            matches = pc.match_substring_regex(text, _ANY_FORM)
            if num := pc.sum(matches, min_count=0).as_py():
                first = text[pc.index(matches, True).as_py()].as_py()
                yield name, f"{name} ({_what(first)}, {file}, {num} values)"
                break


def secrets_in_json(value: Any, file: str, field: str = "") -> Iterator[Secret]:
    """Yield what is found in an object that was read from JSON, by dotted names."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from secrets_in_json(inner, file, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets_in_json(inner, file, field)
    elif isinstance(value, str) and value:
        if _NAME.search(field):
            yield field, f"{field} (by its name, {file})"
        elif _ANY.search(value):
            yield field, f"{field} ({_what(value)}, {file})"


def _texts(column: Any) -> Iterator[Any]:
    """Yield the text in a column: its own, or that of the lists and objects in it."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield column
    elif pa.types.is_struct(kind):
        for inner in column.flatten():
            yield from _texts(inner)
    elif pa.types.is_map(kind):
        yield from _texts(column.keys)
        yield from _texts(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _texts(pc.list_flatten(column))


def _what(text: str) -> str:
    return next(what for what, form in _FORMS.items() if re.search(form, text, re.ASCII))
