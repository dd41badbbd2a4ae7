"""RunConfig: a YAML file, the command line and the environment as one frozen configuration.

The command line wins over the environment, the environment over the file. Unknown names are refused in all three.
The sections (`jobs/config/sections.py`) mirror the packages' own dataclasses, which check the values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar, TypeVar

import yaml
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from actors.settings import (
    ChatSettings,
    DraftSettings,
    GeneratorSettings,
    ModelSettings,
    Placement,
    StageSettings,
)
from decoding.engine.options import EngineOptions
from decoding.sampling_params import SamplingParams
from jobs.config.sections import (
    ActorsSection,
    ChatSection,
    DraftsSection,
    EngineSection,
    InputSection,
    ModelsSection,
    OutputSection,
    RunSection,
    SamplingSection,
    StagesSection,
)
from pipeline.inputs.options import InputOptions
from pipeline.logs import LogSettings
from pipeline.streaming.stream import ActorPool

_ENV_PREFIX = "DRAY_"
_ENGINE_VARIABLES = ("DRAY_CACHE", "DRAY_GRAPHS", "DRAY_KERNELS", "DRAY_KERNELS_MARCH")  # decoding reads these itself
_Config = TypeVar("_Config", bound="RunConfig")
_Settings = TypeVar("_Settings", bound="YamlConfig")


class YamlConfig(BaseSettings):
    """A configuration from a YAML file, the environment and the command line."""

    config: Path | None = Field(None, description="YAML file with the sections below.")

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=_ENV_PREFIX,
        env_nested_delimiter="__",
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_enforce_required=False,
        cli_exit_on_error=False,
        nested_model_default_partial_update=True,
    )
    _yaml_file: ClassVar[Path | None] = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line (in front of these), then environment, then file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=cls._yaml_file)


class RunConfig(YamlConfig):
    """Generates a corpus: prompts in, Parquet with acceptance counts out, exactly once, resumable."""

    dry_run: bool = Field(False, description="Print the plan and stop; no model is loaded, nothing is written.")
    input: InputSection
    output: OutputSection
    models: ModelsSection
    stages: StagesSection = StagesSection()
    chat: ChatSection = ChatSection()
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    actors: ActorsSection = ActorsSection()
    placement: Placement = Field(
        "colocated", description="Draft model in the engine's process (colocated), or in draft actors (split)."
    )
    drafts: DraftsSection = DraftsSection()
    run: RunSection = RunSection()

    def generator_settings(self) -> GeneratorSettings:
        """The engine's part, checked by its own dataclasses."""
        return GeneratorSettings(
            models=ModelSettings(**self.models.model_dump()),
            engine=EngineOptions(**self.engine.model_dump()),
            sampling=SamplingParams(**self.sampling.model_dump()),
            chat=ChatSettings(**self.chat.model_dump()),
            stages=StageSettings(**self.stages.model_dump()),
            seed=self.run.seed,
            placement=self.placement,
            drafts=DraftSettings(**self.drafts.model_dump()),
        )

    def input_options(self) -> InputOptions:
        """The reader's part."""
        template_columns = tuple(self.chat.template_columns.values())
        return InputOptions(**self.input.model_dump(exclude={"path"}), template_columns=template_columns)

    def actor_pool(self) -> ActorPool:
        """The pool's part."""
        values = self.actors.model_dump()
        return ActorPool(units_in_flight=values.pop("units_in_flight"), **values)

    def log_settings(self) -> LogSettings:
        """What every process of the run logs."""
        return LogSettings(format=self.run.log_format, level=self.run.log_level, prompts=self.run.log_prompts)


def load_config(arguments: Sequence[str], prog: str) -> RunConfig:
    """The configuration of these command-line arguments, or a ValueError that names every wrong field.

    `--help` prints all fields and exits.
    """
    return load_config_of(RunConfig, arguments, prog)


def load_config_of(kind: type[_Config], arguments: Sequence[str], prog: str) -> _Config:
    """As `load_config`, for a kind of RunConfig with fields of its own; its docstring begins the help."""
    config = load_settings_of(kind, arguments, prog)
    config.input_options(), config.actor_pool()  # their own checks
    check_draft_timeouts(config.generator_settings(), config.run.hang_timeout_s)
    _check_stage_timeouts(config)
    return config


def load_settings_of(kind: type[_Settings], arguments: Sequence[str], prog: str) -> _Settings:
    """Any kind of configuration, each of its fields checked; its docstring begins the help. Raises ValueError."""
    arguments = [_with_underscore(argument, kind) for argument in arguments]
    yaml_file = _config_file(arguments)
    _check_environment(kind)
    if yaml_file is not None:
        _check_mapping(yaml_file)

    class _Loaded(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        model_config = SettingsConfigDict(cli_prog_name=prog, title=kind.__name__)
        _yaml_file = yaml_file

    try:
        config: _Settings = _Loaded(_cli_parse_args=list(arguments))
    except ValidationError as error:
        raise ValueError(_explain(error)) from error
    except SettingsError as error:
        raise ValueError(_explain_arguments(str(error), kind)) from error
    except yaml.YAMLError as error:
        raise ValueError(f"{yaml_file} is not YAML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{yaml_file} is not UTF-8: {error}") from error
    return config


def check_draft_timeouts(settings: GeneratorSettings, hang_timeout_s: float) -> None:
    """A step of an engine may wait for a draft in each of its lanes. That must not look like a process that hangs."""
    waits_s = settings.num_lanes * settings.drafts.timeout_s
    if settings.placement == "split" and waits_s >= hang_timeout_s / 2:
        raise ValueError(
            f"drafts.timeout_s is {settings.drafts.timeout_s:g}, so that a step of an engine with {settings.num_lanes} "
            f"lanes may wait for {waits_s:g} seconds; that must be less than half of run.hang_timeout_s, which is "
            f"{hang_timeout_s:g}: lower the one or raise the other"
        )


def _check_stage_timeouts(config: RunConfig) -> None:
    """A generator must outlive the replacing of its stages."""
    stages, hang_timeout_s = config.generator_settings().stages, config.run.hang_timeout_s
    longest_s = stages.longest_step_s
    if stages.is_apart and hang_timeout_s <= longest_s:
        raise ValueError(
            f"run.hang_timeout_s is {hang_timeout_s:g}, but an engine that replaces stages may need {longest_s:g} "
            "seconds for a step (3 x stages.timeout_s + stages.start_timeout_s), and would be ended over it; raise "
            "run.hang_timeout_s, or lower the others"
        )


def _with_underscore(argument: str, kind: type[YamlConfig]) -> str:
    """`--dry-run` as its field is called; other arguments as they are."""
    name, equals, value = argument.partition("=")
    field = name.removeprefix("--").replace("-", "_")
    is_flag = name.startswith("--") and field in kind.model_fields
    return f"--{field}{equals}{value}" if is_flag else argument


def _config_file(arguments: Sequence[str]) -> Path | None:
    for index, argument in enumerate(arguments):
        name, has_value, value = argument.partition("=")
        if name == "--config":
            value = value if has_value else next(iter(arguments[index + 1 :]), "")
            if not Path(value).is_file():
                raise ValueError(f"--config {value!r}: no such file")
            return Path(value)
    from_environment = os.environ.get(f"{_ENV_PREFIX}CONFIG")
    if from_environment and not Path(from_environment).is_file():
        raise ValueError(f"{_ENV_PREFIX}CONFIG={from_environment!r}: no such file")
    return Path(from_environment) if from_environment else None


def _check_mapping(yaml_file: Path) -> None:
    try:
        content = yaml.safe_load(yaml_file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return  # reported where the settings read it
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"{yaml_file} must hold sections (input:, output:, ...), got a {type(content).__name__}")


def _check_environment(kind: type[YamlConfig]) -> None:
    sections = kind.model_fields
    for name in os.environ:
        if not name.startswith(_ENV_PREFIX) or name in _ENGINE_VARIABLES:
            continue
        section, _, field = name.removeprefix(_ENV_PREFIX).lower().partition("__")
        fields = _fields(sections[section]) if section in sections else []
        if section not in sections or (field and field.partition("__")[0] not in fields):
            raise ValueError(
                f"environment variable {name} names no field; "
                f"{_ENV_PREFIX}ENGINE__NUM_SLOTS is how engine.num_slots is set"
            )


def _explain(error: ValidationError) -> str:
    lines = ["the configuration is wrong:"]
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        got = "" if problem["type"] in ("missing", "extra_forbidden") else f", got {problem['input']!r}"
        what = {"missing": "is required", "extra_forbidden": "is not a field (see --help)"}.get(
            problem["type"], problem["msg"].lower()
        )
        lines.append(f"  {name}: {what}{got}")
    return "\n".join(lines)


def _explain_arguments(message: str, kind: type[YamlConfig]) -> str:
    flags = [f"--{section}.{field}" for section, info in kind.model_fields.items() for field in _fields(info)]
    flags += [f"--{name.replace('_', '-')}" for name, info in kind.model_fields.items() if not _fields(info)]
    section = message.partition('error parsing value for field "')[2].partition('"')[0]
    if section in kind.model_fields and (fields := _fields(kind.model_fields[section])):
        return f"--{section} is a section; set its fields, such as --{section}.{fields[0]} (--help lists them all)"
    for word in message.replace("=", " ").split():
        if word.startswith("--") and word not in flags:
            near = get_close_matches(word, flags, n=1, cutoff=0.5)
            return f"{word} is not a flag" + (f"; did you mean {near[0]}?" if near else "") + " (--help lists them all)"
    return message


def _fields(section: FieldInfo) -> list[str]:
    """The names of a section's fields; none for a field that is no section."""
    return list(getattr(section.annotation, "model_fields", {}))
