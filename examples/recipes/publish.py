"""A run as a dataset of the library `datasets`, with a card: `python -m examples.recipes.publish RUN FOLDER [REPO]`.

The card says what decides the texts (models, seed, content hash) and what the draft was worth. With REPO, such as
"name/corpus", dataset and card are pushed to the hub, by the token that `hf auth login` keeps.
"""

import sys
from pathlib import Path

from datasets import Dataset, load_dataset
from huggingface_hub import DatasetCard, DatasetCardData

from pipeline.counts import Counts
from pipeline.run.check import check_run
from pipeline.run.content_hash import content_hash
from pipeline.run.directory import RunDirectory


def dataset_of(run: str) -> Dataset:
    """Return the generations of a run, in the order of its parts."""
    return load_dataset("parquet", data_files=f"{run}/data/part-*.parquet", split="train")


def card_of(run: str) -> DatasetCard:
    """Return the card of a complete run. Raises ValueError for one that is not complete."""
    run_directory = RunDirectory.open(run)
    check = check_run(run_directory)
    if not check.is_complete:
        raise ValueError(f"{run} is not complete: {check.problems[0]}")
    identity, models, counts = run_directory.run["identity"], run_directory.run["models"], check.counts
    data = DatasetCardData(tags=["synthetic", "dray"], size_categories=_size_category(counts.num_generations))
    lines = [
        f"# {run_directory.location.short_name}",
        "Texts of a target model, token for token what it alone writes: a draft only made them faster.",
        "| | |\n|---|---|",
        f"| target | {Path(models['target']).name} |",
        f"| draft | {Path(models['draft']).name if models['draft'] else 'none'} |",
        f"| temperature | {identity['sampling']['temperature']:g} |",
        f"| seed | {identity['seed']} |",
        f"| exact | {run_directory.run['exact']} |",
        f"| content sha256 | {content_hash(run_directory)} |",
        f"| rows, generations, errors | {counts.num_rows:,}, {counts.num_generations:,}, {counts.num_errors:,} |",
        *_acceptance(counts),
    ]
    head, rule, table = lines[:2], lines[2], lines[3:]
    return DatasetCard(
        f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(head) + f"\n\n{rule}\n" + "\n".join(table) + "\n"
    )


def save(run: str, folder: Path) -> None:
    """Write dataset and card to a folder, as they would be pushed."""
    folder.mkdir(parents=True, exist_ok=True)
    card_of(run).save(folder / "README.md")
    dataset_of(run).to_parquet(folder / "data" / "train-00000-of-00001.parquet")


def push(run: str, repo: str) -> None:
    """Push dataset and card to the hub."""
    dataset_of(run).push_to_hub(repo)
    card_of(run).push_to_hub(repo)


def _acceptance(counts: Counts) -> list[str]:
    rate, length = counts.acceptance_rate, counts.mean_acceptance_length
    said = "nothing was drafted" if rate is None or length is None else f"{rate:.3f}; {length:.2f} tokens a round"
    return [f"| acceptance rate | {said} |"]


def _size_category(num_rows: int) -> str:
    limits = {"n<1K": 1e3, "1K<n<10K": 1e4, "10K<n<100K": 1e5, "100K<n<1M": 1e6, "1M<n<10M": 1e7}
    return next((name for name, limit in limits.items() if num_rows < limit), "n>10M")


if __name__ == "__main__":
    save(sys.argv[1], Path(sys.argv[2]))
    for repo in sys.argv[3:]:
        push(sys.argv[1], repo)
