"""The result of tuning, for a reader: a table, bars, and the setting to take."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jobs.report_page.numbers import format_length
from jobs.work.tuning.setting import Setting
from jobs.work.tuning.trials import Trials

HEADINGS = ("slots", "thr", "dtype", "tok/s", "times", "spread", "len", "GiB", "1M rows")
_MILLION = 1_000_000
_NUM_BARS = 8
_BAR = 24  # characters of the longest one
_LEGEND = (
    "times: speed as a multiple of plain decoding with the run's settings (median; spread: least and most); len: "
    "tokens a round; GiB: weights and cache; 1M rows: hours of one engine for a million rows of these prompts"
)


def shown(trials: Trials, settings: Seq[Setting], best: Setting) -> Iterator[Table | Text | str]:
    """Yield a table with a line for each setting, bars, and what a reader should know of them."""
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=False)
    table.add_column("drafter", overflow="fold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for setting in settings:
        spread, counts = trials.spread(setting), trials.passes[setting][-1].counts
        table.add_row(
            setting.drafts,
            str(setting.slots),
            str(setting.threads),
            setting.dtype,
            f"{trials.speed(setting):,.0f}",
            format_length(trials.times_plain(setting)),
            f"{min(spread):.2f}-{max(spread):.2f}" if len(spread) > 1 else "once",
            format_length(counts.mean_acceptance_length),
            f"{sum(each.total for each in setting.footprints(trials.settings)) / 2**30:.2f}",
            f"{trials.hours(setting, _MILLION):,.1f} h",
            style="bold" if setting == best else "",
        )
    yield table
    yield ""
    most = max(map(trials.speed, settings))
    for setting in settings[:_NUM_BARS]:
        bar = "█" * round(_BAR * trials.speed(setting) / most)
        yield Text(f"{bar:{_BAR}} {trials.times_plain(setting):.2f} {setting}", overflow="ellipsis", no_wrap=True)
    yield ""
    yield _LEGEND
    yield from _cautions(trials)
    yield from _promises(trials, settings)
    yield f"noise: {trials.noise_in_words}"
    yield Text(_verdict(trials, best), style="bold")


def _verdict(trials: Trials, best: Setting) -> str:
    """Return what to take, and why."""
    spread = trials.spread(best)
    rate = f"{trials.times_plain(best):.2f} times plain ({min(spread):.2f} to {max(spread):.2f})"
    other = "" if best.dtype == trials.plain.dtype else f"; in {best.dtype} the target writes another text"
    if all(setting.drafter == "none" for setting in trials.passes):
        return f"no draft was tried in this time; give more (--tune.seconds). The best without: {best}: {rate}{other}"
    if best.drafter == "none":
        return f"take none: no draft pays beyond the noise. The best: {best}: {rate}{other}"
    return f"take {best}: {rate}{other}"


def _promises(trials: Trials, settings: Seq[Setting]) -> Iterator[str]:
    """Yield for each dtype that the texts are the same, or why they were not compared."""
    for dtype in dict.fromkeys(setting.dtype for setting in settings):
        num_settings = sum(setting.dtype == dtype for setting in settings)
        if trials.is_promised(dtype):
            yield f"texts: identical, token for token, in {num_settings} settings ({dtype})"
        else:
            yield f"texts: not compared in {dtype}: here they may depend on drafts and batch (docs/promise.md)"


def _cautions(trials: Trials) -> Iterator[str]:
    """Yield what the figures are of, and what they do not contain."""
    rows, lengths = trials.rows, list(map(len, trials.texts[trials.plain.dtype]))
    yield f"measured: {rows.num_rows} rows from all over the input, {sum(lengths):,} tokens"
    if rows.left_out:
        yield f"left out: {len(rows.left_out)} rows that cannot be written; the first: {rows.left_out[0]}"
    if trials.ruled_out:
        yield f"left out, as memory ran out: {'; '.join(map(str, trials.ruled_out))}"
    if rows.is_cut:
        yield (
            f"cut: {lengths.count(rows.max_tokens)} of {len(lengths)} texts end after {rows.max_tokens} tokens, to "
            "save time; whole ones take longer, and drafts that are looked up gain more in them (--tune.seconds)"
        )
