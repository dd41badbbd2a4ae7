"""What a run will do: its input, its identity, the units that are missing. Nothing here loads a model."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import ray
import torch
import transformers

from actors.generator import load_codec
from actors.settings import GeneratorSettings
from decoding.support import load_config as load_model_config
from decoding.support import model_folder
from decoding.vocabulary import check_same_vocabulary
from jobs.config import RunConfig
from pipeline.carried import carried_types, types_from_dict, types_to_dict
from pipeline.files import InputFile, inputs_digest, list_files
from pipeline.fingerprint import model_fingerprint, text_fingerprint, tokenizer_fingerprint
from pipeline.input_options import InputOptions, resolve_options
from pipeline.run_directory import RunDirectory
from pipeline.text import TextCodec
from pipeline.units import WorkUnit, plan_units


@dataclass(frozen=True)
class Plan:
    """A checked run, new or begun. `run_directory` is None where nothing is written yet."""

    settings: GeneratorSettings
    input_options: InputOptions
    carried: dict[str, pa.DataType]
    files: list[InputFile]
    codec: TextCodec
    identity: dict[str, Any]
    run_directory: RunDirectory | None

    def new_units(self, rows_per_unit: int) -> Iterator[WorkUnit]:
        """The units of a run that does not exist yet."""
        return plan_units(self.files, self.input_options, rows_per_unit)


def make_plan(config: RunConfig) -> Plan:
    """The plan of this configuration. Raises ValueError for everything that can be known to fail before GPU work."""
    settings = config.generator_settings()
    files = list_files(config.input.path)
    options = resolve_options(files, config.input_options())
    _check_models(settings)
    codec = load_codec(settings)
    if options.format == "text" and settings.chat.system_prompt:
        raise ValueError("chat.system_prompt is set, but text input has prompts, not messages")
    run_directory = RunDirectory.open(config.output.path) if RunDirectory.exists(config.output.path) else None
    carried = (
        types_from_dict(run_directory.run["carried"]) if run_directory is not None else carried_types(files, options)
    )
    identity = run_identity(config, settings, options, files, codec)
    if run_directory is not None:
        run_directory.refuse_if_changed(identity)
    return Plan(settings, options, carried, files, codec, identity, run_directory)


def create_run(plan: Plan, config: RunConfig) -> RunDirectory:
    """The run directory of a plan, created if it does not exist."""
    if plan.run_directory is not None:
        return plan.run_directory
    run = {
        "identity": plan.identity,
        "carried": types_to_dict(plan.carried),
        "settings": config.model_dump(mode="json", exclude={"dry_run"}),
        "versions": {
            "python": platform.python_version(),
            "ray": ray.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "pyarrow": pa.__version__,
        },
    }
    return RunDirectory.create(config.output.path, run, plan.new_units(config.run.rows_per_unit))


def _check_models(settings: GeneratorSettings) -> None:
    """What the engine checks again when it loads the weights, as far as it can be known without them."""
    target = model_folder(settings.models.target)
    target_config = load_model_config(target)
    if settings.engine.pick_drafter(settings.models.draft) != "model" or settings.models.draft is None:
        return
    draft = model_folder(settings.models.draft)
    draft_config = load_model_config(draft)
    sizes = [config.get_text_config().vocab_size for config in (target_config, draft_config)]
    check_same_vocabulary(target, draft, *sizes)


def run_identity(
    config: RunConfig, settings: GeneratorSettings, options: InputOptions, files: list[InputFile], codec: TextCodec
) -> dict[str, Any]:
    """What decides which tokens come out: it may not change while a run lasts. Drafter and machines are not in it."""
    sampling = {name: value for name, value in asdict(settings.sampling).items() if name != "seed"}
    sampling["logit_bias"] = {str(token): bias for token, bias in sampling["logit_bias"].items()}
    return {
        "target": model_fingerprint(model_folder(settings.models.target)),
        "tokenizer": tokenizer_fingerprint(model_folder(settings.models.tokenizer or settings.models.target)),
        "chat": {**asdict(settings.chat), "chat_template": text_fingerprint(codec.chat_template or "")},
        "input": {**asdict(options), "files": inputs_digest(files)},
        "sampling": sampling,
        "seed": settings.seed,
        "dtype": settings.models.dtype,
        "verification": settings.engine.verification,
        "max_model_len": settings.engine.max_model_len,
    }
