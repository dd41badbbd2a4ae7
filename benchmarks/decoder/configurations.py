"""The configurations that can be measured, by name.

`plain` decodes without a draft. `fixed-4` drafts four tokens with the draft model in every round, `adaptive` as many
as pay; `fixed-4-ngram` and `adaptive-ngram` do so with another drafter. The others are other systems.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from decoding.choices import DRAFTERS, NEED_A_HEAD, NEED_A_MODEL, DrafterName
from decoding.engine.options import DraftLength, EngineOptions
from decoding.network.slot_network import Exact

System = Literal["engine", "transformers", "openvino", "vllm", "llamacpp"]
MAX_FIXED = 8


@dataclass(frozen=True)
class Configuration:
    """One way to generate."""

    name: str
    system: System
    mode: str = ""  # of the other systems: how they generate
    drafter: DrafterName = "none"
    draft_length: DraftLength = "fixed"
    num_draft_tokens: int = MAX_FIXED  # the ceiling, where the length is adaptive
    batch_1_only: bool = False
    is_default: bool = True

    def runs_at(self, batch: int) -> bool:
        """Tell whether this way of generating exists at this batch size."""
        return batch == 1 if self.batch_1_only else not (self.mode == "batched" and batch == 1)

    def engine_options(
        self, batch: int, max_model_len: int, exact: Exact = "auto", draft_window: int | None = None
    ) -> EngineOptions:
        """Return what our engine is made with; the window is for a draft model."""
        return EngineOptions(
            num_slots=batch,
            max_model_len=max_model_len,
            drafter=self.drafter,
            num_speculative_tokens=self.num_draft_tokens,
            draft_length=self.draft_length,
            exact=exact,
            draft_window=draft_window if self.drafter in NEED_A_MODEL else None,
        )


def engine_configuration(length: str, drafter: DrafterName = "model") -> Configuration:
    """Return our engine that drafts a number of tokens, or as many as pay where the length is `adaptive`."""
    is_model = drafter == "model"
    ending = "" if is_model else f"-{drafter}"
    if length == "adaptive":
        return Configuration(f"adaptive{ending}", "engine", drafter=drafter, draft_length="adaptive")
    name = f"fixed-{length}{ending}"
    return Configuration(name, "engine", drafter=drafter, num_draft_tokens=int(length), is_default=is_model)


_FIXED = tuple(map(str, range(1, MAX_FIXED + 1)))
_LOOKUPS = [name for name in DRAFTERS if name not in ("none", "model", *NEED_A_HEAD)]  # pairs here have no head
CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration("plain", "engine"),
    *(engine_configuration(length) for length in (*_FIXED, "adaptive")),
    *(engine_configuration(length, drafter) for drafter in _LOOKUPS for length in ("adaptive", *_FIXED)),
    Configuration("transformers-looped", "transformers", "looped", batch_1_only=True),
    Configuration("transformers-batched", "transformers", "batched"),
    Configuration("transformers-assisted-4", "transformers", "assisted", num_draft_tokens=4, batch_1_only=True),
    Configuration("transformers-assisted-5", "transformers", "assisted", num_draft_tokens=5, batch_1_only=True),
    Configuration("transformers-assisted", "transformers", "assisted-defaults", batch_1_only=True),
    Configuration("transformers-lookup", "transformers", "lookup", num_draft_tokens=5, batch_1_only=True),
    Configuration("openvino", "openvino", "plain"),
    Configuration("openvino-draft", "openvino", "draft", num_draft_tokens=4),
    Configuration("vllm", "vllm", "plain"),
    Configuration("vllm-draft", "vllm", "draft", num_draft_tokens=4),
    Configuration("vllm-ngram", "vllm", "ngram", num_draft_tokens=4),
    Configuration("llamacpp", "llamacpp", "plain"),
)


def select(patterns: Sequence[str]) -> list[Configuration]:
    """Return the configurations that match one of the names or globs; without any, the default ones.

    A glob matches default configurations only, unless it matches none of them. Raises ValueError if a pattern matches
    none.
    """
    if not patterns:
        return [configuration for configuration in CONFIGURATIONS if configuration.is_default]
    chosen: dict[str, Configuration] = {}
    for pattern in patterns:
        fits = [c for c in CONFIGURATIONS if fnmatchcase(c.name, pattern)]
        fits = [c for c in fits if c.is_default] or fits
        if not fits:
            raise ValueError(f"--only: no configuration is called {pattern!r}; --list prints their names")
        chosen |= {c.name: c for c in fits}
    return [configuration for configuration in CONFIGURATIONS if configuration.name in chosen]
