"""Whether a draft can take the place of the one that a run was begun with."""

from actors.engines import backend_of
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from pipeline.run.directory import RunDirectory


def check_draft(run_directory: RunDirectory, draft: str) -> None:
    """Raise ValueError, in one line, unless the draft in a folder can take the place of the one that the run names."""
    from decoding.engine.draft_folder import read_replacement

    if run_directory.is_success():
        raise ValueError(f"{run_directory.location.name} is complete, and nothing is left to draft for")
    models, said = ModelSettings(**run_directory.run["models"]), run_directory.run.get("settings", {}).get("engine", {})
    engine = EngineSettings(**{name: said[name] for name in ("backend", "drafter", "verification") if name in said})
    why = backend_of(GeneratorSettings(models=models, engine=engine)).why_draft_stays
    if models.draft is None or why is not None:
        raise ValueError(
            f"the draft of {run_directory.location.name} cannot be replaced: {why or 'its run.json names none'}"
        )
    for name, tensor in read_replacement(draft, models.draft, models.dtype, models.target).items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise ValueError(f"{draft!r} has values in {name!r} that are not finite; use a draft that was saved whole")
