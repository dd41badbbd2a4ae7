"""The export of a run as plain lines: which files it writes, and which options make no sense."""

import argparse
import os

from pipeline.export.jsonl import export_jsonl
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location


def export_lines(run_directory: RunDirectory, file: str, errors_file: str | None) -> str:
    """Export the run as plain lines and return a summary for the terminal."""
    if errors_file is None and not is_device(file):
        beside = errors_beside(file)
        if run_directory.failed_unit_ids() or Location.parse(beside).exists():  # an older file must not stay
            errors_file = beside
    num_generations, num_errors = export_jsonl(run_directory, file, errors_file)
    where = f"are in {errors_file}" if errors_file else "are left out; --errors FILE writes them"
    return f"{num_generations} generations in {file}" + (f"; {num_errors} failed rows {where}" if num_errors else "")


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
                "few large Parquet files with dray compact"
            )
