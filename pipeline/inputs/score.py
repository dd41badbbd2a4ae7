"""ScoreOptions: what is scored of each row, for runs that score texts instead of writing them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pipeline.errors import RowError, wrong_type
from pipeline.inputs.carried import columns_of
from pipeline.inputs.files import InputFile
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow, structure
from pipeline.inputs.values import whole

BestBy = Literal["logprob", "mean_logprob"]
Keep = Literal["all", "best"]
Candidate = str | tuple[int, ...]  # as text or as token ids
_MAX_TOP = 20


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What is scored behind each row's prompt; without any of the first three fields, the prompt's own text is."""

    continuation_column: str | None = None
    """Column with the text, or its token ids, that is scored behind the prompt."""
    candidates_column: str | None = None
    """Column with a list of texts, or of lists of token ids, that are scored behind the prompt and compared."""
    labels: tuple[str, ...] = ()
    """Texts that are scored behind every row's prompt and compared: a judge's choices."""
    best_by: BestBy = "logprob"
    """What makes a row's best candidate or label: the sum of its tokens' log-probabilities, or their mean."""
    keep: Keep = "all"
    """Rows of the output: all candidates and labels, or the best one of each input row."""
    top_logprobs: int = 0
    """Most likely tokens to store beside each scored one (0 to 20)."""

    def __post_init__(self) -> None:
        named = [name for name in ("continuation_column", "candidates_column", "labels") if getattr(self, name)]
        if len(named) > 1:
            raise ValueError(f"score.{named[0]} and score.{named[1]} are both set; a run scores one of them")
        for name, allowed in (("best_by", BestBy), ("keep", Keep)):
            if getattr(self, name) not in get_args(allowed):
                choices = " or ".join(map(repr, get_args(allowed)))
                raise ValueError(f"score.{name} must be {choices}, got {getattr(self, name)!r}")
        if self.keep == "best" and not self.compares:
            raise ValueError("score.keep is 'best', but rows have one text each; set candidates_column or labels")
        if not 0 <= self.top_logprobs <= _MAX_TOP:
            raise ValueError(f"score.top_logprobs must be 0 to {_MAX_TOP}, got {self.top_logprobs}")
        if self.labels and len(self.labels) < 2:
            raise ValueError(f"score.labels has one label, {self.labels[0]!r}; a choice needs at least two")
        if "" in self.labels:
            raise ValueError("score.labels has an empty label; leave it out")
        if twice := sorted({label for label in self.labels if self.labels.count(label) > 1}):
            raise ValueError(f"score.labels names {twice} more than once; name each label once")

    @property
    def compares(self) -> bool:
        """Whether a row has several texts, of which one is the best."""
        return bool(self.candidates_column or self.labels)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read beside the prompt."""
        return tuple(filter(None, (self.continuation_column, self.candidates_column)))

    def check(self, files: Sequence[InputFile], options: InputOptions) -> None:
        """Raise ValueError for a column that is the prompt's or not in the input, and for a format of requests."""
        if options.format == "openai_batch":
            raise ValueError(
                "task is 'score', but the input is an OpenAI batch file, whose lines ask for texts; use plain rows"
            )
        for name in ("continuation_column", "candidates_column"):
            column = getattr(self, name)
            if column is not None and column in (options.prompt_column, options.messages_column):
                raise ValueError(f"score.{name} is {column!r}, the column of the prompt; name another one")
        if not self.columns:
            return
        found = columns_of(files, options)
        if found and (missing := sorted(set(self.columns) - found)):
            raise ValueError(f"score: column {missing[0]!r} is not in the input: it has {', '.join(sorted(found))}")

    def candidates(self, row: InputRow) -> tuple[Candidate, ...]:
        """Return what is scored behind the row's prompt; () if it is the prompt's own text. Raises RowError."""
        if row.overrides:
            raise RowError("params", f"the row has sampling parameters {sorted(row.overrides)}, and nothing is sampled")
        if self.labels:
            return self.labels
        if self.continuation_column is not None:
            name = self.continuation_column
            return (_candidate(f"column {name!r}", _present(row, name)),)
        if self.candidates_column is None:
            return ()
        name = self.candidates_column
        _present(row, name)
        values = structure(row.columns, name, "read", list, "a list of texts or of lists of token ids")
        if not values:
            raise RowError("read", f"column {name!r}: the list of candidates is empty; it needs at least one")
        return tuple(_candidate(f"column {name!r}, candidate {number}", value) for number, value in enumerate(values))


def _present(row: InputRow, name: str) -> Any:
    value = row.columns.get(name)
    if value is None:
        problem = "is null" if name in row.columns else f"is not among {sorted(row.columns)}"
        raise RowError("read", f"column {name!r} {problem}; it holds what is scored", "KeyError")
    return value


def _candidate(what: str, value: Any) -> Candidate:
    """Return a text or token ids. Raises RowError (stage "read") for anything else, and for nothing."""
    if not isinstance(value, str | list):
        raise wrong_type("read", what, "a text or a list of token ids", value)
    if not value:
        raise RowError("read", f"{what} is empty, so there is nothing to score")
    if isinstance(value, str):
        return value
    value = whole(value)
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong_type("read", what, "a text or a list of token ids", token)
    return tuple(value)
