"""A column of every type that a Parquet file can have, each with a null in the middle."""

import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa

_IDS = pa.array([uuid.UUID(int=1).bytes, None, uuid.UUID(int=2).bytes], pa.uuid())
_PRICES = [Decimal("1.50"), None, Decimal("-2")]

EVERY_TYPE: dict[str, pa.Array] = {
    **{f"int {type_}": pa.array([1, None, 2], type_) for type_ in (pa.int8(), pa.uint16(), pa.int64(), pa.uint64())},
    **{f"float {type_}": pa.array([1.5, None, 2], type_) for type_ in (pa.float32(), pa.float64())},
    "nan": pa.array([float("nan"), None, float("-inf")]),
    "nans": pa.array([float("nan"), None, float("nan")]),
    "half": pa.array([np.float16(1.5), None, np.float16(2)], pa.float16()),
    "bool": pa.array([True, None, False]),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
    "null": pa.nulls(3),
    **{f"text {t}": pa.array(["é", None, "b"], t) for t in (pa.string(), pa.large_string(), pa.string_view())},
    **{f"bytes {t}": pa.array([b"\xff", None, b"b"], t) for t in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed bytes": pa.array([b"\xff\0", None, b"ab"], pa.binary(2)),
    "category": pa.array(["a", None, "b"]).dictionary_encode(),
    "categories": pa.array([["a"], None, ["b", None]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "2"])),
    "uuid": _IDS,
    "uuids": pa.ListArray.from_arrays(pa.array([0, 1, None, 3], pa.int32()), _IDS),
    **{f"decimal {t}": pa.array(_PRICES, t) for t in (pa.decimal32(5, 2), pa.decimal128(30, 2), pa.decimal256(60, 2))},
    "date": pa.array([20_000, None, -1], pa.date32()),
    "date64": pa.array([20_000 * 86_400_000, None, 0], pa.date64()),
    "late date": pa.array([20_000, None, 2_932_896], pa.date32()),
    **{f"time {t}": pa.array([1, None, 86_399], t) for t in (pa.time32("s"), pa.time32("ms"), pa.time64("ns"))},
    **{f"at {u}": pa.array([1, None, 2], pa.timestamp(u)) for u in ("s", "ms", "us", "ns")},
    "at utc": pa.array([1, None, -1], pa.timestamp("ns", "UTC")),
    "at zone": pa.array([1, None, 1_750_000_000], pa.timestamp("s", "Europe/Berlin")),
    **{f"took {u}": pa.array([1, None, -1], pa.duration(u)) for u in ("s", "ns")},
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "large list": pa.array([[1], None, [2, 3]], pa.large_list(pa.int32())),
    "list view": pa.array([[1], None, [2, 3]], pa.list_view(pa.int32())),
    "fixed list": pa.array([[1, 2], None, [2, 3]], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"t": 1, "u": None}, None, {"t": None}], pa.struct([("t", pa.time64("ns")), ("u", pa.int8())])),
    "deep": pa.array(
        [[{"m": [("k", [1])]}], None, [None, {"m": None}]],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.duration("ns"))))])),
    ),
}
