"""The shapes of commands: one does the work of a configuration, the other something with a run that is there."""

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import wraps
from pkgutil import resolve_name
from typing import Any, TypeVar

import pyarrow as pa

from jobs.driver.stopping import Exit, bad_configuration, interrupted, sigterm_interrupts
from jobs.names import called, tell, wrapped
from jobs.shadows import refuse_shadows_of_workers
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import LeaseHeld
from pipeline.run.unit_rows import IncompleteRunError

_Config = TypeVar("_Config")
_Add = Callable[[argparse.ArgumentParser], object]  # adds an argument to a parser
_OfRun = Callable[[RunDirectory, argparse.Namespace], int]
Main = Callable[..., int]  # a command: of its arguments, by default those of this process; it returns its exit code


class Refused(Exception):
    """What the user asks for cannot begin."""


def configured(name: str, kind: type[_Config], work: str, read: Callable[..., _Config] | None = None) -> Main:
    """Return the command that does `work`, "module:function", with a configuration of this kind.

    `read`, by default `jobs.config.loading.load`, takes the kind, the arguments, and the name of the command. The
    module is imported behind it: that takes seconds, in which `--help` and a wrong configuration have long been
    answered.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        with sigterm_interrupts():
            try:
                reader = resolve_name("jobs.config.loading:load") if read is None else read
                config = reader(kind, sys.argv[1:] if arguments is None else arguments, called(name))
                refuse_shadows_of_workers()
                was_on = gc.isenabled()
                gc.disable()  # all that modules make while they are imported stays, and looking at it costs an eighth
                try:
                    do = resolve_name(work)
                finally:
                    if was_on:
                        gc.enable()
            except (ValueError, OSError) as error:
                return bad_configuration(error)
            except KeyboardInterrupt:
                return interrupted()
            try:
                return int(do(config))
            except KeyboardInterrupt:  # of a command that has nothing to end well
                return interrupted()

    return main


def with_options(name: str, explanation: str | None, work: str, *arguments: _Add) -> Main:
    """Return the command that does `work`, "module:function", with its options. `--help` does not import the module."""

    def main(given: Sequence[str] | None = None) -> int:
        options = _parsed(name, explanation, arguments, given)
        return int(resolve_name(work)(options))

    return main


def on_run(
    name: str,
    explanation: str | None,
    *arguments: _Add,
    once_interrupted: str | None = None,
    open_run: Callable[[str], AbstractContextManager[RunDirectory]] = lambda path: nullcontext(RunDirectory.open(path)),
) -> Callable[[_OfRun], Main]:
    """Return a decorator that makes a function of an opened run, which comes first, and of options into a command.

    The exit code is 2 for what the function refuses in `refusals`, 1 for another error, and 3 if it was interrupted and
    `once_interrupted` says what that means.
    """
    place = argument("run", metavar="RUN", help="run directory, local or a URI (s3://, gs://)")

    def command(work: _OfRun) -> Main:
        @wraps(work)
        def main(given: Sequence[str] | None = None) -> int:
            options = _parsed(name, explanation, (place, *arguments), given)
            try:
                with ExitStack() as stack:
                    with refusals():
                        run_directory = stack.enter_context(open_run(options.run))
                    return work(run_directory, options)
            except (Refused, ValueError, OSError, pa.ArrowException, LeaseHeld) as error:
                tell(f"error: {error}")
                return Exit.BAD_CONFIGURATION if isinstance(error, Refused) else Exit.FAILED
            except KeyboardInterrupt:
                if once_interrupted is None:
                    raise
                return interrupted(f"; {once_interrupted}")

        return main

    return command


@contextmanager
def refusals() -> Iterator[None]:
    """Take an error of the block as Refused, unless the run is incomplete: that is the run's fault."""
    try:
        yield
    except IncompleteRunError:
        raise
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error


def argument(*names: str, **options: Any) -> _Add:
    """Return what adds an argument, given as to argparse."""
    return lambda parser: parser.add_argument(*names, **options)


def number(text: str) -> int:
    """Read a number from 1 on."""
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")


WRITES_AGAIN = (  # arguments of a command that writes rows of a run again
    argument("--model", metavar="MODEL", help="target, where it is not at the place that run.json names"),
    argument("--tokenizer", metavar="FOLDER", help="tokenizer, unless it is the target's own"),
    argument("--input", nargs="+", metavar="PATH", help="input, where it is not at the place that run.json names"),
    argument("--device", choices=("cpu", "cuda"), help="where to run; unless given as the run"),
    argument("--slots", type=number, metavar="N", help="rows at once; unless given as the run"),
)


def size(text: str) -> int:
    """Read a number of bytes from a text such as "200MB"."""
    from pydantic import ByteSize, TypeAdapter  # here, since few commands read sizes, and it takes long

    with suppress(ValueError):
        if (num_bytes := TypeAdapter(ByteSize).validate_python(text)) >= 1:
            return int(num_bytes)
    raise argparse.ArgumentTypeError(f"expected a size such as 200MB or 1GiB, got {text!r}")


def _parsed(
    name: str, explanation: str | None, arguments: Sequence[_Add], given: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=called(name),
        description=wrapped(explanation or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add in arguments:
        add(parser)
    return parser.parse_args(given)
