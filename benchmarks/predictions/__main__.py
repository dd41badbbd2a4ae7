"""What known texts save: `python -m benchmarks.predictions`, rows written anew and with their old texts as drafts.

Kinds of work, each beside the same rows anew, in turns:

- `audit`: the old text is the text, as in `dray audit` and `dray show --regenerate`;
- `reuse`: a word of the system prompt has changed, as in a run with `run.reuse`;
- `weights 0.01`: the old texts are those of other weights, which are the target's with noise of 0.01 of the standard
  deviation of each matrix. `--noises` has these shares. With the first one about a tenth of the bundled target's texts
  change, with the last one about all.

Anew is plain decoding, and `suffix`, which looks drafts up in what it has written (as a run without a draft does). All
must write the same. Plain decoding takes part twice: how far the second time is from the first one tells how exact the
table is. One row at a time every eighth prompt is written, and `times one row` is beside plain decoding of one row.
"""

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from itertools import product
from operator import ne
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.drafts import PAIR, PROMPTS, TWIN, token_ids
from benchmarks.engines_in_turns import line_of, load_beside, require_same_text
from benchmarks.harness import interleaved, listed, parser_of, show_lines
from benchmarks.roofline.hardware import describe_machine, record
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.checkpoint.supported import model_folder
from decoding.common_prefix import common_prefix
from decoding.engine.load import Parts
from jobs.work.tuning.engine_turns import engine_way

_SYSTEM, _CHANGED = "You are a helpful assistant.", "You are a friendly assistant."
_WITH, _ANEW = "with old texts", "suffix"
_FEWER = 8  # with one row at a time, every eighth prompt is written
COLUMNS = (
    ("work", "work", ""),
    ("dtype", "dtype", ""),
    ("rows at once", "rows_at_once", ""),
    ("rows", "rows", ","),
    ("tokens", "tokens", ","),
    ("rows changed", "changed", ".0%"),
    ("unchanged at first", "unchanged", ".1%"),
    ("tokens a round", "tokens_a_round", ".1f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times plain", "times_plain", ".2f"),
    ("least", "least_times_plain", ".2f"),
    ("times suffix", "times_suffix", ".2f"),
    ("times one row", "times_one_row", ".1f"),
)


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("predictions", __doc__)
    flag = parser.add_argument
    flag("--target", default=str(PAIR / "target"), help="folder, hub name or GGUF file")
    flag("--prompts", type=Path, default=PROMPTS, help="lines as of the demo")
    flag("--rows", type=int, default=200)
    flag("--batches", type=listed(int), default=(1, 16), help="rows at once")
    flag("--works", type=listed(str), default=("audit", "reuse", "weights"))
    flag("--noises", type=listed(float), default=(0.001, 0.01, 0.1), help="of other weights, by the target's deviation")
    flag("--dtypes", type=listed(str), default=("float32", "bfloat16"))
    flag("--new-tokens", type=int, default=100, help="most output tokens of a row")
    flag("--temperature", type=float, default=0.0)
    flag("--device", default="cpu")
    flag("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    flag("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    asked = options.prompts.read_text().splitlines()[: options.rows]
    tokenizer = AutoTokenizer.from_pretrained(model_folder(options.target))
    prompts = {system: [_token_ids(tokenizer, system, line) for line in asked] for system in (_SYSTEM, _CHANGED)}
    lines: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="dray-other-weights-") as folder:
        noises = options.noises if "weights" in options.works else ()
        others = {noise: _with_noise(options.target, Path(folder), noise) for noise in noises}
        for dtype, batch in product(options.dtypes, options.batches):
            some = {system: each[:: _FEWER if batch == 1 else 1] for system, each in prompts.items()}
            lines += [line | {"dtype": dtype} for line in _lines(some, others, dtype, batch, options)]
    _beside_one_row(lines)
    machine = describe_machine()
    where = f"{machine['processor']}, {machine['threads']} threads"
    target = Path(options.target).stem
    show_lines(f"{target}, {where}, temperature {options.temperature:g}", COLUMNS, lines)
    settings = {name: getattr(options, name) for name in ("temperature", "new_tokens", "repeats", "noises")}
    record(options.json, settings=settings | {"target": target}, lines=lines)


def _lines(
    prompts: dict[str, list[list[int]]], others: dict[float, str], dtype: str, batch: int, options: Any
) -> list[dict[str, Any]]:
    """Return a line for each work with this many rows at once. `others` are folders of weights, by their noise."""
    params = SamplingParams(temperature=options.temperature, max_tokens=options.new_tokens)
    longest = max(len(prompt) for each in prompts.values() for prompt in each) + options.new_tokens + 1
    plain = EngineOptions(num_slots=batch, max_model_len=longest, drafter="none")
    looks_up = replace(plain, drafter="suffix")
    how = {"none": plain, TWIN: plain, _ANEW: looks_up, _WITH: looks_up}
    where = options.device, dtype
    parts = dict(zip(how, load_beside(options.target, [(None, each) for each in how.values()], *where), strict=True))

    def rows(system: str, old: Seq[Seq[int]] = ()) -> list[Sequence]:
        own = [Sequence.create(prompt, params, row=row) for row, prompt in enumerate(prompts[system])]
        for sequence, text in zip(own, old, strict=False):
            sequence.prediction = tuple(text)
        return own

    def texts(target: Parts) -> list[list[int]]:
        written = rows(_SYSTEM)
        list(Engine.over(target, plain).stream(written))
        return [sequence.output_token_ids for sequence in written]

    own_texts = texts(parts["none"])
    works = {work: (_SYSTEM if work == "audit" else _CHANGED, own_texts) for work in options.works if work != "weights"}
    for noise, other in others.items():
        works[f"weights {noise:g}"] = _SYSTEM, texts(load_beside(other, [(None, plain)], *where)[0])
    found = []
    for work, (system, old) in works.items():
        known = {name: old if name == _WITH else () for name in how}
        makers = {name: partial(Engine.over, parts[name], own) for name, own in how.items()}
        ways = {name: engine_way(make, partial(_again, rows, system, known[name])) for name, make in makers.items()}
        table = interleaved(ways, options.repeats, f"{work}, {dtype}, {batch} rows at once")
        for name in ways:
            require_same_text(table, name, "none")
            last = table.passes[name][-1]
            num_tokens = last.counts.num_output_tokens
            found.append(
                line_of(table, name, "none")
                | {
                    "work": work if name == _WITH else f"{work}: {name}",
                    "rows_at_once": batch,
                    "rows": len(old),
                    "tokens": num_tokens,
                    "changed": sum(map(ne, old, last.outputs)) / len(old),
                    "unchanged": sum(map(common_prefix, old, last.outputs)) / max(1, num_tokens),
                    "times_suffix": median(table.ratios(name, _ANEW)),
                }
            )
    return found


def _beside_one_row(lines: Seq[dict[str, Any]]) -> None:
    """Add to each line its speed beside plain decoding of one row at a time, where that was measured."""
    alone = {(line["work"], line["dtype"]): line["tokens_per_second"] for line in lines if line["rows_at_once"] == 1}
    for line in lines:
        plain = alone.get((line["work"].partition(":")[0] + ": none", line["dtype"]))
        line["times_one_row"] = None if plain is None else line["tokens_per_second"] / plain


def _with_noise(target: str, folder: Path, noise: float) -> str:
    """Save the target with normal noise on its matrices, by this share of their deviation; return the new folder."""
    network = AutoModelForCausalLM.from_pretrained(model_folder(target), dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in network.parameters():
            if weights.ndim > 1:
                weights += noise * weights.std() * torch.randn(weights.shape, generator=generator)
    place = folder / f"{noise:g}"
    network.save_pretrained(place)
    return str(place)


def _again(
    rows: Callable[[str, Seq[Seq[int]]], list[Sequence]], system: str, old: Seq[Seq[int]], repeat: int
) -> list[Sequence]:
    return rows(system, old)


def _token_ids(tokenizer: Any, system: str, line: str) -> list[int]:
    """Return the token ids of a line of the demo's input, as a chat with this system prompt."""
    row = json.loads(line)
    own = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
    return token_ids(tokenizer, json.dumps({"messages": [{"role": "system", "content": system}, *own]}))


if __name__ == "__main__":
    main()
