"""`python -m jobs.export OUTPUT FILE`: a complete run as one JSONL file, in the order of its input.

--format openai-batch  the output of the OpenAI batch API: a line for every input row, its samples as choices; a row
                       that failed has its line, too, with "error" in place of "response"
--format jsonl         a line for every generation: id, row_id, sample, prompt, text, finish_reason, counts and carried
                       columns; rows that failed go to a file of their own, out.errors.jsonl beside out.jsonl

A file appears whole or not at all; one that is there is replaced.
"""

import argparse
import os
import sys

from jobs.commands import argument, on_run, refusals
from pipeline.export.jsonl import export_jsonl
from pipeline.export.openai_batch import export_batch
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec


@on_run(
    "export",
    __doc__,
    argument("file", metavar="FILE", help="JSONL file to write, local or a URI"),
    argument("--format", choices=["openai-batch", "jsonl"], default="openai-batch", help="openai-batch unless given"),
    argument("--model", help="openai-batch: model name to write into every line; the target's path unless given"),
    argument("--errors", metavar="FILE", help="jsonl: where rows that failed go; beside FILE unless given"),
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Return 0, 1 if the run is incomplete or damaged or a file cannot be written, 2 if there is nothing to export."""
    is_batch = options.format == "openai-batch"
    with refusals():
        refuse_senseless(options, has_scores=run_directory.has("scores"))
        models = run_directory.run["models"] if is_batch else {}
        codec = None
        if is_batch:
            from decoding.checkpoint.supported import model_folder  # here, since it needs torch, which --help does not

            codec = TextCodec.load(model_folder(models["tokenizer"] or models["target"]))
    if codec is not None:
        num_lines = export_batch(run_directory, options.file, options.model or models["target"], codec)
        summary = f"{num_lines} lines in {options.file}"
    else:
        errors_file = options.errors
        if errors_file is None and not is_device(options.file):
            beside = errors_beside(options.file)
            if run_directory.failed_unit_ids() or Location.parse(beside).exists():  # an older file must not stay
                errors_file = beside
        num_generations, num_errors = export_jsonl(run_directory, options.file, errors_file)
        where = f"are in {errors_file}" if errors_file else "are left out; --errors FILE writes them"
        summary = f"{num_generations} generations in {options.file}"
        summary += f"; {num_errors} failed rows {where}" if num_errors else ""
    print(summary, file=sys.stderr if is_device(options.file) else sys.stdout)
    return 0


def errors_beside(file: str) -> str:
    """Return the file for the rows that failed, beside the generations: out.errors.jsonl for out.jsonl."""
    path, mark, options = file.partition("?") if "://" in file else (file, "", "")
    return f"{path.removesuffix('.jsonl')}.errors.jsonl{mark}{options}"


def is_device(file: str) -> bool:
    """Tell whether this is something like /dev/stdout, which has nothing beside it."""
    return "://" not in file and os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file)


def refuse_senseless(options: argparse.Namespace, *, has_scores: bool) -> None:
    """Raise ValueError for options that contradict each other or the run, or a file name that cannot be parsed."""
    if options.model is not None and options.format != "openai-batch":
        raise ValueError("--model is for --format openai-batch: plain lines name no model")
    if options.errors is not None and options.format != "jsonl":
        raise ValueError("--errors is for --format jsonl: in OpenAI batch output a failed row has a line of its own")
    if options.errors is not None and Location.parse(options.errors).name == Location.parse(options.file).name:
        raise ValueError(f"{options.file} is named both for generations and for rows that failed; name two files")
    if has_scores and options.format == "openai-batch":
        raise ValueError(f"{options.run} is a run of scores, which OpenAI batch output cannot hold; use --format jsonl")
    for file in filter(None, (options.file, options.errors)):
        if Location.parse(file).path.lower().endswith(".parquet"):
            raise ValueError(
                f"{file} has the name of a Parquet file, and this command writes JSON lines; name it .jsonl, or write "
                "few large Parquet files with python -m jobs.compact"
            )


if __name__ == "__main__":
    sys.exit(main())
