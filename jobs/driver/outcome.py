"""Outcome of a command that generates: a verified and reported run, or a line that says why not, and an exit code.

Its stderr has as text what people read, and warnings; as JSON one object a line and nothing else.
"""

import io
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import replace
from typing import TextIO, TypeVar, cast

import ray

from actors.engines import backend_of
from actors.errors import describe
from jobs.config.run import RunConfig
from jobs.driver.plan import Plan, make_plan
from jobs.driver.progress import Progress
from jobs.driver.stopping import Exit, bad_configuration, interrupted
from jobs.driver.summary import exactness_of, make_report, print_ending, print_summary
from jobs.names import tell
from pipeline.counts import Counts
from pipeline.logs import Event, LogSettings, logs_to
from pipeline.run.check import CheckReport, check_run
from pipeline.run.dead_letters import Wanted, find_dead_letters, shown
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import LeaseHeld, LeaseLost
from pipeline.storage.location import Location
from pipeline.streaming.calls import NoProgressError, UnitError

_log = logging.getLogger(__name__)
_Config = TypeVar("_Config", bound=RunConfig)


class TooManyErrors(Exception):
    """More rows failed than run.max_error_rate allows."""


def run_command(
    config: _Config, begin: Callable[[_Config, Plan], Callable[[], Exit]], kept: str = "what is committed stays"
) -> Exit:
    """Do what `begin` returns for this configuration and its plan, and return the exit code.

    What the plan or `begin` refuses is printed as a bad configuration, what the work raises as its failure, with what
    is `kept` of it.
    """
    started = time.monotonic()
    with ExitStack() as logs:
        try:
            logs.enter_context(command_logs(config.run.logs, Location.parse(config.output.path).short_name))
            with Progress(config.run.progress, "reading the models' files and the input"):
                plan = make_plan(config)
            if warning := backend_of(plan.settings).lossy:
                tell(f"warning: {warning}")
            work = begin(config, plan)
        except (ValueError, OSError) as error:
            exit_code = bad_configuration(error)
        except KeyboardInterrupt:
            exit_code = interrupted(f"; {kept}; run the same command again")
        else:
            exit_code = _outcome_of(work, kept)
        seconds = round(time.monotonic() - started, 3)
        _log.info(Event("run ended", outcome=exit_code.name.lower(), exit_code=int(exit_code), seconds=seconds))
        return exit_code


def _outcome_of(work: Callable[[], Exit], kept: str) -> Exit:
    """Do the work and return its exit code; if it raises, print a line that says why, and what is kept."""
    try:
        return work()
    except KeyboardInterrupt:
        return interrupted(f"; {kept}; run the same command again")
    except LeaseHeld as error:
        tell(f"error: {error}")
        return Exit.HELD
    except (TooManyErrors, LeaseLost) as error:
        tell(f"error: {error}")
    except (UnitError, NoProgressError, ValueError, OSError, ray.exceptions.RayError) as error:
        tell(f"error: {_explain(error)}")
        tell(f"{kept}; mend the cause and run the same command again")
    return Exit.FAILED


def stopped(num_units_to_do: int, what_next: str) -> Exit:
    """Print and log that the run was asked to stop before these units, and return its exit code."""
    _log.info(Event("run stopped", units_to_do=num_units_to_do))
    tell(f"stopped with {num_units_to_do} units to go{what_next}")
    return Exit.INCOMPLETE


def conclude(run_directory: RunDirectory, config: RunConfig, new: Counts, started: float) -> Exit:
    """Verify the whole run, report on it, and mark it a success if it is one.

    `new` counts what this command did since `started`, of `time.monotonic`. Raises TooManyErrors, and ValueError for
    texts that are not as run.exact requires.
    """
    seconds, check = time.monotonic() - started, checked(run_directory, config)
    _log.info(
        Event(
            "run finished",
            complete=check.is_complete,
            rows=new.num_rows,
            errors=new.num_errors,
            tokens=new.num_output_tokens,
            rounds=new.num_rounds,
            drafted=new.num_draft_tokens,
            accepted=new.num_accepted_tokens,
            seconds=round(seconds, 3),
        )
    )
    run_directory.write_report(make_report(run_directory, check, seconds))
    print_summary(run_directory, check, new.num_output_tokens, seconds)
    if not check.is_complete:
        for problem in check.problems:
            tell(f"problem: {problem}")
        tell(
            f"the run is not complete; `dray verify {run_directory.location.name} --repair` moves damaged files away, "
            "and dray generate then redoes their units"
        )
        return Exit.FAILED
    refuse_too_many_errors(run_directory, check.counts, config)
    refuse_inexact_parts(run_directory, check, config)
    run_directory.mark_success()
    if config.output.report_html:
        try:
            with Progress(config.run.progress, "drawing report.html"):
                from jobs.report_page.page import write_page  # here, since only runs that are complete draw charts

                write_page(run_directory)
        except Exception as error:  # noqa: BLE001 - the corpus is complete, whatever becomes of its picture
            tell(f"warning: report.html could not be written: {describe(error)}")
    if check.counts.num_errors:
        where = run_directory.location.child("errors").name
        print(
            f"{check.counts.num_errors} rows failed and are in {where}\n"
            "`dray retry` with the same arguments runs them again; --dry-run says what failed"
        )
    print_ending(run_directory, config.run)
    return Exit.COMPLETE


def checked(run_directory: RunDirectory, config: RunConfig) -> CheckReport:
    """Return what is found in the whole run, and show meanwhile that it is verified."""
    with Progress(config.run.progress, f"verifying {run_directory.manifest.num_rows:,} rows"):
        return check_run(run_directory)


def refuse_inexact_parts(run_directory: RunDirectory, check: CheckReport, config: RunConfig) -> None:
    """Raise ValueError if the engines that wrote the parts break what run.exact requires."""
    if config.run.exact == "required" and exactness_of(run_directory, check) == "no":
        raise ValueError(
            "run.exact is 'required', but its parts were written by engines of which one depends on the batch, or that "
            "round differently (`engines` in report.json, docs/promise.md); use a new output directory and machines of "
            "one kind, or set run.exact to 'any'"
        )


def refuse_too_many_errors(run_directory: RunDirectory, counts: Counts, config: RunConfig) -> None:
    """Raise TooManyErrors if a larger share of these rows failed than the configuration allows."""
    if counts.num_errors > config.run.max_error_rate * counts.num_rows:
        raise TooManyErrors(
            f"{counts.num_errors} of {counts.num_rows} rows failed, more than run.max_error_rate "
            f"{config.run.max_error_rate}{_commonest_error(run_directory, config.run.logs)}. All messages are in "
            f"{run_directory.location.child('errors').name}, and `dray retry --dry-run` sums them up. "
            "If the cause can be mended without other input or sampling (storage, memory, a fault of ours), mend it, "
            "and `dray retry` runs the failed rows again; else mend the input or the configuration and use a new "
            "output directory. Or accept them with a higher run.max_error_rate"
        )


def _commonest_error(run_directory: RunDirectory, logs: LogSettings) -> str:
    """Return the commonest error of all rows that failed so far, to follow a text; nothing if it cannot be read."""
    try:
        failed = find_dead_letters(run_directory, Wanted())
    except (ValueError, OSError):  # the error that is being told matters more
        return ""
    found = failed.messages
    if logs.format == "json" and not logs.prompts:  # a message may quote its row
        found = Counter({f"{error} at stage {stage!r}": num for (stage, error), num in failed.num_rows.items()})
    return "".join(
        f"; the commonest error so far (rows: {num:,}) is: {shown(text)}" for text, num in found.most_common(1)
    )


def _explain(error: Exception) -> str:
    if isinstance(error, ray.exceptions.RayTaskError):
        return describe(error)
    if isinstance(error, NoProgressError):
        return (
            "no unit was committed for run.no_progress_timeout_s: a process is frozen, the cluster has no room for an "
            "actor, or units take longer than that; then set it higher (smaller units need a new run)"
        )
    if isinstance(error, UnitError | ValueError):
        return str(error)
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError):
        return f"actors died again and again at one unit ({type(error).__name__}); out of memory, or a row kills them"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


@contextmanager
def command_logs(settings: LogSettings, run: str) -> Iterator[None]:
    """Log to stderr while the block runs. If the format is JSON, each line that is printed there becomes an event."""
    if settings.format == "json":
        stderr = sys.stderr
        with logs_to(stderr, settings, run=run), redirect_stderr(cast(TextIO, _EventStream(stderr))):
            yield
    else:
        quiet = replace(settings, level="warning") if settings.level in ("debug", "info") else settings
        with logs_to(None, quiet):
            yield


def log_run_started(run_directory: RunDirectory, num_units_to_do: int) -> None:
    """Log which run begins or goes on, and what it has to do."""
    whole = run_directory.manifest
    _log.info(
        Event(
            "run started",
            output=run_directory.location.name,
            identity=run_directory.identity_digest,
            units=whole.num_units,
            rows=whole.num_rows,
            units_to_do=num_units_to_do,
        )
    )


class _EventStream(io.TextIOBase):
    """A text stream whose lines become log events: errors if the text begins as an error message, else warnings.

    All lines of one text have the level of its first line, which the others explain.
    """

    def __init__(self, stderr: TextIO) -> None:
        self._stderr, self._line, self._level = stderr, "", logging.WARNING

    def write(self, text: str) -> int:
        if not self._line and text.strip():
            self._level = logging.ERROR if text.startswith(("error:", "problem:")) else logging.WARNING
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(None, map(str.strip, lines)):
            _log.log(self._level, Event("said", text=line))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the descriptor of the real stderr, to which native code goes on writing."""
        return self._stderr.fileno()
