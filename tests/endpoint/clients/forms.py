"""What the clients ask for: forms that a grammar can hold any model to, in the clients' own environment."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTION = "Tell me a story about a raven, as JSON."
MESSAGES = [{"role": "user", "content": QUESTION}]
# A corpus of two steps: the topics of its rows, and what is asked for in each column.
_THINGS = ("lamp", "cup", "boat", "bridge", "letter", "tower", "key", "bell", "map", "coat")
TOPICS = [f"a {animal} and a {thing}" for animal in ("raven", "cat", "dog", "whale", "fox") for thing in _THINGS]
STEPS = {"story": "Tell me a story about {{ topic }}.", "summary": "In one line: {{ story }}"}


class Animal(BaseModel):
    """An animal of the story."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["cat", "dog", "raven"]
    age: Annotated[int, Field(ge=0, le=30)]
    is_black: bool


class AnyObject(BaseModel):
    """Any object: JSON mode promises no more, since only the prompt has the schema there."""

    model_config = ConfigDict(extra="allow")


def shown(value: BaseModel | Mapping[str, Any]) -> Any:
    """Return what a client has made of an answer, as JSON can hold it."""
    return value.model_dump() if isinstance(value, BaseModel) else dict(value)


def tell(found: Mapping[str, Any]) -> None:
    """Print what was found, for the test that has started the program."""
    print("found " + json.dumps(found))  # noqa: T201
