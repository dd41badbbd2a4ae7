"""Names of models and adapters, and fields of several kinds, that are unknown, too long or of a wrong type."""

from typing import Any

from tests.endpoint.requests.bad_requests import COMPLETE
from tests.endpoint.requests.hostile import Hostile

NONE = "does not exist. This server has 'base', 'pirate'."
ODD = "../../etc/passwd\r\n\u202e<script>"


def _model(name: str, model: Any, said: str, **more: Any) -> Hostile:
    return Hostile(name, {"model": model}, "model", said, **more)


HOSTILE_NAMES = [
    _model("an adapter that is none", "parrot", f"The model 'parrot' {NONE}", status=404),
    _model("an adapter in capitals", "Pirate", f"The model 'Pirate' {NONE}", status=404),
    _model("an adapter behind its base", "base/pirate", f"The model 'base/pirate' {NONE}", status=404),
    _model("a name of a path", ODD, r"The model '../../etc/passwd\r\n\u202e<script>' does not", status=404),
    _model("a name of 512 characters", "a" * 512, f"The model '{'a' * 128}' {NONE}", status=404),
    _model("a name of a megabyte", "a" * 2**20, "must have at most 512 characters"),
    Hostile("a null as name", {"model": None}),
    Hostile("a good adapter", {"model": "pirate"}),
    Hostile("a prompt for no adapter", {"prompt": "a", "model": "b"}, "model", f"'b' {NONE}", 404, COMPLETE),
    Hostile(
        "a field of vLLM's adapters", {"lora_request": {"name": "pirate"}}, "lora_request", "there is no such field"
    ),
]
