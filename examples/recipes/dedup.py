"""Filters a run's texts and drops near duplicates with datatrove: `python -m examples.recipes.dedup RUN FOLDER`.

A text of few words, or one that repeats its own n-grams (Gopher, Rae et al., arXiv 2112.11446), is filtered. Of texts
with nearly the same n-grams (MinHash) one stays. FOLDER/kept has the texts as Parquet, by their row_id and sample.
"""

import re
import sys
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.filters import GopherRepetitionFilter, LambdaFilter
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

_MIN_WORDS = 5


class Words(WordTokenizer):  # type: ignore[misc]  # datatrove has no types
    """Words by a regular expression: datatrove's own tokenizers need packages for each language."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return re.findall(r"\w+", text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Return the lines of a text."""
        return text.splitlines()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return where the lines are."""
        return [match.span() for match in re.finditer(r"[^\n]+", text)]


def as_document(_reader: Any, row: dict[str, Any], _path: str, _number: int) -> dict[str, Any]:
    """Return a generation as datatrove's document, whose id leads back to the run."""
    return {"text": row["text"], "id": f"{row['row_id']}-{row['sample']}", "metadata": {"prompt": row["prompt"]}}


def drop_near_duplicates(run: str, folder: Path) -> None:
    """Write the texts of a run that stay to FOLDER/kept. The folders of the steps stay there, too."""
    words, config = (
        Words(),
        MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=HashConfig(hash_fc="sha1")),
    )
    filtered, signatures, buckets, removed = (
        f"{folder}/{name}" for name in ("filtered", "signatures", "buckets", "removed")
    )
    steps: list[tuple[int, list[PipelineStep]]] = [
        (
            1,
            [
                ParquetReader(f"{run}/data", glob_pattern="part-*.parquet", adapter=as_document),
                LambdaFilter(lambda document: len(words.word_tokenize(document.text)) >= _MIN_WORDS),
                GopherRepetitionFilter(language=words),
                ParquetWriter(filtered),
            ],
        ),
        (1, [ParquetReader(filtered), MinhashDedupSignature(signatures, config, language=words)]),
        (config.num_buckets, [MinhashDedupBuckets(signatures, buckets, config=config)]),
        (1, [MinhashDedupCluster(buckets, removed, config)]),
        (1, [ParquetReader(filtered), MinhashDedupFilter(removed), ParquetWriter(f"{folder}/kept")]),
    ]
    for number, (num_tasks, pipeline) in enumerate(steps):
        LocalPipelineExecutor(pipeline, tasks=num_tasks, workers=1, logging_dir=f"{folder}/logs/{number}").run()


if __name__ == "__main__":
    drop_near_duplicates(sys.argv[1], Path(sys.argv[2]))
