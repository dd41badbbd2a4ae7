"""Values of a table as prompts, templates and JSON have them, and as people read them.

Text, numbers, lists and objects stay what they are. Dates, times, decimals and UUIDs become their text, and maps
objects. A struct has the fields of every other row, as null, which is not what its row says: they are left out, at any
depth. Items of lists and values of maps stay, also null ones. So does the `content` of a message: with calls it is
null, and templates ask for that.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias, cast

import pyarrow as pa

Cells: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime(1970, 1, 1)
_MESSAGE = {"role", "content"}  # fields of a struct that is a message
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_OTHER_LISTS = (pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
_AS_PYTHON_HAS_THEM = (*_TEXTS, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
_TIMES = (pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration)
_LARGEST = 2.0**53  # a float beyond this may stand for several integers, so it stays one
_ESCAPES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; escape sequences begin with one
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates: they reorder the rest of a line
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff]"  # surrogates, which no encoding can write
)


def text_if_utf8(value: bytes) -> str | bytes:
    """Return the text that the bytes are: older writers store text so. Bytes that are not UTF-8 stay bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def holds_bytes(value: Any) -> bool:
    """Tell whether a plain value has bytes that are no text, at any depth."""
    if isinstance(value, dict):
        return any(map(holds_bytes, value.values()))
    return any(map(holds_bytes, value)) if isinstance(value, list) else isinstance(value, bytes)


def base64_text(value: bytes) -> str:
    """Return bytes as text that gives them back, whatever they are."""
    return base64.b64encode(value).decode("ascii")


def shown_rows(table: pa.Table, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of these columns in each row, as `shown_values` writes them."""
    shown = [shown_values(table[name]) for name in columns]
    return list(zip(*shown, strict=True)) if shown else [()] * table.num_rows


def shown_values(values: Cells) -> list[str]:
    """Return each cell as people read it: text as it is, bytes as base64, lists and objects as JSON, null as (none)."""
    return [_shown(cell) for cell in plain_values(values, _text_or_base64)]


def is_text(type_: pa.DataType) -> bool:
    """Tell whether values of this type are text, or bytes that may be."""
    if isinstance(type_, pa.DictionaryType):
        type_ = type_.value_type
    if isinstance(type_, pa.BaseExtensionType) and not isinstance(type_, pa.UuidType):
        type_ = type_.storage_type
    return _is(type_, (*_TEXTS, *_BYTES))


def plain_values(values: Cells, of_bytes: Callable[[bytes], Any] = text_if_utf8) -> list[Any]:
    """Return the plain value of each cell; `of_bytes` makes that of bytes.

    Raises ValueError or OverflowError for a value without one: text that is not UTF-8, a date behind the year 9999.
    """
    if isinstance(values, pa.ChunkedArray):
        return [value for chunk in values.chunks for value in plain_values(chunk, of_bytes)]
    if isinstance(values, pa.ExtensionArray) and not isinstance(values.type, pa.UuidType | pa.Bool8Type):
        return plain_values(values.storage, of_bytes)
    if isinstance(values, pa.DictionaryArray):
        return plain_values(values.dictionary_decode(), of_bytes)
    if isinstance(values, pa.StructArray):
        return list(_structs(values, of_bytes))
    if isinstance(values, pa.MapArray):
        pairs = zip(_inner(values, values.keys, of_bytes), _inner(values, values.items, of_bytes), strict=True)
        return [None if keys is None or items is None else _object(keys, items) for keys, items in pairs]
    if isinstance(values, pa.ListArray | pa.LargeListArray):
        return list(_inner(values, values.values, of_bytes))
    if _is(values.type, _OTHER_LISTS):
        return [plain_values(cell.values, of_bytes) if cell.is_valid else None for cell in cast(Any, values)]
    read = _reader(values.type, of_bytes)
    if _is(values.type, _TIMES):  # as numbers: Python's times have no nanoseconds
        values = values.view(pa.int32() if cast(Any, values.type).bit_width == 32 else pa.int64())
    cells = values.to_pylist()
    return cells if read is None else [None if cell is None else read(cell) for cell in cells]


def _text_or_base64(value: bytes) -> str:
    text = text_if_utf8(value)
    return text if isinstance(text, str) else base64_text(value)


def _shown(cell: Any) -> str:
    if cell is None:
        return "(none)"
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else str(cell)


def _reader(type_: pa.DataType, of_bytes: Callable[[bytes], Any]) -> Callable[[Any], Any] | None:
    """Return what makes the plain value of a cell of a type that holds no others; None if Python's value is it."""
    if isinstance(type_, pa.UuidType):
        return str
    if _is(type_, _BYTES):
        return of_bytes
    if pa.types.is_decimal(type_):
        return "{:f}".format
    if pa.types.is_date(type_):
        return date.isoformat
    if _is(type_, _TIMES):
        return partial(_time, type_)
    if isinstance(type_, pa.Bool8Type) or _is(type_, _AS_PYTHON_HAS_THEM):
        return None
    raise ValueError(f"values of the type {type_} have no form as text; store them as text")


def _structs(values: pa.StructArray, of_bytes: Callable[[bytes], Any]) -> Iterator[dict[str, Any] | None]:
    names = values.type.names
    if len(set(names)) < len(names):
        raise ValueError(f"an object has a field twice, of {', '.join(names)}")
    kept = {"content"} if set(names) >= _MESSAGE else set()
    fields = [plain_values(field, of_bytes) for field in values.flatten()]
    rows = zip(*fields, strict=True) if fields else iter([()] * len(values))
    for is_there, row in zip(values.is_valid().to_pylist(), rows, strict=True):
        cells = zip(names, row, strict=True)
        yield {name: cell for name, cell in cells if cell is not None or name in kept} if is_there else None


def _inner(values: Any, inner: pa.Array[Any], of_bytes: Callable[[bytes], Any]) -> Iterator[list[Any] | None]:
    """Yield the part of the inner values that each list or map has."""
    offsets = values.offsets.to_pylist()
    cells = plain_values(inner.slice(offsets[0], offsets[-1] - offsets[0]), of_bytes)
    for index, is_there in enumerate(values.is_valid().to_pylist()):
        start, end = offsets[index] - offsets[0], offsets[index + 1] - offsets[0]
        yield cells[start:end] if is_there else None


def _object(keys: list[Any], items: list[Any]) -> dict[str, Any]:
    texts = [key if isinstance(key, str) else json.dumps(key) for key in keys if not isinstance(key, bytes)]
    if len(set(texts)) < len(keys):
        raise ValueError(f"a map has a key twice, or one that is no text: {keys!r:.80}")
    return dict(zip(texts, items, strict=True))


def _time(type_: Any, number: int) -> str:
    """Return the time, timestamp or duration of a number of units as ISO 8601 has it, exactly."""
    is_duration = pa.types.is_duration(type_)
    seconds, rest = divmod(abs(number) if is_duration else number, _PER_SECOND[type_.unit])
    digits = f"{rest * (10**9 // _PER_SECOND[type_.unit]):09d}"
    fraction = "." + digits.removesuffix("000") if rest else ""
    if is_duration:
        return f"{'-' if number < 0 else ''}PT{seconds}{fraction}S"
    moment = _EPOCH + timedelta(seconds=seconds)
    if pa.types.is_time(type_):
        return f"{moment:%H:%M:%S}{fraction}"
    if type_.tz is not None:
        moment = moment.replace(tzinfo=UTC).astimezone(pa.lib.string_to_tzinfo(type_.tz))
    text = moment.isoformat()
    return text[:19] + fraction + text[19:]


def _is(type_: pa.DataType, kinds: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(is_kind(type_) for is_kind in kinds)


def whole(value: Any) -> Any:
    """Return the value with whole floats as integers, in lists and objects too. NaN, the gap of a table, is None."""
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) <= _LARGEST else value


def visible(text: str) -> str:
    """Return the text with a picture in place of each character that a terminal would obey.

    Control characters below the space have pictures of their own (U+241B for Escape), all others become U+FFFD. Tabs,
    line feeds, spaces of every kind, joiners, and the marks of right-to-left text (U+200E, U+200F, U+061C) stay: they
    change nothing beyond the words that they stand in.
    """
    return _ESCAPES.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 32 else "\N{SYMBOL FOR DELETE}" if code == 127 else "\N{REPLACEMENT CHARACTER}"
