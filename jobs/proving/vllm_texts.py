"""VllmTexts: what vLLM writes in every setting, and what it writes one row at a time and without drafts.

Nothing is promised of them; a proof counts how many are the same. An engine for each way of drafting is loaded in an
actor as the run has one, one after the other, so that one GPU should be enough. This has been run on processors only.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import ray

from actors.engines.loading import load_codec
from actors.settings import GeneratorSettings
from actors.vllm import arguments
from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.supported import max_positions, read_config
from decoding.choices import DrafterName
from decoding.engine.options import settle_max_model_len
from decoding.engine.token_engine import Limits
from decoding.sequence import Sequence
from jobs.config.prove import AskedName, ProveSettings
from jobs.driver.cluster import start_ray
from jobs.driver.plan import Plan
from jobs.proving.asked import Codecs, PlacedInput
from jobs.proving.comparison import Finding, Setting, compare, problem_with_row
from jobs.proving.placed import new_engine


class VllmTexts:
    """The settings of vLLM's engine, and the actor that holds one of them at a time."""

    is_promised = False
    asked_by_default: tuple[AskedName, ...] = ("nothing",)
    written_alone_by = "vLLM, one row at a time and without a draft"

    def __init__(self, plan: Plan, prove: ProveSettings) -> None:
        """Check the settings and temperatures. Raises ValueError for what vLLM cannot do."""
        self._plan = plan
        self.settings = _settings_to_try(prove, plan.settings)
        self._codecs = Codecs(load_codec(plan.settings))
        self._has_drafts = any(each.drafter != "none" for each in self.settings)
        for setting in self.settings:
            for temperature in prove.temperatures or (plan.settings.sampling.temperature,):
                arguments.check(self._drafting_as(setting).at_temperature(temperature))
        config = read_config(plan.settings.models.target)
        max_model_len = settle_max_model_len(plan.settings.engine.max_model_len, max_positions(config))
        vocab_size = config.get_text_config().vocab_size
        self._limits = Limits(max_model_len, vocab_size, end_token_ids_of(plan.settings.models.target, config))
        self._engine: Any = None
        self._loaded: tuple[str, int] | None = None
        self.runs_on = ""  # the processor of the models, as vLLM names it, once they are loaded

    def place(self, resources: ExitStack) -> None:
        """Load the engine without drafts; `resources` ends whichever is loaded. Raises ValueError if it cannot load."""
        start_ray(self._plan.config.run.ray_address)
        resources.callback(self._unload)
        self._load(self.settings[0])
        self.runs_on = str(ray.get(self._engine.runs_on.remote()))

    def _drafting_as(self, setting: Setting) -> GeneratorSettings:
        """Return the settings of an engine that drafts as this setting does, with slots for all of its kind."""
        num_slots = max(each.num_slots for each in self.settings)
        settings = self._plan.settings
        if setting.drafter == "none":
            settings = arguments.without_drafts(settings)
        elif "speculative_config" not in settings.engine.vllm:
            drafter, length = cast("DrafterName", setting.drafter), setting.num_speculative_tokens
            engine = replace(settings.engine, drafter=drafter, num_speculative_tokens=length)
            settings = replace(settings, engine=engine)
        return replace(settings, engine=replace(settings.engine, num_slots=num_slots))

    def _load(self, setting: Setting) -> None:
        wanted = (setting.drafter, setting.num_speculative_tokens)
        if self._loaded != wanted:
            self._unload()
            self._engine = new_engine(self._plan, self._drafting_as(setting))
            self._loaded = wanted

    def _unload(self) -> None:
        if self._engine is not None:
            ray.kill(self._engine)
        self._engine = self._loaded = None

    def problem_with(self, placed: PlacedInput) -> str | None:
        """Return why an engine of these settings cannot write this row of the input; None if all can."""

        def problem(sequence: Sequence) -> str | None:
            of_vllm = arguments.problem_with(sequence.params, self._has_drafts, self._limits.vocab_size)
            return self._limits.problem_with(sequence) or of_vllm

        return problem_with_row(placed, self._codecs, self._plan.settings, problem)

    def alone(self, inputs: list[PlacedInput], temperature: float) -> Iterator[Sequence]:
        """Yield each row of the input as vLLM writes it alone and without drafts."""
        self._load(self.settings[0])
        for each in inputs:
            yield from ray.get(self._engine.write.remote([each], temperature, num_slots=1))

    def findings(
        self, inputs: list[PlacedInput], temperature: float, expected: list[Sequence], settings: list[Setting]
    ) -> Iterator[Finding]:
        """Yield what each of the settings writes, beside the `expected` rows."""
        for setting in settings:
            self._load(setting)
            rows = ray.get(self._engine.write.remote(inputs, temperature, setting.num_slots, setting.is_shuffled))
            yield compare(setting, rows, expected)


def _settings_to_try(prove: ProveSettings, settings: GeneratorSettings) -> list[Setting]:
    """Return every combination of slots with no drafts and each wanted drafter; unless named, the configured one."""
    engine = settings.engine
    ways = [("none", engine.num_speculative_tokens)]
    if "speculative_config" in engine.vllm:
        config = engine.vllm["speculative_config"]
        ways.append((str(config.get("method", "a head")), int(config.get("num_speculative_tokens", 0))))
        if prove.drafters:
            raise ValueError(
                f"prove.drafters names {', '.join(prove.drafters)}, and engine.vllm.speculative_config says what "
                "drafts; drop one of them"
            )
    else:
        drafters = prove.drafters or (engine.pick_drafter(settings.models.draft),)
        ways += [(name, length) for name in drafters if name != "none" for length in prove.draft_lengths]
    combinations = [(way, num_slots) for way in ways for num_slots in prove.num_slots]
    return [
        Setting(drafter, "fixed", length, num_slots, is_shuffled=index % 2 == 1)
        for index, ((drafter, length), num_slots) in enumerate(combinations)
    ]
