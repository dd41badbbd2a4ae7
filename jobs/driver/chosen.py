"""What one line leaves open, chosen for this machine, and said: type of numbers, drafter, and whether Ray is needed."""

from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar

import torch
from rich.console import Console

from actors.engines import backend_of
from actors.engines.backend import dtype_of
from actors.settings import GeneratorSettings
from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.loading import made_of
from decoding.checkpoint.supported import load_config, model_folder
from decoding.choices import LOOK_UP, OWN_HEAD, TEXT_DEPENDS_ON_DRAFT
from decoding.fused.coded_linear import codes_run
from decoding.fused.kernels import linear_kind
from jobs.config.as_yaml import as_yaml
from jobs.config.fields import value_in
from jobs.config.run import RunConfig
from jobs.driver.cluster import starts_own_ray, submitted_copy
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location

ASKED_OF_COMMAND = ("dry_run", "estimate", "price_per_hour")  # fields that say nothing about the run itself
_Config = TypeVar("_Config", bound=RunConfig)


def chosen_here(config: _Config) -> _Config:
    """Return the configuration with what one line leaves open, and why in `chosen`; another one is returned as it is.

    The text does not depend on any of it but the type of numbers, for which a run that has begun keeps its own.
    """
    if config.chosen is None:
        return config
    why = dict[str, str]()
    generator, run, path = config.generator, config.run, config.output.path
    is_here = starts_own_ray(run.ray_address) and submitted_copy() is None
    if RunDirectory.exists(path) and generator.models.dtype == "auto" and backend_of(generator).plans_memory:
        begun: Any = RunDirectory.open(path).run["identity"]
        generator = replace(generator, models=replace(generator.models, dtype=begun["dtype"]))
        why["models.dtype"] = "the run has begun with it"
    elif is_here:
        generator, why = choose_dtype(generator)
    if not config.is_scoring:
        generator, why_drafter = choose_drafter(generator)
        why |= why_drafter
    if "local" not in (run.names_given or ()) and is_here and not config.asks_for_ray and torch.cuda.device_count() < 2:
        run = replace(run, local=True)
        why["run.local"] = "one engine needs no Ray; --no-run.local starts it"
    return replace(config, generator=generator, run=run, chosen=why)


def choose_dtype(settings: GeneratorSettings) -> tuple[GeneratorSettings, dict[str, str]]:
    """Return the settings with the type of numbers for engines on this machine's CPU, and why; none that is given.

    A GPU has the model's own, without a choice.
    """
    models = settings.models
    is_on_gpu = models.device == "cuda" or (models.device == "auto" and torch.cuda.is_available())
    if models.dtype != "auto" or is_on_gpu or not backend_of(settings).plans_memory:
        return settings, {}
    dtype, why = _dtype_on_cpu(model_folder(models.target))
    return replace(settings, models=replace(models, dtype=dtype)), {"models.dtype": why}


def with_lookup(config: _Config) -> _Config:
    """Return a configuration that reuses texts with a drafter that looks them up.

    Raises ValueError if another one is named, and where no text may be reused.
    """
    if config.run.reuse is None:
        return config
    generator, engine, draft = config.generator, config.generator.engine, config.generator.models.draft
    named = config.beyond_one_process
    why = {
        f"it has {named[0] if named else ''}, and texts of Dray's own engine are reused": bool(named)
        and named[0] not in [part.asked_by for part in generator.apart],
        f"engine.verification is {engine.verification!r}, under which an old text would bend the distribution": (
            engine.verification in TEXT_DEPENDS_ON_DRAFT
        ),
        "models.draft is a list, of which a trial takes one that may look nothing up; name one draft": bool(
            config.drafts_to_try
        ),
        f"engine.drafter is {engine.drafter!r}, which looks nothing up; leave it out, or use 'suffix' or 'hybrid'": (
            engine.drafter not in (None, *LOOK_UP)
        ),
    }
    if found := next((each for each, is_so in why.items() if is_so), None):
        raise ValueError(f"run.reuse is set, but {found}")
    drafter = engine.drafter or ("suffix" if draft is None else "hybrid")
    run = replace(config.run, reuse=Location.parse(config.run.reuse).name)  # workers may start in other folders
    return replace(config, run=run, generator=replace(generator, engine=replace(engine, drafter=drafter)))


def refuse_audits(config: RunConfig) -> None:
    """Raise ValueError if units are to be audited (`run.audit_fraction`), and no other place could judge them."""
    apart = [part.asked_by for part in config.generator.apart]
    named = [name for name in config.beyond_one_process if name not in apart]
    named = [f"it has {name}, and Dray's own texts are audited" for name in named]
    if config.actors.min_actors < 2:
        named.append(f"actors.min_actors is {config.actors.min_actors}, and another place audits a unit; set it to 2")
    if config.run.exact != "required":
        named.append("run.exact is 'any', and audited texts must come out again; set it to required")
    if config.run.audit_fraction and named:
        raise ValueError(f"run.audit_fraction is {config.run.audit_fraction:g}, but {named[0]}")


def choose_drafter(settings: GeneratorSettings) -> tuple[GeneratorSettings, dict[str, str]]:
    """Return the settings with the drafter that needs no model, and why, where none is given and the text allows it."""
    engine, is_named = settings.engine, settings.models.draft is not None or bool(settings.models.candidates)
    if is_named or engine.drafter is not None or not backend_of(settings).is_repeatable:
        return settings, {}
    why = "looks drafts up in texts, and rests where that costs"
    return replace(settings, engine=replace(engine, drafter="suffix")), {"engine.drafter": why}


def _dtype_on_cpu(target: str) -> tuple[Any, str]:
    """Return the type of weights and arithmetic on this processor, and why it is this one."""
    config = load_config(target)
    own = dtype_of(config)
    if fp8_format(config) is not None:
        return own, "the model's own, beside FP8"
    is_coded = codes_run(target, "cpu", "float32")
    if made := made_of(target, "float32", is_coded=is_coded):
        return "float32", f"the model {'has' if is_coded else 'is'}{made.removeprefix(',')}"
    if own != "bfloat16":
        return "float32", "the model's own" if own == "float32" else f"exact; the model's own is {own}"
    from decoding.network.invariance import is_invariant_on_cpu  # here alone a network runs

    if is_invariant_on_cpu(config, torch.bfloat16):
        return own, f"the model's own, and exact here ({linear_kind(torch.bfloat16)})"
    return "float32", "exact; bfloat16, the model's own, would not be here"


def folder_of(model: str) -> str:
    """Return the absolute folder of a model, as actors may start elsewhere."""
    return str(Path(model_folder(model)).absolute())


def draft_folder(draft: str | None) -> str | None:
    """Return `folder_of` a draft; the head in a target's own files, and no draft, are said as they are."""
    return folder_of(draft) if draft not in (None, OWN_HEAD) else draft


def print_chosen(config: RunConfig) -> None:
    """Print what was chosen, and why."""
    console = Console(highlight=False, soft_wrap=True)
    if config.chosen:
        console.print("  chosen for this machine:")
    for name, why in (config.chosen or {}).items():
        value = value_in(config, name)
        shown = str(value).lower() if isinstance(value, bool) else value
        console.print(f"    {name} {shown}: {why}", markup=False)


def print_as_file(config: RunConfig) -> None:
    """Print the file that says what one line says; nothing for a configuration that comes from a file or flags."""
    if config.chosen is not None:
        console = Console(highlight=False, soft_wrap=True)
        console.print("  this line as a file (dray init writes it, with comments):")
        console.print(indent(as_yaml(config, ASKED_OF_COMMAND).rstrip(), "    "), markup=False)
