"""ProveConfig: the configuration of `dray prove`, which is that of a run and what to compare."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pydantic

from decoding.choices import DrafterName
from jobs.config.run import RunConfig

_Positive = Annotated[int, pydantic.Field(ge=1)]
# "mixed" deals out all the others to the rows in turn; they are in `jobs.proving.asked`.
AskedName = Literal[
    "nothing", "mixed",
    "json_object", "json_schema", "json_tight", "regex", "choice", "grammar",
    "hermes_forced", "llama3_forced", "mistral_forced", "mistral_named_forced",
    "hermes_auto", "llama3_auto", "mistral_auto", "mistral_named_auto",
    "hermes_or_form", "llama3_or_form", "mistral_or_form", "mistral_named_or_form",
    "thought", "open_thought",
    "stop", "penalties", "min_tokens", "logprobs", "bad_words", "all_at_once",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProveSettings:
    """What to compare with plain decoding."""

    num_prompts: _Positive = 32
    """Rows of the input that are written again and again, the first ones."""
    drafters: tuple[DrafterName, ...] = ()
    """Drafters; unless given, all that the models allow, and with engine.backend 'vllm' the one of the run."""
    draft_lengths: tuple[_Positive, ...] = (1, 4)
    """Fixed draft lengths; Dray's own engine also drafts adaptively, with engine.num_speculative_tokens at most."""
    num_slots: tuple[_Positive, ...] = (1, 4, 16)
    """Numbers of slots."""
    temperatures: tuple[Annotated[float, pydantic.Field(ge=0)], ...] = ()
    """Temperatures; unless given, sampling.temperature alone."""
    asked: tuple[AskedName, ...] = ()
    """What is asked of the rows besides their prompts, one after the other: a form, calls of tools, a thought, stop
    strings and more. `nothing` leaves rows as they are, and `mixed` deals out all the others, one to each row in turn;
    unless given, these two and three forms, and with engine.backend 'vllm' `nothing`."""
    every_setting: bool = False
    """Write each of prove.asked in every setting; else the first is, and the others take a third of them in turn."""
    json_path: str | None = None
    """File for the result as JSON; it is printed in any case."""


@dataclass(frozen=True, kw_only=True)
class ProveConfig(RunConfig):
    """Proves on your models, machine and prompts that the drafter changes no token.

    Takes the configuration of a run. The first prompts are written by transformers' own code, one row and one token at
    a time, and then by the engine with every drafter, draft length and number of slots, in the input's order and
    shuffled: as they are, and with forms, calls, thoughts, stop strings and more asked of them. Exit code 0 if all is
    the same, 1 if a token, an end or a log-probability is not where that is promised. With engine.backend 'vllm' the
    texts are compared with vLLM's own of one row at a time, and none is promised. Nothing of the run is changed, but a
    run that exists gets the result in its report.json.
    """

    prove: ProveSettings = field(default_factory=ProveSettings)
    """What to compare with plain decoding."""

    @property
    def drafts_to_try(self) -> tuple[str, ...]:
        """None: a proof is of one draft."""
        return ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generator.models.candidates:
            raise ValueError("models.draft is a list, of which a run takes one, and a proof is of one draft; name it")
