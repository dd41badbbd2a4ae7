"""How pages and terminals write numbers."""

import shlex
from collections.abc import Callable


def count(number: float) -> str:
    """Return a number with its thousands apart."""
    return f"{number:,.0f}"


def format_rate(rate: float | None) -> str:
    """Return a share of 1 with three places; a dash for none."""
    return "-" if rate is None else f"{rate:.3f}"


def format_length(length: float | None) -> str:
    """Return a mean length, or another number, with two places; a dash for none."""
    return "-" if length is None else f"{length:.2f}"


def duration(seconds: float | None) -> str:
    """Return a time in the two units that suit it, such as 1 h 20 min; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def size(num_bytes: float) -> str:
    """Return a number of bytes in GB."""
    return f"{num_bytes / 1e9:.2f} GB"


def percent(number: float) -> str:
    """Return a share as a width of a style sheet."""
    return f"{100 * number:.2f}%"


def on_one_line(text: str) -> str:
    """Return a text with its line breaks as arrows."""
    return text.replace("\r", "").replace("\n", "↵")


FILTERS: dict[str, Callable[..., str]] = {each.__name__: each for each in (count, duration, size, percent, on_one_line)}
FILTERS |= {"share": format_rate, "two": format_length, "quoted": shlex.quote}
