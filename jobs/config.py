"""RunConfig: a YAML file, the command line and the environment as one frozen configuration.

The command line wins over the environment, the environment over the file. Unknown names are refused in all three.
The sections mirror the packages' own dataclasses, which check the values; here every field gets its words.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from actors.settings import ChatSettings, GeneratorSettings, ModelSettings
from decoding.device import Device
from decoding.drafters import DrafterName
from decoding.model import DType
from decoding.options import DraftLength, EngineOptions
from decoding.sampling_params import SamplingParams
from decoding.verify import Verification
from pipeline.dataset import ActorPool
from pipeline.input_options import Format, InputOptions
from pipeline.logs import LogFormat, LogLevel, LogSettings

_ENV_PREFIX = "DRAY_"
_Config = TypeVar("_Config", bound="RunConfig")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputSection(_Section):
    """What to read."""

    path: str | list[str] = Field(description="File, folder or glob, or a list of them; local or a URI (s3://, gs://).")
    format: Format = Field("auto", description="Input format; auto goes by file name.")
    prompt_column: str = Field("prompt", description="Column with the prompt as text.")
    messages_column: str = Field("messages", description="Column with chat messages; a row has a prompt or messages.")
    prompt_template: str | None = Field(None, description='Prompt made from columns, such as "Question: {question}".')
    id_column: str | None = Field(None, description="Column with your own id of a row, copied to the output.")
    override_column: str = Field("sampling", description="Column with a row's own sampling parameters, if present.")
    carry_columns: tuple[str, ...] = Field((), description="Columns copied to the output as they are.")


class OutputSection(_Section):
    """Where to write."""

    path: str = Field(description="The run directory: new, or that of a run to go on with; local or a URI.")


class ModelsSection(_Section):
    """Which models, where and how exact."""

    target: str = Field(description="Target model: a folder with safetensors, or a hub name.")
    draft: str | None = Field(None, description="Draft model, for drafter 'model'.")
    tokenizer: str | None = Field(None, description="Tokenizer folder; the target's unless given.")
    device: Device = Field("auto", description="Where to run; auto takes GPUs if the cluster has any.")
    dtype: DType = Field("auto", description="Weights and arithmetic; auto is float32 on CPU, else the checkpoint's.")


class ChatSection(_Section):
    """How messages become a prompt."""

    chat_template: str | None = Field(None, description="Jinja template in place of the tokenizer's own.")
    system_prompt: str | None = Field(None, description="System message before chats that have none.")
    template_kwargs: dict[str, Any] = Field({}, description="Template variables with one value for the run.")
    template_columns: dict[str, str] = Field({}, description="Template variable -> column that holds its value.")


class EngineSection(_Section):
    """How an engine runs. Nothing here but max_model_len and verification can change a token (float32)."""

    drafter: DrafterName | None = Field(None, description="What drafts; 'model' if there is a draft, else 'none'.")
    num_speculative_tokens: int = Field(8, description="Most tokens a row drafts in a round (1 to 64).")
    draft_length: DraftLength = Field("adaptive", description="Tokens to draft: as many as pay, or always the most.")
    verification: Verification = Field("coupled", description="coupled: the target's own tokens; rejection: its law.")
    num_slots: int = Field(16, description="Rows an engine works on at once.")
    max_prefill_tokens: int | None = Field(
        None, description="Prompt tokens read between two rounds of full slots; 512, on CUDA 2048."
    )
    max_model_len: int | None = Field(
        None, description="Tokens of prompt and output; the target's context, at most 4096."
    )


class SamplingSection(_Section):
    """The target's distribution and the text's length; a row may override any of it."""

    temperature: float = Field(1.0, description="0 is greedy.")
    top_k: int = Field(0, description="Keep the k most likely tokens; 0 keeps all.")
    top_p: float = Field(1.0, description="Keep the most likely tokens of this total probability.")
    min_p: float = Field(0.0, description="Keep tokens at least this likely, relative to the most likely one.")
    repetition_penalty: float = Field(1.0, description="Over prompt and output, multiplicative; 1 is none.")
    presence_penalty: float = Field(0.0, description="Over the output, once a token id (-2 to 2).")
    frequency_penalty: float = Field(0.0, description="Over the output, per occurrence (-2 to 2).")
    logit_bias: dict[int, float] = Field({}, description="Token id -> added to its logit (-100 to 100).")
    n: int = Field(1, description="Samples per prompt.")
    max_tokens: int = Field(256, description="Most output tokens of a sample.")
    min_tokens: int = Field(0, description="Output tokens before an end is allowed.")
    stop: tuple[str, ...] | str = Field((), description="Strings that end the text; not part of it.")
    stop_token_ids: tuple[int, ...] = Field((), description="Token ids that end the text.")
    ignore_eos: bool = Field(False, description="Go on after the model's own end token.")
    logprobs: int | None = Field(None, description="Log-probabilities of each token and the k most likely (0 to 20).")


class ActorsSection(_Section):
    """The pool of engines."""

    min_actors: int = Field(1, description="Actors to keep while units wait.")
    max_actors: int = Field(1, description="Actors to grow to.")
    initial_actors: int | None = Field(
        None, description="Actors to ask for at once, and to keep while units wait; min_actors unless given."
    )
    num_cpus: float = Field(1.0, gt=0, description="Logical CPUs an actor holds; its threads on CPU.")
    num_gpus: float = Field(0.0, ge=0, description="GPUs an actor holds; 1 when the device is cuda and this is 0.")
    memory: ByteSize | None = Field(None, description="Memory an actor holds, such as 80GiB.")
    resources: dict[str, float] = Field({}, description="Custom resources an actor holds, by their names.")
    accelerator_type: str | None = Field(None, description="Kind of GPU, as Ray names it, such as H100.")
    label_selector: dict[str, str] = Field({}, description="Labels of the nodes that actors may run on.")
    fallback_label_selectors: tuple[dict[str, str], ...] = Field(
        (), description="Labels to be content with where those do not exist, in order of preference."
    )
    units_in_flight: int = Field(2, description="Work units an actor works on at once.")


class RunSection(_Section):
    """The run as a whole."""

    seed: int = Field(0, description="Seed of all noise at temperature > 0.")
    rows_per_unit: int = Field(256, ge=1, description="Input rows in a work unit: what a crash can cost at most.")
    max_error_rate: float = Field(
        0.5, ge=0, le=1, description="Fail when more than this share of all rows failed; stops early after 100 rows."
    )
    no_progress_timeout_s: float = Field(
        3600.0, gt=0, description="Fail when no unit is committed for so many seconds."
    )
    hang_timeout_s: float = Field(
        900.0, gt=0, description="Seconds for one step of an engine; a process that takes longer hangs, and is ended."
    )
    grace_period_s: float = Field(
        120.0, ge=0, description="Seconds that units in flight get to finish after SIGTERM; then they are dropped."
    )
    lease_timeout_s: float = Field(
        60.0, gt=0, description="A driver that gives no sign of life for so many seconds loses the run to the next one."
    )
    backup_units: bool = Field(
        True, description="At the end, let actors that are idle do the units that others are still at; first one wins."
    )
    progress: Literal["auto", "bar", "lines", "none"] = Field(
        "auto", description="Progress: a bar on a terminal, else lines."
    )
    log_format: LogFormat = Field(
        "text", description="Log lines as text, or as JSON objects, which then are all that the driver's stderr has."
    )
    log_level: LogLevel = Field(
        "info", description="Least level of logged events. In text the driver logs warnings and errors only: it prints."
    )
    log_prompts: bool = Field(False, description="Log the message of a failed row and how its prompt begins.")
    ray_address: str | None = Field(None, description="Ray cluster; RAY_ADDRESS, or a local one, unless given.")


class RunConfig(BaseSettings):
    """Generates a corpus: prompts in, Parquet with acceptance counts out, exactly once, resumable."""

    config: Path | None = Field(None, description="YAML file with the sections below.")
    dry_run: bool = Field(False, description="Print the plan and stop; no model is loaded, nothing is written.")
    input: InputSection
    output: OutputSection
    models: ModelsSection
    chat: ChatSection = ChatSection()
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    actors: ActorsSection = ActorsSection()
    run: RunSection = RunSection()

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

    def generator_settings(self) -> GeneratorSettings:
        """The engine's part, checked by its own dataclasses."""
        return GeneratorSettings(
            models=ModelSettings(**self.models.model_dump()),
            engine=EngineOptions(**self.engine.model_dump()),
            sampling=SamplingParams(**self.sampling.model_dump()),
            chat=ChatSettings(**self.chat.model_dump()),
            seed=self.run.seed,
        )

    def input_options(self) -> InputOptions:
        """The reader's part."""
        template_columns = tuple(self.chat.template_columns.values())
        return InputOptions(**self.input.model_dump(exclude={"path"}), template_columns=template_columns)

    def actor_pool(self) -> ActorPool:
        """The pool's part."""
        values = self.actors.model_dump()
        return ActorPool(calls_in_flight=values.pop("units_in_flight"), **values)

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
    arguments = [_with_underscore(argument, kind) for argument in arguments]
    yaml_file = _config_file(arguments)
    _check_environment()
    if yaml_file is not None:
        _check_mapping(yaml_file)

    class _Loaded(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        model_config = SettingsConfigDict(cli_prog_name=prog, title="RunConfig")
        _yaml_file = yaml_file

    try:
        config: _Config = _Loaded(_cli_parse_args=list(arguments))
    except ValidationError as error:
        raise ValueError(_explain(error)) from error
    except SettingsError as error:
        raise ValueError(_explain_arguments(str(error), kind)) from error
    except yaml.YAMLError as error:
        raise ValueError(f"{yaml_file} is not YAML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{yaml_file} is not UTF-8: {error}") from error
    config.generator_settings(), config.input_options(), config.actor_pool()  # their own checks
    return config


def _with_underscore(argument: str, kind: type[RunConfig]) -> str:
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


def _check_environment() -> None:
    sections = RunConfig.model_fields
    for name in os.environ:
        if not name.startswith(_ENV_PREFIX):
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


def _explain_arguments(message: str, kind: type[RunConfig]) -> str:
    flags = [f"--{section}.{field}" for section, info in kind.model_fields.items() for field in _fields(info)]
    flags += [f"--{name.replace('_', '-')}" for name, info in kind.model_fields.items() if not _fields(info)]
    for word in message.replace("=", " ").split():
        if word.startswith("--") and word not in flags:
            near = get_close_matches(word, flags, n=1, cutoff=0.5)
            return f"{word} is not a flag" + (f"; did you mean {near[0]}?" if near else "") + " (--help lists them all)"
    return message


def _fields(section: FieldInfo) -> list[str]:
    """The names of a section's fields; none for a field that is no section."""
    return list(getattr(section.annotation, "model_fields", {}))
