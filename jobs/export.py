"""`dray export RUN FILE`: write a complete run as one JSONL file, in input order.

--format openai-batch  the output of the OpenAI batch API: a line for every
                       input row, its samples as choices; a row that failed
                       has its line, too, with "error" for "response"
--format jsonl         a line for every generation: id, row_id, sample, prompt,
                       text, finish_reason, counts and carried columns; rows
                       that failed go to a file of their own, out.errors.jsonl
                       beside out.jsonl

A file appears whole or not at all; one that is there is replaced.
"""

import argparse
import sys

from jobs.commands import argument, on_run, refusals
from jobs.runs.export import export_lines, is_device, refuse_senseless
from pipeline.export.openai_batch import export_batch
from pipeline.run.directory import RunDirectory
from pipeline.text.codec import TextCodec


@on_run(
    "export",
    __doc__,
    argument("file", metavar="FILE", help="JSONL file to write, local or a URI"),
    argument("--format", choices=["openai-batch", "jsonl"], default="openai-batch", help="openai-batch unless given"),
    argument("--model", help="openai-batch: name of the model in every line; as the run names its target unless given"),
    argument("--errors", metavar="FILE", help="jsonl: where rows that failed go; beside FILE unless given"),
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Return 0, 1 if the run is incomplete or damaged or a file cannot be written, 2 if there is nothing to export."""
    is_batch = options.format == "openai-batch"
    with refusals():
        refuse_senseless(options, has_scores=run_directory.has("scores"))
        models = run_directory.run["models"] if is_batch else {}
        named = run_directory.run.get("settings", {}).get("models", models).get("target")
        codec = None
        if is_batch:
            from decoding.checkpoint.supported import model_folder  # here, since it needs torch, which --help does not

            codec = TextCodec.load(model_folder(models["tokenizer"] or models["target"]))
    if codec is not None:
        num_lines = export_batch(run_directory, options.file, options.model or named, codec)
        summary = f"{num_lines} lines in {options.file}"
    else:
        summary = export_lines(run_directory, options.file, options.errors)
    print(summary, file=sys.stderr if is_device(options.file) else sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
