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
from collections.abc import Sequence

from jobs.driver.exits import program
from pipeline.export.jsonl import export_jsonl
from pipeline.export.openai_batch import export_batch
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 if the run is incomplete or damaged or a file cannot be written, 2 if there is nothing to export."""
    options = _parser().parse_args(arguments)
    try:
        _refuse_senseless(options)
        run_directory = RunDirectory.open(options.output)
        if run_directory.has_scores and options.format == "openai-batch":
            raise ValueError(
                f"{options.output} is a run of scores, which OpenAI batch output cannot hold; use --format jsonl"
            )
        models = run_directory.run["models"] if options.format == "openai-batch" else {}
        codec = _codec(models["tokenizer"] or models["target"]) if models else None
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        if codec is None:
            summary = _export_jsonl(run_directory, options.file, options.errors)
        else:
            num_lines = export_batch(run_directory, options.file, options.model or models["target"], codec)
            summary = f"{num_lines} lines in {options.file}"
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary, file=sys.stderr if _is_device(options.file) else sys.stdout)
    return 0


def _codec(tokenizer: str) -> TextCodec:
    from decoding.checkpoint.supported import model_folder  # here, since it needs torch, which --help does not

    return TextCodec.load(model_folder(tokenizer))


def _export_jsonl(run_directory: RunDirectory, file: str, errors_file: str | None) -> str:
    """Export the run as plain lines and return a summary for the terminal."""
    if errors_file is None and not _is_device(file):
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


def _is_device(file: str) -> bool:
    """Tell whether this is something like /dev/stdout, which has nothing beside it."""
    return "://" not in file and os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file)


def _refuse_senseless(options: argparse.Namespace) -> None:
    """Raise ValueError for options that contradict each other, or a file name that cannot be parsed."""
    if options.model is not None and options.format != "openai-batch":
        raise ValueError("--model is for --format openai-batch: plain lines name no model")
    if options.errors is not None and options.format != "jsonl":
        raise ValueError("--errors is for --format jsonl: in OpenAI batch output a failed row has a line of its own")
    if options.errors is not None and Location.parse(options.errors).name == Location.parse(options.file).name:
        raise ValueError(f"{options.file} is named both for generations and for rows that failed; name two files")
    for file in filter(None, (options.file, options.errors)):
        if Location.parse(file).path.lower().endswith(".parquet"):
            raise ValueError(
                f"{file} has the name of a Parquet file, and this command writes JSON lines; name it .jsonl, or write "
                "few large Parquet files with python -m jobs.compact"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("export"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", metavar="OUTPUT", help="run directory, local or a URI (s3://, gs://)")
    add("file", metavar="FILE", help="JSONL file to write, local or a URI")
    add("--format", choices=["openai-batch", "jsonl"], default="openai-batch", help="openai-batch unless given")
    add("--model", help="openai-batch: model name to write into every line; the target's path unless given")
    add("--errors", metavar="FILE", help="jsonl: where rows that failed go; beside FILE unless given")
    return parser


if __name__ == "__main__":
    sys.exit(main())
