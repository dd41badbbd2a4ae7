"""The charts of a run's page: matplotlib draws them as SVG, and the page's style sheet colours them.

Each colour is a placeholder that becomes a variable of the style sheet, so that one drawing is right in the light and
in the dark. Bars of a second kind are hatched and lines have markers, so that nothing is told by colour alone.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jobs.report_page.facts import Group, Timeline
from jobs.report_page.rounds import RecordedRounds

_INK, _QUIET, _LINE, _PANEL, _FIRST, _SECOND = (f"#{number:02x}{number:02x}{number:02x}" for number in range(1, 7))
_VARIABLES = {_INK: "ink", _QUIET: "quiet", _LINE: "line", _PANEL: "panel", _FIRST: "first", _SECOND: "second"}
_STYLE = Path(__file__).with_name("charts.mplstyle")
_HATCH = "////"
_NUM_BINS = 48  # of the throughput, at most
_MAX_KINDS = 12  # bars


def throughput(timeline: Timeline) -> Markup:
    """Return tokens a second over the time of the run."""
    num_bins = max(6, min(_NUM_BINS, 2 * len(timeline)))
    edges, speeds = timeline.tokens_per_second(num_bins)
    units: Sequence[tuple[str, float]] = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
    unit, seconds = next((each for each in units if edges[-1] >= 2 * each[1]), ("seconds", 1.0))

    def draw(axes: Axes) -> None:
        axes.stairs(speeds, edges / seconds, fill=True, color=_FIRST, alpha=0.25, linewidth=0)
        axes.stairs(speeds, edges / seconds, color=_FIRST, linewidth=1.6)
        axes.set_xlabel(f"{unit} since the first unit began")
        axes.set_ylabel("tokens a second")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, float(edges[-1]) / seconds)
        _thousands(axes)

    highest = f"{speeds.max():,.0f}"
    return _svg("throughput", f"Tokens a second over {edges[-1] / seconds:.1f} {unit}, at most {highest}.", draw)


def acceptance_by_position(rounds: RecordedRounds) -> Markup:
    """Return how often each position of the draft was accepted, and how often one constant chance would have it."""
    drafted = Counter[int]()
    accepted = Counter[int]()
    for (length, taken), number in rounds.num_rounds.items():
        drafted.update(dict.fromkeys(range(1, length + 1), number))
        accepted.update(dict.fromkeys(range(1, taken + 1), number))
    places = sorted(drafted)
    shares = [accepted[place] / drafted[place] for place in places]
    predicted = [(rounds.acceptance or 0.0) ** place for place in places]

    def draw(axes: Axes) -> None:
        axes.bar(places, shares, 0.62, color=_FIRST, label="measured")
        axes.plot(places, predicted, "--D", color=_SECOND, markerfacecolor=_PANEL, markersize=5, label="predicted")
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("share accepted")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes)

    said = ", ".join(f"{place}: {share:.2f}" for place, share in zip(places, shares, strict=True))
    return _svg("positions", f"Share of draft tokens accepted by position: {said}.", draw)


def draft_lengths(rounds: RecordedRounds) -> Markup:
    """Return how many tokens rounds drafted, and in how many of them all were accepted."""
    lengths, totals, whole = zip(*rounds.by_drafted(), strict=True)
    parts = [total - all_ for total, all_ in zip(totals, whole, strict=True)]

    def draw(axes: Axes) -> None:
        axes.bar(lengths, whole, 0.62, color=_FIRST, label="all accepted")
        axes.bar(lengths, parts, 0.62, bottom=whole, color=_SECOND, hatch=_HATCH, linewidth=0, label="some rejected")
        axes.set_xlabel("tokens drafted in a round")
        axes.set_ylabel("rounds")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _thousands(axes)
        _legend(axes)

    said = ", ".join(f"{length}: {total:,}" for length, total in zip(lengths, totals, strict=True))
    return _svg("drafts", f"Rounds by the number of tokens that they drafted: {said}.", draw)


def mean_lengths(groups: Mapping[str, Group]) -> Markup:
    """Return the mean acceptance length of each kind, and what one constant chance of acceptance predicts."""
    shown = list(groups.items())[:_MAX_KINDS][::-1]
    names = [name or "all rows" for name, _ in shown]
    names = [name if len(name) <= 22 else name[:21] + "…" for name in names]
    measured = [group.counts.mean_acceptance_length or 0.0 for _, group in shown]
    predicted = [(row, group.rounds.predicted_length) for row, (_, group) in enumerate(shown)]

    def draw(axes: Axes) -> None:
        rows = range(len(shown))
        axes.barh(rows, measured, 0.55, color=_FIRST, label="measured")
        known = [(length, row) for row, length in predicted if length is not None]
        if known:
            lengths, places = zip(*known, strict=True)
            style: dict[str, Any] = {"markerfacecolor": _PANEL, "markersize": 6, "label": "predicted"}
            axes.plot(lengths, places, "D", color=_SECOND, **style)
        for row, length in zip(rows, measured, strict=True):
            axes.text(0.06, row, f"{length:.2f}", color=_PANEL, va="center", fontsize=9.5, fontweight="bold")
        axes.set_yticks(list(rows), names)
        axes.tick_params(axis="y", labelcolor=_INK, length=0)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlim(0, max([*measured, *(length or 0.0 for _, length in predicted)]) * 1.08)
        axes.set_xlabel("tokens a round")
        _legend(axes)

    said = ", ".join(f"{name or 'all rows'} {group.counts.mean_acceptance_length or 0:.2f}" for name, group in shown)
    return _svg("kinds", f"Mean acceptance length: {said}.", draw)


def lengths(counted: Counter[int], what: str, name: str) -> Markup:
    """Return how many texts have which number of tokens."""
    longest, total = max(counted), counted.total()
    width = max(1, -(-(longest + 1) // 24))
    bins = [0] * (longest // width + 1)
    for length, number in counted.items():
        bins[length // width] += number
    middle = _middle(counted)

    def draw(axes: Axes) -> None:
        places = [width * (place + 0.5) for place in range(len(bins))]
        axes.bar(places, bins, 0.92 * width, color=_FIRST)
        axes.axvline(middle, color=_SECOND, linestyle=":", linewidth=1.6)
        axes.set_xlabel(f"tokens of {what} (median {middle:,})")
        axes.set_ylabel("texts")
        axes.set_xlim(0, width * len(bins))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        _thousands(axes)

    return _svg(name, f"Lengths of {total:,} texts in tokens: median {middle:,}, longest {longest:,}.", draw)


def _middle(counted: Counter[int]) -> int:
    """Return the median length, from the counts alone: a run may have a billion texts."""
    lengths = sorted(counted)
    sums = accumulate(counted[length] for length in lengths)
    return next(length for length, reached in zip(lengths, sums, strict=True) if 2 * reached >= counted.total())


def _svg(name: str, said: str, draw: Callable[[Axes], None]) -> Markup:
    """Return what `draw` draws as an element of a page, for people who do not see it described by `said`."""
    with matplotlib.rc_context({"svg.hashsalt": name}, _STYLE):
        figure = Figure(figsize=(4.1, 2.65), layout="constrained")
        draw(figure.add_subplot())
        file = StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    drawn = file.getvalue()
    body = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    view = re.search(r'viewBox="[^"]*"', drawn)
    assert view is not None, "matplotlib says how large its drawing is"
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    body = body.replace('id="', f'id="{name}-').replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    body = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1", body)  # the family is the page's
    body = body.replace("xlink:href", "href")
    return Markup(f'<svg {view[0]} role="img" aria-label="{escape(said)}">{body}')


def _thousands(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _legend(axes: Axes) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, handlelength=1.6, borderpad=0, columnspacing=1.4
    )
