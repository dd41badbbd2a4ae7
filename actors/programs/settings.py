"""ProgramSettings: the program that each row runs, as a configuration names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """A program in place of one generation: each row may ask for several, and calls tools between them."""

    function: str | None = None
    """Program that each row runs, as `module:function`, an `async def function(generate, row)` in a module that all
    nodes can import; unless given, a row is one generation."""
    max_turns: int = 64
    """Generations that one sample of a row may ask for; a program that asks for more makes an error row."""
    timeout_s: float = 1800.0
    """Seconds that one sample of a row may take; a program that takes longer makes an error row."""

    def __post_init__(self) -> None:
        if self.function is not None:
            module, mark, function = self.function.partition(":")
            names = [*module.split("."), function]
            if not mark or not all(name.isidentifier() for name in names):
                raise ValueError(f"program.function must be 'module:function', got {self.function!r}")
        if self.max_turns < 1:
            raise ValueError(f"program.max_turns must be at least 1, got {self.max_turns}")
        if not self.timeout_s > 0:
            raise ValueError(f"program.timeout_s must be above 0 seconds, got {self.timeout_s}")
