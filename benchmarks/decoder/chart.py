"""A chart of a report: tokens a second of every configuration, batch by batch, as bars; the ideal as a line above."""

from pathlib import Path

from benchmarks.decoder.results import Report

_COLORS = {"plain": "#6b7280", "adaptive": "#2563eb", "fixed": "#93c5fd", "transformers": "#f59e0b"}
_OTHER = "#10b981"


def draw(report: Report, path: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    batches = sorted({result.batch for result in report.results if result.seconds})
    figure, panels = pyplot.subplots(
        1, len(batches), figsize=(5.2 * len(batches), 6.5), squeeze=False, layout="constrained"
    )
    for batch, panel in zip(batches, panels[0], strict=True):
        shown = [result for result in report.results if result.batch == batch and result.seconds]
        for height, result in enumerate(reversed(shown)):
            speed = result.tokens_per_second or 0.0
            panel.barh(height, speed, color=_COLORS.get(result.name.split("-")[0], _OTHER))
            if result.ideal_tokens_per_second:
                panel.vlines(result.ideal_tokens_per_second, height - 0.4, height + 0.4, color="black", linewidth=1.2)
            panel.annotate(f" {speed:,.0f}", (speed, height), va="center", fontsize=8)
        panel.set_yticks(range(len(shown)), [result.name for result in reversed(shown)], fontsize=8)
        panel.set_title(f"batch {batch}", fontsize=10)
        panel.set_xlabel("output tokens a second")
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.15)
    options = report.options
    figure.suptitle(
        f"{report.pair['folder']}, {options['dtype']}, corpus {options['corpus']}, "
        f"temperature {options['temperature']}, on {report.place}; black: the run's forwards alone",
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
