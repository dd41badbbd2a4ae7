"""TextCheck: what a run asks of each text (`run.validate`): a function, an expression of SQL, or a JSON Schema."""

from __future__ import annotations

import atexit
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jsonschema
import numpy as np
import pyarrow as pa
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from actors.errors import text_of
from actors.programs.program import UserFunction
from actors.settings import ValidateSettings
from pipeline.errors import RowError
from pipeline.requests.strict_json import parsed
from pipeline.schema import checked_schema, generations_table

if TYPE_CHECKING:
    import duckdb

_FAILS = "the check says no"


class TextCheck(ABC):
    """A check of texts. One thread at a time asks it."""

    @classmethod
    def of(cls, settings: ValidateSettings, schema: pa.Schema) -> TextCheck:
        """Return the check of the rows of a run, whose data/ have this schema. Raises ValueError for one that is wrong.

        What a check sees of a row follows from its texts alone, never from drafts, batches or rounding.
        """
        if settings.function is not None:
            return FunctionCheck(TextFunction.load(settings.function), checked_schema(schema))
        if settings.sql is not None:
            return SqlCheck(settings.sql, checked_schema(schema))
        assert settings.json_schema is not None, "a run without a check has another task"
        return SchemaCheck(settings.json_schema)

    @staticmethod
    def source(settings: ValidateSettings) -> str | None:
        """Return the digest of the function's file; None for another check. Raises ValueError as `of` does."""
        return None if settings.function is None else TextFunction.load(settings.function).digest

    @abstractmethod
    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Return what is wrong with a generation row; None if it passes. Raises RowError if it cannot be checked."""


class TextFunction(UserFunction):
    """A function that checks a text."""

    field: ClassVar[str] = "run.validate.function"
    parameters, asked, is_async = "row", "one argument, row", False


@dataclass(frozen=True)
class FunctionCheck(TextCheck):
    """A function of the user."""

    function: TextFunction
    schema: pa.Schema

    def problem(self, row: Mapping[str, Any]) -> str | None:
        (values,) = generations_table([row], self.schema).to_pylist()
        try:
            found = self.function.run(values)
        except BaseException as error:
            line = self.function.line_of(error)
            raise _failed(error, "" if line is None else f" (line {line} of {self.function.name})") from error
        if isinstance(found, bool | np.bool_):
            return None if found else _FAILS
        if isinstance(found, str) and found:
            return found
        said = f"the check must return true, false, or in a text what is wrong; it returned {_shown(found)}"
        raise RowError("validate", said, "TypeError")


class SqlCheck(TextCheck):
    """An expression of SQL, which DuckDB evaluates over the columns of a row; null is no."""

    def __init__(self, sql: str, schema: pa.Schema) -> None:
        """Bind the expression to the columns. Raises ValueError if it is wrong, or DuckDB is not installed."""
        self._sql, self._schema = sql, schema
        try:
            import duckdb
        except ImportError as error:
            said = "run.validate.sql needs DuckDB, which is not installed; pip install -c constraints.txt 'dray[sql]'"
            raise ValueError(said) from error
        self._connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        atexit.register(self.__dict__.pop, "_connection")  # one that is left at the end is a page of warnings on stderr
        self._connection.execute("SET TimeZone = 'UTC'")  # unless set it is the machine's, and nodes would differ
        try:
            kind, *others = self._asked(schema.empty_table()).types
            if others:
                raise ValueError("it has several values, and must have one, true or false")
            self._refuse_what_changes()
        except (duckdb.Error, ValueError, RecursionError) as error:
            raise ValueError(f"run.validate.sql {sql!r}: {' '.join(str(error).split())}") from error
        if str(kind) != "BOOLEAN":
            raise ValueError(f"run.validate.sql {sql!r}: it must be true or false, and is of the type {kind}")

    def _refuse_what_changes(self) -> None:
        """Raise ValueError for what gives the same row another value on another day, or is about many rows.

        DuckDB's catalogue says which functions these are, but not that `age` of one time means until today, and that
        `current_localtime` is a clock. A name that is no column, and has a value without a table, is a clock or belongs
        to the session.
        """
        (tree,) = self._connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {self._sql}"]).fetchall()[0]
        columns = {name.lower() for name in self._schema.names}
        for part in _parts(json.loads(tree)):
            if (part.get("from_table") or {}).get("type", "EMPTY") != "EMPTY":
                raise ValueError("it has a FROM, and the check sees one row at a time and no table")
            name = (part.get("function_name") or "").lower()
            is_aggregate, changes = self._connection.execute(
                "SELECT bool_and(function_type = 'aggregate'), bool_or(stability <> 'CONSISTENT' OR "
                "contains(macro_definition, 'current_')) FROM duckdb_functions() WHERE function_name = ?",
                [name],
            ).fetchall()[0]
            if is_aggregate or part.get("class") == "WINDOW":
                raise ValueError(f"{name} is about many rows, and the check sees one row at a time")
            (value,) = [*part.get("column_names", []), ""][:1]
            is_of_session = value.isidentifier() and value.lower() not in columns and self._has_value(value)
            is_clock = name.startswith("current_") or (name == "age" and len(part["arguments"]) == 1)
            if changes or is_of_session or is_clock:
                said = f"{name or value} has another value at another time or place"
                raise ValueError(f"{said}, so a text that passes today could fail tomorrow")

    def _has_value(self, name: str) -> bool:
        import duckdb

        try:
            self._connection.execute(f"SELECT {name}")
        except duckdb.Error:
            return False
        return True

    def _asked(self, table: pa.Table) -> duckdb.DuckDBPyRelation:
        import duckdb

        return self._connection.from_arrow(table).select(duckdb.SQLExpression(self._sql))

    def problem(self, row: Mapping[str, Any]) -> str | None:
        try:
            values = self._asked(generations_table([row], self._schema)).fetchall()
        except Exception as error:
            raise _failed(error) from error
        if len(values) != 1:
            said = f"the check failed: it has {len(values)} values for one row, and must have one"
            raise RowError("validate", said, "ValueError")
        found = values[0][0]
        return None if found else f"{self._sql} is {'null' if found is None else 'false'}"


class SchemaCheck(TextCheck):
    """A JSON Schema of the answer, which is its text without thoughts."""

    def __init__(self, text: str) -> None:
        """Read the schema. Raises ValueError for what is none, and for references that lead nowhere in it."""
        try:
            schema = parsed(text)
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            kind.check_schema(schema)
            resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
            for reference in _references(schema):
                resolver.lookup(reference)
        except jsonschema.SchemaError as error:
            said = f"{error.json_path}: {error.message}"
            raise ValueError(f"run.validate.json_schema is no JSON Schema: {said}") from error
        except Unresolvable as error:
            said = "references lead to places of the same schema, as in #/$defs/name"
            raise ValueError(f"run.validate.json_schema has the reference {error.ref!r}; {said}") from error
        except ValueError as error:
            raise ValueError(f"run.validate.json_schema is not JSON: {error}") from error
        self._validator = kind(schema, registry=Registry())  # which fetches nothing

    def problem(self, row: Mapping[str, Any]) -> str | None:
        try:
            value = parsed(row["content"] or "")
        except ValueError as error:
            return f"it is not JSON: {error}"
        try:
            found = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        except Exception as failure:
            raise _failed(failure) from failure  # a schema without end, or a number beyond what it can divide
        return None if found is None else f"{found.json_path}: {found.message}"


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """Return all objects of a JSON value, those within others too."""
    if isinstance(tree, dict):
        yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _parts(each)


def _failed(error: BaseException, where: str = "") -> RowError:
    return RowError("validate", f"the check failed: {' '.join(text_of(error).split())}{where}", type(error).__name__)


def _shown(found: object) -> str:
    """Return what a function of the user returned, for a reader."""
    try:
        return f"{found!r:.200}"
    except BaseException:  # noqa: BLE001 - code of the user
        return f"a {type(found).__name__}"


def _references(schema: Any) -> Iterator[str]:
    """Yield the references in a schema."""
    for name in ("$ref", "$dynamicRef"):
        if isinstance(schema, Mapping) and isinstance(schema.get(name), str):
            yield schema[name]
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    for each in inner:
        yield from _references(each)
