"""docs/requests.md: the fields of requests, made of the table by which they are read."""

import json
from collections.abc import Mapping

from pipeline.requests.asked import Asked
from pipeline.requests.body import LARGEST, FieldSpec, Schema
from pipeline.requests.texts import ChatAsked, CompletionAsked, ResponseAsked

_HEAD = """\
One table reads a request for the endpoint, for its batches, and for a job over an OpenAI batch file. So one body gets
one answer: the same text, or the same refusal, which names the field and the reason. null is no value, a whole float is
an integer (2.0 is 2), and nothing else is converted.

A line of a batch file has a `custom_id` (1 to 512 characters), a `url` (`/v1/chat/completions` or `/v1/completions`), a
`body`, and no other `method` than `POST`. It is strict JSON, as a body over HTTP is. Fields that a body leaves out are
those of the run, or of the endpoint.
"""
_UNSUPPORTED = """
## Fields that are not supported

They are known, and refused by name unless they hold a value that asks for nothing, which stands behind them. Any other
field is refused as unknown.
"""
_KINDS: Mapping[str, type[Asked]] = {
    "completions": CompletionAsked,
    "chats": ChatAsked,
    "responses": ResponseAsked,
}


def request_page(note: str) -> str:
    """Return the page about the fields of requests."""
    names = dict.fromkeys(name for kind in _KINDS.values() for name in kind.table())
    lines = ["| field | of | holds | in batches | what it means |", "|---|---|---|---|---|"]
    for name in names:
        specs = {own: kind.table()[name] for own, kind in _KINDS.items() if name in kind.table()}
        for spec in {id(spec): spec for spec in specs.values()}.values():  # one for each meaning of the name
            lines.append(_line(name, spec, [own for own, each in specs.items() if each is spec]))
    refused = {**ResponseAsked.unsupported, **Asked.unsupported}
    unsupported = [_refusal(name, values) for name, values in sorted(refused.items())]
    return "\n".join(("# Fields of requests\n", note, _HEAD, *lines, _UNSUPPORTED, *unsupported, ""))


def _line(name: str, spec: FieldSpec, owners: list[str]) -> str:
    of = "all" if len(owners) == len(_KINDS) else ", ".join(owners)
    batches = "" if owners == ["responses"] else f"no: {spec.in_batches}" if spec.in_batches else "yes"
    required = " (required)" if spec.is_required else ""
    return f"| `{name}`{required} | {of} | {_held(spec.kind.schema)} | {batches} | {spec.help} |"


def _refusal(name: str, values: tuple[object, ...]) -> str:
    owners = [own for own, kind in _KINDS.items() if name in kind.table()]
    but = f" (not of {', '.join(owners)}, which have it)" if owners else ""
    return f"- `{name}`{': ' if values else ''}{', '.join(f'`{json.dumps(value)}`' for value in values)}{but}"


def _held(schema: Schema) -> str:
    """Return what a JSON Schema allows, in a few words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_held(each) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_held(schema['items'])}"
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    words |= {"minLength": "of", "maxLength": "to"}
    limits = [f"{word} {schema[name]}" for name, word in words.items() if schema.get(name) not in (None, LARGEST)]
    characters = ["characters"] if limits and schema.get("type") == "string" else []
    return " ".join((schema.get("type", "any value"), *limits, *characters))
