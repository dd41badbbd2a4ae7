"""Loading of a configuration: a YAML file, the environment and the command line become one frozen dataclass.

The command line wins over the environment, the environment over the file. Unknown names are refused in all three.
pydantic-settings checks names and types; the dataclasses check their values, and know nothing of it.
"""

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin
from warnings import catch_warnings, filterwarnings

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, ValidationError, create_model
from pydantic import Field as ModelField
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from jobs.config.arguments import help_of, shorts_of, spelled_out
from jobs.config.fields import READERS, Field, Flat, all_fields, level_fields, members_of, own_fields

_ENV_PREFIX, _NO_NUMBER = "DRAY_", "expected a number"
_OF_DECODING = ("CACHE", "GRAPHS", "KEEP_WEIGHTS", "KERNELS", "KERNELS_MARCH", "KERNELS_TILES")
READ_BY_DECODING = tuple(f"{_ENV_PREFIX}{name}" for name in _OF_DECODING)
# What pydantic puts behind the name of a field in errors: the member of a union, a single value or a list of them.
_SINGLE, _LIST = re.compile(r"str|int|literal\[.*\]"), re.compile(r"(list|tuple)\[.*\]")
_Config = TypeVar("_Config")


class _Settings(BaseSettings):
    config: Path | None = ModelField(None, description="YAML file with the sections below.")

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
    )

    @classmethod
    def settings_customise_sources(  # type: ignore[override]
        cls, settings_cls: Any, init_settings: Any, env_settings: Any, **others: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the strongest first; the command line goes before them, and the file is given."""
        return env_settings, init_settings


def load(kind: type[_Config], arguments: Sequence[str], prog: str) -> _Config:
    """Return the configuration that these command-line arguments ask for; `kind` is its dataclass.

    Raises ValueError with every wrong name and type, or with the first wrong value. `--help` prints all fields, after
    the docstring of `kind`, and exits.
    """
    fields: Any = {each.name: _model_field(each) for each in level_fields(kind)}
    arguments = spelled_out(arguments, kind)
    yaml_file = config_file(arguments)
    # A variable whose name stands anywhere in the configuration may be read by it.
    places = [*arguments, *(value for name, value in os.environ.items() if name.startswith(_ENV_PREFIX))]
    places += [] if yaml_file is None else [yaml_file.read_text(encoding="utf-8", errors="replace")]
    _check_environment(kind, [name for name in os.environ if any(name in place for place in places)])
    from_file = {} if yaml_file is None else read_sections(yaml_file)
    settings: Any = create_model(kind.__name__, __base__=_Settings, __doc__=kind.__doc__, **fields)
    settings.model_config["cli_shortcuts"] = {name: short for short, name in shorts_of(kind).items()}
    if not {"-h", "--help"}.isdisjoint(arguments):
        with suppress(OSError):  # a reader that has seen enough
            print(help_of(settings, kind, prog))
        sys.exit()
    try:
        given = settings(**from_file, _cli_parse_args=list(arguments), _cli_prog_name=prog)
    except ValidationError as error:
        raise ValueError(_explain(error, kind)) from error
    except SettingsError as error:
        raise ValueError(_explain_arguments(str(error), kind)) from error
    config = _value(kind, given)
    _check_environment(kind, getattr(config, "own_variables", ()))
    return config


def checked(kind: type[_Config], values: Mapping[str, Any], where: str) -> _Config:
    """Return the dataclass with these values, checked as those of a file are. Raises ValueError that names `where`."""
    try:
        given = _model(kind, kind.__name__)(**values)  # type: ignore[arg-type]  # of mypy, to which no class is hashable
    except ValidationError as error:
        raise ValueError(_explain(error, kind, "options are", where)) from error
    return _value(kind, given)


@cache
def _model(kind: type, name: str) -> type[BaseModel]:
    fields: Any = {each.name: _model_field(each) for each in level_fields(kind)}
    with catch_warnings():
        filterwarnings("ignore", 'Field name "validate"')  # an old name of `model_validate`, which nothing here calls
        return create_model(name, __config__=ConfigDict(frozen=True, extra="forbid"), **fields)


def _model_field(field: Field) -> Any:
    """Return the field of a pydantic model, as `create_model` takes it."""
    if field.is_section:
        section = _model(field.annotation, field.name)
        return section, ModelField(... if field.is_required else section(), description=field.description)
    annotation: Any = field.annotation
    members = members_of(annotation)
    if (int in members or float in members) and bool not in members:
        annotation = Annotated[annotation, BeforeValidator(_no_bool)]
    if field.unit == "bytes":
        size: Any = Annotated[ByteSize, AfterValidator(int)]
        annotation = size if annotation is int else size | None
    elif _may_be_single(field):  # a single string stands for a list of one
        several = AfterValidator(lambda value: (value,) if isinstance(value, str) else value)
        annotation = Annotated[annotation | get_args(annotation)[0], several]
    elif field.name in READERS:
        annotation = Annotated[annotation, BeforeValidator(READERS[field.name])]
    return annotation, ModelField(... if field.is_required else field.default, description=field.description)


def _no_bool(value: Any) -> Any:
    """Return a number, or several. Raises ValueError for true and false, which pydantic takes for 1 and 0."""
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    if any(isinstance(number, bool) for number in each):
        raise ValueError(_NO_NUMBER)
    return value


def _may_be_single(field: Field) -> bool:
    """Tell whether the field is a list of strings, for which one string may be given."""
    member = get_args(field.annotation)[0] if get_origin(field.annotation) is tuple else None
    return member is str or get_origin(member) is Literal


def _value(kind: type[_Config], given: BaseModel, flat: Flat | None = None) -> _Config:
    """Return the dataclass with the values of a pydantic model. Raises ValueError as the dataclass does."""
    values: dict[str, Any] = {}
    for each in own_fields(kind):
        if each.flat is not None:
            values[each.name] = _value(each.annotation, given, each.flat)
        elif flat is None or each.name not in flat.without:
            value = getattr(given, each.name if flat is None else flat.prefix + each.name)
            values[each.name] = _value(each.annotation, value) if each.is_section else value
    if hasattr(kind, "names_given"):
        values["names_given"] = frozenset(given.model_fields_set)
    return kind(**values)


def config_file(arguments: Sequence[str]) -> Path | None:
    """Return the file that `--config` or DRAY_CONFIG names; None without one. Raises ValueError if it is not there."""
    variable = variable_of("config")
    value, said = os.environ.get(variable), f"{variable}="
    for index, argument in enumerate(arguments):
        name, has_value, given = argument.partition("=")
        if name == "--config":
            value, said = given if has_value else next(iter(arguments[index + 1 :]), ""), "--config "
            break
    if not value and said != "--config ":
        return None
    file = Path(value or "").expanduser()
    if not file.is_file():
        raise ValueError(f"{said}{value!r}: no such file; `dray init` writes one to begin with")
    return file


def read_sections(yaml_file: Path) -> dict[str, Any]:
    """Return the sections in a file. Raises ValueError."""
    try:
        text = yaml_file.read_text(encoding="utf-8")
        node, content = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{yaml_file} is not YAML: " + str(error).replace('"<unicode string>", ', "")) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{yaml_file} is not UTF-8: {error}") from error
    _refuse_key_twice(yaml_file, node)
    found = "a list" if isinstance(node, yaml.SequenceNode) else "a text"
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{yaml_file} must hold sections (input:, output:, ...), got {found}")
    # A section whose fields are all comments holds nothing.
    sections = {str(name): value for name, value in (content or {}).items() if value is not None}
    if own := [name for name in sections if name.startswith("_")]:  # pydantic-settings has options of these names
        raise ValueError(f"the configuration is wrong:\n  {own[0]}: is not a field (see --help)")
    return sections


def _refuse_key_twice(yaml_file: Path, node: yaml.Node | None, section: str = "") -> None:
    """Raise ValueError for a key that stands twice in a mapping, of which YAML would take the last one."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_key_twice(yaml_file, item, section)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        name, line = f"{section}{key.value}", key.start_mark.line + 1
        if name in lines:
            raise ValueError(f"{yaml_file} has {name} twice, in the lines {lines[name]} and {line}; keep one of them")
        lines[name] = line
        _refuse_key_twice(yaml_file, value, f"{name}.")


def _check_environment(kind: type, own_variables: Collection[str]) -> None:
    """Raise ValueError for a variable that begins as ours do, names no field, and is not among `own_variables`."""
    fields = (*level_fields(kind), *all_fields(kind))
    variables = {variable_of("config"), *READ_BY_DECODING, *(variable_of(each.name) for each in fields)}
    for name in sorted(os.environ.keys() - own_variables):
        # A part of a field may follow it: DRAY_ACTORS__LABEL_SELECTOR__ZONE.
        if name.startswith(_ENV_PREFIX) and "__".join(name.upper().split("__")[:2]) not in variables:
            raise ValueError(
                f"environment variable {name} names no field{_meant(name, variables, 0.7)}; "
                f"{variable_of('engine.num_slots')} is how engine.num_slots is set"
            )


def _explain(error: ValidationError, kind: type, what_is: str = "configuration is", where: str = "--help") -> str:
    """Return a line for each field that is wrong: what is wrong with it, and what it got."""
    names = [each.name for each in (*level_fields(kind), *all_fields(kind))]
    problems: dict[str, list[str]] = {}
    got: dict[str, str] = {}
    for problem in error.errors():
        loc = [str(part) for part in problem["loc"]]
        if _SINGLE.fullmatch(loc[-1]) and isinstance(problem["input"], list | tuple):
            continue  # the error of the list says which of its values is wrong
        name = ".".join(part for part in loc if not (_SINGLE.fullmatch(part) or _LIST.fullmatch(part)))
        match problem["type"]:
            case "missing":
                what = "is required"
            case "extra_forbidden":
                what = f"is not a field{_meant(name, names, 0.8)} (see {where})"
            case "model_type":
                what = f"is a section, whose fields are set one by one, such as {_first(kind, name)}"
            case "value_error":  # the field's own words
                what = str(problem["ctx"]["error"]).removeprefix(f"{name} ")
            case _:
                what = problem["msg"].lower()
        if problem["type"] not in ("missing", "extra_forbidden"):
            got[name] = f", got {problem['input']!r}"
            if isinstance(problem["input"], bool) or what == _NO_NUMBER:
                got[name] += " (YAML takes yes, no, on and off for true and false: put them in quotes)" * (
                    where == "--help"
                )
        problems.setdefault(name, []).append(what)
    lines = [f"  {name}: {' or '.join(whats)}{got.get(name, '')}" for name, whats in problems.items()]
    return "\n".join([f"the {what_is} wrong:", *lines])


def _meant(name: str, names: Iterable[str], cutoff: float) -> str:
    """Return a guess which of the names was meant, if one of them is close."""
    near = get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def variable_of(name: str) -> str:
    """Return the environment variable of a field or a section."""
    return f"{_ENV_PREFIX}{name.upper().replace('.', '__')}"


def _first(kind: type, section: str) -> str:
    return next(each.name for each in all_fields(kind) if each.name.startswith(f"{section}."))


def _explain_arguments(message: str, kind: type) -> str:
    """Return what is wrong with the command line or the environment, from the message of pydantic-settings."""
    unparsed = re.search(r'error parsing value for field "(\w+)" from source "(\w+)"', message)
    if unparsed is not None and unparsed[2] == "EnvSettingsSource":
        return _explain_variables(unparsed[1], kind)
    if unparsed is not None and any(each.is_section and each.name == unparsed[1] for each in level_fields(kind)):
        first = f"--{_first(kind, unparsed[1])}"
        return f"--{unparsed[1]} is a section; set its fields, such as {first} (--help lists them all)"
    if (alone := re.search(r"argument (--\S+): expected one argument", message)) is not None:
        return f"{alone[1]} needs a value"
    switch = re.search(r"argument (--\S+)/(--\S+): ignored explicit argument", message)
    if switch is not None:
        return f"{switch[1]} takes no value; write {switch[1]} or {switch[2]}"
    flags = [f"--{short}" for short in shorts_of(kind)]
    flags += [f"--{each.name if '.' in each.name else each.name.replace('_', '-')}" for each in all_fields(kind)]
    for word in message.replace("=", " ").split():
        if word.startswith("--") and word not in flags:
            return f"{word} is not a flag{_meant(word, flags, 0.5)} (--help lists them all)"
    return message


def _explain_variables(name: str, kind: type) -> str:
    """Return which environment variables of a section, or of a field outside of sections, should hold JSON."""
    variable = variable_of(name)
    if variable in os.environ and any(each.is_section and each.name == name for each in level_fields(kind)):
        return (
            f"environment variable {variable} is a section; set its fields, such as {variable_of(_first(kind, name))}"
        )
    of_json = {
        variable_of(each.name)
        for each in all_fields(kind)
        if each.name.partition(".")[0] == name and each.type.startswith(("list of", "map from"))
    }
    given = [f"{each}={os.environ[each]}" for each in sorted(of_json & os.environ.keys())]
    return f'expected JSON, such as ["a"] or {{"a": "b"}}, in the environment: got {" and ".join(given)}'
