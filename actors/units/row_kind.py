"""RowKind: what is done with a row, from the input to the output's columns."""

from typing import Any, Protocol

from pipeline.inputs.rows import InputRow


class RowKind(Protocol):
    """Rows of one kind, as a base of its classes. What `encode` returns has the InputRow as `row`, and is run."""

    def encode(self, row: InputRow, ordinal: int) -> Any:
        """Return the row ready to run. `ordinal` is its place in the whole input. Raises RowError."""

    async def finish(self, rows: list[Any]) -> None:
        """Return when these rows have run. Cancelled, it drops the rows that have not."""

    def decode(self, row: Any) -> list[dict[str, Any]]:
        """Return the generation rows of a row that has run. Raises RowError."""

    def committed(self, unit_id: int, row_ids: set[int]) -> None:
        """Learn that these rows are in the unit's part, for a kind that keeps something until then."""
        return
