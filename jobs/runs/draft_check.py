"""Whether a draft can take the place of the one that a run names."""

from typing import Any

from actors.engines import backend_of
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from pipeline.run.directory import RunDirectory


def check_draft(run_directory: RunDirectory, draft: str) -> None:
    """Raise ValueError, in one line, unless the draft in a folder can take the place of the one that the run names."""
    from decoding.engine.draft_folder import read_replacement

    if run_directory.is_success():
        raise ValueError(f"{run_directory.location.name} is complete, and nothing is left to draft for")
    models, why = ModelSettings(**run_directory.run["models"]), backend_of(_settings_of(run_directory)).why_draft_stays
    if models.draft is None or why is not None:
        raise ValueError(
            f"the draft of {run_directory.location.name} cannot be replaced: {why or 'its run.json names none'}"
        )
    for name, tensor in read_replacement(draft, models.draft, models.dtype, models.target).items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise ValueError(f"{draft!r} has values in {name!r} that are not finite; use a draft that was saved whole")


def _settings_of(run_directory: RunDirectory) -> GeneratorSettings:
    """Return the settings that a run was created with, as far as they say whether and how it drafts."""
    run = run_directory.run
    said: dict[str, Any] = run.get("settings", {}).get("engine", {})
    engine = {name: said[name] for name in ("backend", "drafter", "verification") if name in said}
    return GeneratorSettings(models=ModelSettings(**run["models"]), engine=EngineSettings(**engine))
