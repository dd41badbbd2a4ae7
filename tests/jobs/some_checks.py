"""Checks of texts for tests: some that work, and some that do not."""

from typing import Any


def has_even_length(row: dict[str, Any]) -> bool:
    """About half of all texts pass."""
    return len(row["text"]) % 2 == 0


def says_what_is_wrong(row: dict[str, Any]) -> str:
    return f"too few of {row['id']}"


def raises_for_one_row(row: dict[str, Any]) -> bool:
    assert not {"num_rounds", "num_accepted_tokens", "draft_version", "num_tries"} & set(row), "drafts decide these"
    if row["id"] == "row-2":
        raise SystemExit("no more")
    return True


def returns_nothing(row: dict[str, Any]) -> None:
    return


async def is_async(row: dict[str, Any]) -> bool:
    return True


def takes_two(row: dict[str, Any], other: Any) -> bool:
    return True
