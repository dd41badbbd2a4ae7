"""The form of a run's Parquet files depends on the size of their table."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.storage.parquet import to_parquet
from pipeline.storage.small_object import SMALL


@pytest.mark.parametrize(("num_rows", "is_large"), [(10, False), (SMALL // 8, True)])
def test_only_a_large_table_is_written_with_dictionaries_and_statistics(num_rows, is_large):
    table = pa.table({"text": ["the same text"] * num_rows})
    column = pq.read_metadata(pa.BufferReader(to_parquet(table))).row_group(0).column(0)
    assert (column.has_dictionary_page, column.is_stats_set) == (is_large, is_large)
