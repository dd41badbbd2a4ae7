"""Said: what an object in a config.json says, each value checked for its type."""

from typing import Any


class Said:
    """The fields of a JSON object. A value of another type is a ValueError that names the field.

    A field that is null counts as absent, as it does in transformers.
    """

    def __init__(self, fields: dict[str, Any], where: str = "config.json") -> None:
        """Wrap an object; `where` names it in messages."""
        self.fields, self.where = fields, where

    def has(self, name: str) -> bool:
        """Tell whether a field has a value."""
        return self.fields.get(name) is not None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        return bool(self._of(name, bool, "true or false", default))

    def number(self, name: str) -> int | None:
        """Return a whole number, or None if the field is absent."""
        value: int | None = self._of(name, int, "a whole number", None)
        return value

    def text(self, name: str) -> str | None:
        """Return a text, or None if the field is absent."""
        value: str | None = self._of(name, str, "a text", None)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, empty if the field is absent."""
        values = self._of(name, list, "a list of texts", [])
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, "a list of texts")
        return tuple(values)

    def ids(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers, or None if the field is absent."""
        values = self._of(name, list, "a list of whole numbers", None)
        if values is None:
            return None
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise self._wrong(name, "a list of whole numbers")
        return tuple(values)

    def inside(self, name: str) -> "Said":
        """Return an object within this one, empty if the field is absent."""
        return Said(self._of(name, dict, "an object", {}), f"{name} of {self.where}")

    def _of(self, name: str, kind: type, in_words: str, default: Any) -> Any:
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._wrong(name, in_words)
        return value

    def _wrong(self, name: str, in_words: str) -> ValueError:
        return ValueError(
            f"has {name} {self.fields[name]!r} in {self.where}, expected {in_words}; copy or download it again"
        )
