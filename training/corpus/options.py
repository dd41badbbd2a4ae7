"""CorpusOptions: which texts a draft learns from, and which of them are held out."""

from dataclasses import dataclass

from pipeline.limits import check_numbers


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The target's texts: run directories, or Parquet of prompts and outputs. A ValueError says what is wrong."""

    path: str | list[str]
    """Run directories, or Parquet files, folders or globs; one or a list; local or a URI."""
    kind_column: str | None = None
    """Column that tells kinds of text apart, such as a carried one; without it all rows are of one kind."""
    prompt_column: str = "prompt"
    """Column with the prompt as text, in Parquet that is no run; a column `is_chat` says where a template made it."""
    output_column: str = "text"
    """Column with the output as text, in Parquet that is no run and has no column `token_ids`."""
    temperature: float = 1.0
    """Temperature that the texts were drawn with, for Parquet that is no run; a run says its own."""
    max_rows: int | None = None
    """Take only this many rows, the first ones; all unless given."""
    held_out_share: float = 0.05
    """Share of the prompts that are held out: evaluated on, and never trained on."""

    def __post_init__(self) -> None:
        if not self.paths or not all(self.paths):
            raise ValueError(f"corpus.path must name a run directory or Parquet files, got {self.path!r}")
        check_numbers(self, "corpus.", at_least_1=("max_rows",))
        if not 0 <= self.held_out_share < 1:
            raise ValueError(f"corpus.held_out_share must be at least 0 and below 1, got {self.held_out_share}")

    @property
    def paths(self) -> list[str]:
        """The paths as a list."""
        return [self.path] if isinstance(self.path, str) else list(self.path)
