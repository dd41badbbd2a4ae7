"""UserFunction: a function of the user, with its digest. A Program is one: it turns a row into several generations."""

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from actors.errors import text_of
from pipeline.errors import RowError


@dataclass(frozen=True)
class UserFunction:
    """A function that was found and has the right form."""

    name: str  # module:function
    run: Callable[..., Any]
    file: str

    field: ClassVar[str]  # that names it
    parameters: ClassVar[str]
    asked: ClassVar[str]  # how it is called, in words
    is_async: ClassVar[bool]

    @classmethod
    def load(cls, name: str) -> Self:
        """Import `module:function`. Raises ValueError, in one line, if that fails or it has another form."""
        module_name, _, function_name = name.partition(":")
        try:
            module = import_module(module_name)
        except (Exception, SystemExit) as error:  # the module is a program of the user: it may raise anything
            text = " ".join(text_of(error).split())
            raise ValueError(
                f"{cls.field} {name!r}: the module {module_name!r} cannot be imported "
                f"({type(error).__name__}: {text}); name a module on the path of Python, such "
                "as a file of the working directory"
            ) from error
        function = getattr(module, function_name, None)
        if function is None:
            raise ValueError(f"{cls.field} {name!r}: the module has no {function_name!r}")
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function) != cls.is_async:
            form = f"{'async ' * cls.is_async}def {function_name}({cls.parameters})"
            raise ValueError(f"{cls.field} {name!r}: expected `{form}`")
        try:
            inspect.signature(function).bind(*cls.parameters.split(", "))
        except TypeError as error:
            raise ValueError(f"{cls.field} {name!r}: it is called with {cls.asked} ({error})") from error
        return cls(name, function, str(inspect.getsourcefile(function)))

    @property
    def digest(self) -> str:
        """A sha256 of the function's file. Modules that it imports are not in it."""
        return hashlib.sha256(Path(self.file).read_bytes()).hexdigest()

    def line_of(self, error: BaseException) -> int | None:
        """Return the last line of the function's file that the error came through; None if it came through none."""
        lines, trace = [], error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.file:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        return lines[-1] if lines else None


class Program(UserFunction):
    """A function that turns a row into several generations."""

    field = "program.function"
    parameters, asked, is_async = "generate, row", "two arguments, generate and row", True


def failure_of(program: Program, error: BaseException) -> RowError:
    """Return the failure of a row whose program has ended with this error."""
    first = _first_of(error)
    line = program.line_of(first) or program.line_of(error)
    where = "" if line is None else f" (line {line} of {program.name})"
    group = "" if first is error else f"{text_of(error) or type(error).__name__}, the first: "
    return RowError("program", f"the program failed: {group}{_said_by(first)}{where}", type(error).__name__)


def _said_by(error: BaseException) -> str:
    """Return the message of an error, after its type where the message may say too little."""
    name, text = type(error).__name__, text_of(error)
    match error:
        case asyncio.CancelledError():
            return f"{name}: it cancelled its own task, or awaited one that was cancelled"
        case SystemExit() if text:
            return f"{name}: {text}"
    return text or name


def _first_of(error: BaseException) -> BaseException:
    """Return the first error in a group that is no group itself, however deep it is; of another error, the error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
