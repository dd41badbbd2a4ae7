"""TuneConfig: the configuration of `dray tune`, which is that of a run and what to try for it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from jobs.config.run import RunConfig

_Positive = Annotated[int, pydantic.Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """What to try, and where the best goes."""

    seconds: Annotated[float, pydantic.Field(gt=0)] = 240.0
    """Time to measure, once the models are loaded. More time writes longer texts and repeats more."""
    drafts: tuple[str, ...] = ()
    """Draft models and heads to try besides models.draft; one that does not fit the target is left out, with a line."""
    slots: tuple[_Positive, ...] = ()
    """Numbers of slots to try; unless given half and twice engine.num_slots besides it."""
    threads: tuple[_Positive, ...] = ()
    """Numbers of CPUs of an engine to try (actors.num_cpus); unless given the powers of 2 that leave each of
    actors.max_actors engines as many of this machine's. A run with run.local has those of its process."""
    dtypes: tuple[Literal["float32", "bfloat16", "float16"], ...] = ()
    """Types to try; unless given the run's own, and on a CPU bfloat16 where models.dtype is auto, no text is written
    yet, and the promise holds in it. Another type is another text."""
    write: str | None = None
    """YAML file to write the best setting into: all else stays, comments too. It may be the file of --config. A new one
    gets what that file or the command line says. Unless given a new file beside that of --config (run.yaml becomes
    run.tuned.yaml), and none without it: the best setting is printed as flags, too."""
    picture: str | None = None
    """File for the table and its bars as an SVG."""
    grid: bool = False
    """Afterwards measure every combination, which takes long, and print how near the choice comes to the best."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig(RunConfig):
    """Finds what makes a run fast on this machine, with its own model and prompts, in a few minutes.

    Takes the configuration of a run. Rows from all over the input are written by one engine in this process with
    different dtypes, threads, drafters and slots, in turns of a fraction of a second. Every setting must write the same
    text. What is fastest goes into a new YAML file; where no draft pays beyond the noise of the measurement, that is
    plain decoding (drafter none). Nothing of the run is written. Exit code 0, 1 if a text differs where none may, 2 for
    a wrong configuration.
    """

    dry_run: bool = False
    """Print what would be tried, and stop."""
    tune: TuneSettings = field(default_factory=TuneSettings)
    """What to try, and where the best goes."""
    config_file: Path | None = None  # that the configuration was read from

    @property
    def drafts_to_try(self) -> tuple[str, ...]:
        """None: all that is tried is tried by `dray tune` itself."""
        return ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if found := self.beyond_one_process:
            raise ValueError(
                f"{found[0]} is set, but tune measures how Dray's own engine writes texts in one process; leave it out"
            )
