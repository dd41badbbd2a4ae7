"""Whether a draft can take the place of the one that a run was begun with."""

from typing import cast

from actors.engines import backend_of
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from decoding.choices import DrafterName
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_choice import DraftChoice


def check_draft(run_directory: RunDirectory, draft: str) -> None:
    """Raise ValueError, in one line, unless the draft in a folder can take the place of the one that the run names."""
    from decoding.engine.draft_folder import read_replacement

    if run_directory.is_success():
        raise ValueError(f"{run_directory.location.name} is complete, and nothing is left to draft for")
    models, said = ModelSettings(**run_directory.run["models"]), run_directory.run.get("settings", {}).get("engine", {})
    engine = EngineSettings(**{name: said[name] for name in ("backend", "drafter", "verification") if name in said})
    settings, choice = GeneratorSettings(models=models, engine=engine), DraftChoice.of(run_directory.location)
    if choice is not None and models.draft is None:  # the run names several
        settings = settings.with_draft(cast("DrafterName", choice.drafter), choice.draft)
    elif choice is None and models.candidates:
        raise ValueError(
            f"the draft of {run_directory.location.name} cannot be replaced: several take turns, and which one "
            "is to be replaced is not said"
        )
    models, why = settings.models, backend_of(settings).why_draft_stays
    if models.draft is None or why is not None:
        raise ValueError(
            f"the draft of {run_directory.location.name} cannot be replaced: {why or 'its run.json names none'}"
        )
    for name, tensor in read_replacement(draft, models.draft, models.dtype, models.target).items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise ValueError(f"{draft!r} has values in {name!r} that are not finite; use a draft that was saved whole")
