"""The tables of figures in documents, of recorded files: what `checks.figures` writes and compares."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.counts import Counts

COUNTED = ("num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens")
_OF_HEADS = "drafts --heads out/heads"  # the benchmark that measures them
PEERS = {  # configurations of benchmarks.decoder
    "transformers-looped": "transformers",
    "transformers-batched": "transformers, batched",
    "openvino": "openvino-genai",
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
}


def demo_table(lines_by_draft: dict[str, list[dict[str, str]]], heads: dict[str, Any]) -> str:
    """Return README's table: for each kind the sum of the lines, with each draft. The text is the same with all.

    Beside them stand the lengths of heads that were trained here, and below what all was measured with.
    """
    trained = {(line["draft"], line["kind"]): line["tokens_a_round"] for line in heads["lengths"]}
    names = [name for name in dict.fromkeys(name for name, _ in trained) if name not in lines_by_draft]
    sums: dict[str, dict[str, Counts]] = {}
    for draft, lines in lines_by_draft.items():
        for line in lines:
            per_position = tuple(map(int, line["accepted_per_position"].split()))
            counts = Counts(
                num_generations=1, accepted_per_position=per_position, **{name: int(line[name]) for name in COUNTED}
            )
            of_kind = sums.setdefault(line["kind"], dict.fromkeys(lines_by_draft, Counts()))
            of_kind[draft] += counts
    rows = [["kind", "rows", "tokens", *lines_by_draft, *names]]
    for kind, by_draft in sorted(sums.items()):
        first = next(iter(by_draft.values()))
        lengths = [f"{counts.mean_acceptance_length:.2f}" for counts in by_draft.values()]
        lengths += [f"{trained[name, kind]:.2f}" for name in names]
        rows.append([kind, str(first.num_generations), f"{first.num_output_tokens:,}", *lengths])
    where = _measured(heads, _OF_HEADS)
    return (
        f"{_markdown(rows)}\nThe first two are of `make demo` and `make demo-head` (float32, temperature 0.8), and the "
        "tests compare them with what your machine writes. The others are heads that are trained in some minutes, MTP "
        "head and assistant beside [targets of their own](examples/tiny_pair/README.md#other-heads), and the lengths "
        f"are those of the same prompts ({where}). "
    )


def speed_table(found: dict[str, Any]) -> str:
    """Return how fast plain decoding is, and each of the bundled drafts beside it, and where that was measured."""
    speeds = {(line["draft"], line["rows_at_once"]): f"{line['times_plain']:.2f}" for line in found["lines"]}
    speeds |= {("none", line["rows_at_once"]): _plain_speed(line) for line in found["lines"] if line["draft"] == "none"}
    drafts = dict.fromkeys(line["draft"] for line in found["lines"])
    rows = [["draft", *drafts]]
    for number in _numbers_at_once(found):
        rows.append([f"{rows_at_once(number)} at once", *(speeds[draft, number] for draft in drafts)])
    return (
        "Tokens a second of plain decoding, and how many times that each draft makes where each row drafts as much as "
        f"pays ({_measured(found, 'drafts')}):\n\n" + _markdown(rows)
    )


def heads_table(found: dict[str, Any]) -> str:
    """Return the acceptance lengths of heads that were trained here, and their speeds once they are measured."""
    speeds = {(line["draft"], line["rows_at_once"]): f"{line['times_plain']:.2f}" for line in found["lines"]}
    lengths = {(line["draft"], line["kind"]): f"{line['tokens_a_round']:.2f}" for line in found["lengths"]}
    kinds = dict.fromkeys(line["kind"] for line in found["lengths"])
    at_once = _numbers_at_once(found)
    rows = [["head", *kinds, *(f"{rows_at_once(number)} at once" for number in at_once)]]
    for head in dict.fromkeys(line["draft"] for line in found["lengths"]):
        times = (speeds[head, number] for number in at_once)
        rows.append([head, *(lengths[head, kind] for kind in kinds), *times])
    compared = ", and how many times plain decoding's speed it makes where each row drafts as much as pays"
    return (
        "The bundled EAGLE-3 head and [heads that are trained in some minutes](../examples/tiny_pair/README.md#other-"
        f"heads), each beside its own target: mean acceptance lengths with {found['settings']['fixed']} draft tokens "
        f"always{compared if at_once else ''} ({_measured(found, _OF_HEADS)}):\n\n" + _markdown(rows)
    )


def noise_table(found: dict[str, Any]) -> str:
    """Return the mean acceptance lengths of drafts that pick with the noise of the row, and of the same without."""
    rows = [["draft", "temperature", "with the noise", "without", "times"]]
    for line in found["noise"]:
        lengths = line["with_noise"], line["without_noise"]
        cells = (f"{line['temperature']:g}", *(f"{each:.2f}" for each in (*lengths, lengths[0] / lengths[1])))
        rows.append([line["draft"], *cells])
    return (
        f"Mean acceptance lengths with {found['settings']['of_noise']} draft tokens, on the texts of the demo "
        f"(`python -m benchmarks.trees`; {found['date']}, float32):\n\n" + _markdown(rows)
    )


def learned_table(found: dict[str, Any]) -> str:
    """Return what docs/learning.md says of a draft and a head that learned from a corpus of the bundled target."""
    names = {"before": "the draft before", "draft": "the draft after", "head": "the head"}
    heading = ["kind", *(f"{name}: {what}" for name in names.values() for what in ("match rate", "predicted", "live"))]
    rows = [heading]
    lines = {(line["draft"], line["kind"]): line for line in found["lines"]}
    for kind in dict.fromkeys(line["kind"] for line in found["lines"]):
        of_kind = [lines[name, kind] for name in names]
        cells = [(f"{x['match_rate']:.3f}", f"{x['predicted_length']:.2f}", f"{x['live_length']:.2f}") for x in of_kind]
        rows.append([kind, *(cell for each in cells for cell in each)])
    trained, machine = found["trained"], found["machine"]
    costs = "; ".join(
        f"{what} read {trained[name]['num_tokens']:,} tokens of {trained[name]['rows']:,} texts in "
        f"{trained[name]['steps']:,} steps and {trained[name]['seconds']:.0f} s"
        for name, what in (("draft", "the draft"), ("head", "the head"))
    )
    speeds = "; ".join(
        f"{line['draft']}, {line['rows_at_once']} at once: {line['tokens_per_second']:,.0f} ({line['times_plain']:.2f})"
        for line in found["speeds"]
    )
    where = f"{machine['processor']}, {found['date']}"
    return (
        f"Our figures, of `python -m benchmarks.learning` ({where}): the bundled target, {found['num_held_out_rows']} "
        f"held-out rows, mean acceptance lengths with four draft tokens. On one CPU {costs}.\n\n"
        + _markdown(rows)
        + f"\nTokens a second, and times plain decoding (`none`), where each row drafts as much as pays: {speeds}.\n"
    )


def forms_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return what docs/structured.md says of the cost of a form, and of forced tokens, in runs of benchmarks.forms."""
    outputs = {"schema": "a schema", "tight schema": "without white space"}
    heading = ["target", "rows at once", "draft", "no form: ms a round", "no form: tokens/s", *outputs.values()]
    rows = [[*heading, *(f"{name}: tokens a round" for name in outputs.values())]]
    for run in runs:
        settings = run["settings"]
        is_fixed = settings["draft_length"] == "fixed"
        lines = {(line["grown"], line["rows_at_once"], line["drafter"], line["output"]): line for line in run["lines"]}
        for grown, at_once, drafter in dict.fromkeys(key[:3] for key in lines):
            plain, *held = (lines[grown, at_once, drafter, output] for output in ("no form", *outputs))
            target = "bundled" if grown == 1 else f"bundled, layers {grown} times as wide"
            speeds = [f"{each['tokens_per_second']:,.0f} ({each['times_no_form']:.2f})" for each in held]
            draft = f"{drafter}, up to {settings['num_draft_tokens']} tokens always" if is_fixed else drafter
            cells = [target, str(at_once), draft, f"{plain['milliseconds_a_round']:.1f}"]
            rows.append([*cells, f"{plain['tokens_per_second']:,.0f}", *speeds, *map(_forced_tokens, held)])
    machine, settings = runs[0]["machine"], runs[0]["settings"]
    compiled = max(seconds for run in runs for seconds in run["compile_seconds"].values())
    return (
        f"Our figures, of `python -m benchmarks.forms` ({machine['processor']}, 1 thread, {runs[0]['date']}; float32, "
        f"temperature {settings['temperature']:g}, medians of {settings['repeats']}): records in JSON by the bundled "
        "pair. In brackets behind a speed it stands times the speed without a form and with the same draft; behind "
        "tokens a round, times those of a run in which forced tokens are no drafts. Each schema is compiled once, "
        f"before all rounds, in at most {1000 * compiled:.1f} ms here.\n\n" + _markdown(rows)
    )


def scale_table(found: dict[str, Any]) -> str:
    """Return what docs/scale.md says of the commands on a run: seconds, seconds of CPU and megabytes of each."""
    costs, machine = found["costs"], found["machine"]
    sizes = dict.fromkeys((cost["num_units"], cost["num_rows"], cost["delay_ms"]) for cost in costs)
    by_command = {(cost["command"], cost["num_units"], cost["num_rows"], cost["delay_ms"]): cost for cost in costs}
    heading = ["command"]
    for units, rows, delay in sizes:
        where = "disk" if delay is None else f"a store, {delay:g} ms a request"
        heading.append(f"{units:,} parts, {rows:,} rows, {where}")
    lines = [heading]
    for command in dict.fromkeys(cost["command"] for cost in costs):
        of_command = [by_command.get((command, *size)) for size in sizes]
        lines.append([f"`{command}`", *("-" if cost is None else _cost(cost) for cost in of_command)])
    loads = [cost["load"] for cost in costs]
    return (
        f"Seconds, seconds of CPU and megabytes (`python -m benchmarks.scale commands`; {machine['processor']}, "
        f"{machine['cpus']} CPUs, {found['date']}). Beside it {min(loads):.0f} to {max(loads):.0f} processes wanted "
        "these CPUs, so the seconds of CPU are what to compare.\n\n" + _markdown(lines)
    )


def predictions_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return what old texts bring as drafts, in runs of benchmarks.predictions: the bundled target and a real one."""
    numbers = list(dict.fromkeys((line["dtype"], line["rows_at_once"]) for run in runs for line in run["lines"]))
    rows = [["target", "work", *(f"{dtype}, {rows_at_once(number)} at once" for dtype, number in numbers)]]
    for run in runs:
        lines = {(line["work"], line["dtype"], line["rows_at_once"]): line for line in run["lines"]}
        name = run["settings"]["target"].replace("target", "bundled")
        for work in dict.fromkeys(work for work, *_ in lines):
            cells = [_times(lines.get((work, *number)), is_plain=work.endswith("none")) for number in numbers]
            rows.append([name, work.replace("none", "plain decoding"), *cells])
    settings = runs[-1]["settings"]
    where = dict.fromkeys(f"{run['machine']['processor']}, {run['date']}" for run in runs)
    repeats = " and ".join(str(run["settings"]["repeats"]) for run in runs)
    weights = (  # early figures do not have them
        "; before `weights` the texts were written by other weights, which are the target's with noise of this share "
        "of each matrix's deviation, and `suffix` looks drafts up without old texts"
    )
    return (
        "Tokens a second of plain decoding, and how many times that is reached with old texts (`python -m "
        f"benchmarks.predictions`; {' and '.join(where)}; 1 thread, greedy, up "
        f"to {settings['new_tokens']} tokens a row, medians of {repeats}). `audit` writes the same rows "
        f"again; before `reuse` one word of the system prompt changed{weights * ('noises' in settings)}. In brackets "
        "stands the share of its tokens before the first difference.\n\n" + _markdown(rows)
    )


def real_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return how fast plain decoding of real models is beside other systems, in runs of benchmarks.decoder."""
    rows = [["model", "dtype", "rows at once", "Dray", *PEERS.values()]]
    for run in runs:
        options, speeds = run["options"], real_speeds(run)
        for batch in options["batches"]:
            ours = speeds["plain", batch]
            beside = (speeds.get((peer, batch)) for peer in PEERS)
            cells = ["-" if theirs is None else f"{theirs:,.1f} ({ours / theirs:.2f})" for theirs in beside]
            rows.append([Path(options["pair"]).stem, options["dtype"], str(batch), f"{ours:,.1f}", *cells])
    machine, options = runs[0]["machine"], runs[0]["options"]
    where = f"{machine['processor']}, {_threads(machine)}, {runs[0]['date'].split()[0]}"
    return (
        "Tokens a second of plain decoding of two models as PyPI has them, and of other systems in turns with it, in "
        f"brackets how many times their speed Dray has (`make bench-real`; {where}; greedy, {options['new_tokens']} "
        f"tokens a row, medians of {options['repeats']}). In float32 Dray reads the codes of the file as they are and "
        "adds exact products; in bfloat16 it has weights of that type, as the others have of either. llama.cpp reads "
        "the codes and rounds activations to 8 bits, whatever the dtype: beside bfloat16 it reads less than half the "
        "bytes.\n\n" + _markdown(rows)
    )


def real_speeds(run: dict[str, Any]) -> dict[tuple[str, int], float]:
    """Return tokens a second by the system and the rows at once; plain decoding of ours is called plain."""
    return {(each["name"], each["batch"]): each["figures"]["tokens_per_second"] for each in run["results"]}


def self_tuning_table(found: dict[str, Any]) -> str:
    """Return how near a run whose drafters take turns comes to the best one of them, for each workload."""
    heading = ["workload", "temperature", "best fixed setting", "tokens/s", "times plain", "in turn", "best again"]
    rows = [[*heading, "led at the end"]]
    for line in found["lines"]:
        speeds = f"{line['tokens_per_second']:,.0f}", f"{line['times_plain']:.2f}"
        times = f"{line['times']:.3f}", f"{line['twin_times']:.3f}"
        rows.append([line["workload"], f"{line['temperature']:g}", line["best"], *speeds, *times, line["leader"]])
    settings, machine = found["settings"], found["machine"]
    clock = "seconds of the processor" if settings["clock"] == "cpu_seconds" else "seconds"
    return (
        f"`python -m benchmarks.self_tuning`; {machine['processor']}, {machine['threads']} thread, {found['date']}; "
        f"float32, {clock}, medians of {settings['repeats']}:\n\n" + _markdown(rows)
    )


def rows_at_once(number: int) -> str:
    """Return "1 row" or "16 rows"."""
    return f"{number} row{'s' if number > 1 else ''}"


def _numbers_at_once(found: dict[str, Any]) -> list[int]:
    return sorted({line["rows_at_once"] for line in found["lines"]})


def _plain_speed(line: dict[str, Any]) -> str:
    return f"{line['tokens_per_second']:,.0f} tokens/s"


def _measured(found: dict[str, Any], benchmark: str) -> str:
    """Return what figures of `benchmarks.drafts` were measured with: the command, the machine and its settings."""
    settings, machine = found["settings"], found["machine"]
    where = f"{machine['processor']}, {_threads(machine)}, {found['date']}"
    how = f"{settings['dtype']}, temperature {settings['temperature']:g}"
    repeats = f"; medians of {settings['repeats']}" if found["lines"] else ""
    return f"`python -m benchmarks.{benchmark}`; {where}; {how}{repeats}"


def _threads(machine: dict[str, Any]) -> str:
    return f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"


def _times(line: dict[str, Any] | None, *, is_plain: bool) -> str:
    if line is None:
        return "-"
    return _plain_speed(line) if is_plain else f"{line['times_plain']:.2f} ({line['unchanged']:.0%})"


def _cost(cost: dict[str, Any]) -> str:
    return f"{cost['seconds']:.0f} s, {cost['cpu_seconds']:.1f} s, {cost['megabytes']:.0f} MB"


def _forced_tokens(line: dict[str, Any]) -> str:
    times = line["tokens_a_round_times_not_forced"]
    return f"{line['tokens_a_round']:.2f}" + ("" if times is None else f" ({times:.2f})")


def _markdown(rows: list[list[str]]) -> str:
    """Return rows as a table of Markdown, the first one as its heading."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))
