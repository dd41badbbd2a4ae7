"""What a script or a notebook calls: texts for rows, by a model that stays loaded between two calls."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from tqdm.auto import tqdm

from actors.settings import GeneratorSettings
from actors.workers.loose_rows import loose_schema
from dray.inputs import Rows, Source
from dray.model import Model, Out
from dray.options import CallOptions, DatasetOptions, ModelOptions, RowOptions, options_of
from jobs.driver.chosen import choose_drafter
from jobs.driver.plan import settled
from pipeline.schema import generations_table

if TYPE_CHECKING:
    import ray.data


@dataclass
class _Kept:
    """The model that was loaded last because `generate` or `stream` named it, and the settings that they gave."""

    settings: GeneratorSettings | None = None
    model: Model | None = None


_kept, _loading = _Kept(), Lock()


@overload
def generate(rows: Rows, model: str | Model, draft: str | None = None, **options: Any) -> pa.Table: ...
@overload
def generate(rows: ray.data.Dataset, model: str, draft: str | None = None, **options: Any) -> ray.data.Dataset: ...
def generate(
    rows: Any,
    model: str | Model,
    draft: str | None = None,
    *,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> Any:
    """Return what a model writes for these rows: a pyarrow table with the columns of a run, in the order of the rows.

    `rows` is a list of prompts, of chats (lists of messages) or of dicts; a table or a column of any library with the
    Arrow interface (pyarrow, pandas, polars, DuckDB); or the path or glob of files, which are read as a run reads them.
    `options` are fields of the sections `sampling` and `input` of the configuration (`temperature`, `max_tokens`, `n`,
    `stop`, `structured`; `prompt_column`, `id_column`, `carry_columns`), and those of `load_model`. A prompt is asked,
    as the message of a user, where the model has a chat template; `prompts_are="text"` lets the model go on with it.
    The texts are those of one line, `dray generate FILE OUT --model MODEL`, over the same rows with the same `seed`,
    token for token: what is not given is chosen by the same rules, `dtype` among them.

    `row_id` is the number of the row, from 0, and `sample` that of the text. A row that fails (a prompt that is too
    long, a message without a role) loses no other: it is one row of the table with `error_stage` and `error_message`,
    which are null in all others, and a warning says how many failed. What is wrong with the call itself, a model or an
    option, is a ValueError.

    `model` is loaded in this process. It stays loaded for the next call that names the same model with the same
    options, and makes room when another one is named; one of `load_model` may be given instead. `progress` says whether
    there is a bar; unless given there is one on a terminal and in a notebook.

    Of a `ray.data.Dataset` it returns a Dataset, which Ray Data streams through engines in actors and never collects;
    `options` may then be fields of the section `actors` too (`max_actors`, `num_gpus`). A dataset has no order, so
    there `row_id` is null and the noise of a row comes from its id, or from its prompt. On CPUs `dtype` is float32
    unless given: engines may be on machines of other kinds.

        table = dray.generate(["Once upon a time"], "path/to/target", "path/to/draft", temperature=0.8, max_tokens=50)
        print(table["text"][0])
    """
    if "ray.data" in sys.modules and isinstance(rows, sys.modules["ray.data"].Dataset):
        return _over_dataset(rows, model, draft, seed, options)
    source, finished = _begin(rows, model, draft, seed, options)
    outs: dict[int, Out] = {}
    with _bar(source.num_rows, progress) as bar:
        num_tokens = 0
        for row_id, out in finished:
            outs[row_id] = out
            num_tokens += sum(row.get("num_output_tokens", 0) for row in out)
            bar.set_postfix_str(f"{num_tokens:,} tokens", refresh=False)
            bar.update()
    if failed := [row_id for row_id in sorted(outs) if "error_message" in outs[row_id][0]]:
        first = f"of row {failed[0]}: {outs[failed[0]][0]['error_message']}"
        warnings.warn(f"{len(failed)} of {len(outs)} rows failed; error_message says why, {first}", stacklevel=2)
    in_order = [row for row_id in sorted(outs) for row in outs[row_id]]
    return generations_table(in_order, loose_schema(source.carried, source.id_type))


def stream(
    rows: Rows, model: str | Model, draft: str | None = None, *, seed: int = 0, **options: Any
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of `generate` as dicts, each input row with its samples as soon as it has finished.

    Rows are read as they are needed, so `rows` may be an iterator without an end. A loop that is left, by `break` or by
    an exception, drops what is under way.

        for row in dray.stream("questions.jsonl", "path/to/target", max_tokens=50):
            print(row["row_id"], row["error_message"] or row["text"])
    """
    source, finished = _begin(rows, model, draft, seed, options)
    schema = loose_schema(source.carried, source.id_type)
    return (row for _, out in finished for row in generations_table(out, schema).to_pylist())


def load_model(model: str, draft: str | None = None, **options: Any) -> Model:
    """Load a target, and its draft, for many calls of `generate` and `stream`, which take it in place of a name.

    `model` is a folder, a GGUF file or a name on the hub, `draft` a draft model or a draft head. `options` are fields
    of the sections `models`, `chat` and `engine` of the configuration: `device`, `dtype`, `system_prompt`, `drafter`,
    `num_slots`, `max_model_len`. Raises ValueError with the reason why the models cannot be run.

        writer = dray.load_model("path/to/target", drafter="suffix", num_slots=32)
        table = dray.generate(["Once upon a time"], writer, temperature=0.8)
    """
    return Model(options_of(ModelOptions, options, target=model, draft=draft).settings)


def _begin(
    rows: Rows, model: str | Model, draft: str | None, seed: int, given: Mapping[str, Any]
) -> tuple[Source, Iterator[tuple[int, Out]]]:
    """Return the rows, and what the model makes of each. Raises ValueError for what is wrong with the call."""
    options: RowOptions
    if isinstance(model, Model):
        if draft is not None:
            raise ValueError("the model is loaded already, with a draft or without; give the draft to load_model")
        options = options_of(RowOptions, given, seed=seed)
    else:
        options = call = options_of(CallOptions, given, target=model, draft=draft, seed=seed)
        with _loading:
            if _kept.model is None or _kept.settings != call.settings:
                _kept.settings = _kept.model = None
                gc.collect()  # before the next one is loaded: both may not fit
                _kept.model, _kept.settings = Model(call.settings), call.settings
            model = _kept.model
    source = Source.of(rows, options.input_of(model.settings), model.template_marks)
    return source, model.finished(source, options.sampling, options.seed)


def _over_dataset(dataset: Any, model: str | Model, draft: str | None, seed: int, given: Mapping[str, Any]) -> Any:
    """Return the dataset of generations."""
    from actors.workers.dataset_generator import generate as generate_dataset

    if isinstance(model, Model):
        raise ValueError("a Dataset is written by engines in actors of their own; name the model, by its path")
    options = options_of(DatasetOptions, given, target=model, draft=draft, seed=seed)
    settings, pool = settled(choose_drafter(options.settings)[0], options.actors, None)
    settings = replace(settings, sampling=options.sampling, seed=options.seed)
    return generate_dataset(dataset, settings, input_options=options.input_of(settings), pool=pool)


def _bar(num_rows: int | None, is_wanted: bool | None) -> Any:
    """Return a bar, which in a notebook without ipywidgets is a line of text."""
    is_shown = sys.stderr.isatty() or "ipykernel" in sys.modules if is_wanted is None else is_wanted
    return tqdm(total=num_rows, unit=" rows", disable=not is_shown, file=sys.stderr)
