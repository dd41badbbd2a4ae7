"""Listings of a folder's files in several ranges at once name the files that one listing names."""

import obstore
import pytest
from obstore.exceptions import GenericError

from pipeline.run.directory import RunDirectory
from pipeline.storage.listing import list_files
from pipeline.storage.location import Location
from pipeline.storage.s3_bucket import bucket_of
from pipeline.storage.whole_file import replace_file
from tests.pipeline.made_up import RUN, put, unit

NAMES = ["a.parquet", "b", "b.parquet", "c", "d.parquet", "é", "z.parquet"]


@pytest.mark.parametrize("below", ["data", "a folder + more"])
@pytest.mark.parametrize("borders", [[], ["b"], ["0", "b", "c.parquet", "zz"]])
def test_ranges_hold_each_file_once_also_where_a_file_has_a_borders_name(anywhere, below, borders):
    folder = anywhere.child(below)
    for number, name in enumerate(NAMES):
        put(folder.child(name), b"x" * (number + 1))
    if not anywhere.is_local:  # and a file of a folder below, which stores need not make
        replace_file(folder.child("c.d/e"), b"not of this folder", folder)
    found = list_files(folder, borders)
    assert sorted((info.path, info.base_name, info.size, info.mtime) for info in found) == sorted(
        (info.path, info.base_name, info.size, info.mtime) for info in folder.list() if info.is_file
    )
    assert {info.base_name: info.size for info in found} == {name: 1 + at for at, name in enumerate(NAMES)}


def test_pyarrow_lists_what_obstore_cannot(s3_folder, monkeypatch):
    asked = []

    def refuse(*arguments, **named):
        asked.append(named)
        raise GenericError("no credentials")

    folder = Location.parse(s3_folder)
    put(folder.child("b"), b"x")
    monkeypatch.setattr(obstore, "list", refuse)
    assert [info.base_name for info in list_files(folder, ["a"])] == ["b"]
    assert asked


def test_a_store_that_lists_in_an_order_of_its_own_is_listed_page_by_page(s3_folder, monkeypatch):
    folder, several = Location.parse(s3_folder), obstore.list
    for name in "abc":
        put(folder.child(name), b"x")
    monkeypatch.setattr(obstore, "list", lambda *how, **more: [next(iter(several(*how, **more)))[::-1]])
    assert {info.base_name for info in list_files(folder, ["a"])} == {"a", "b", "c"}


@pytest.mark.parametrize(("query", "name"), [("", "AWS_ENDPOINT"), ("&endpoint_override=x:1", "AWS_ENDPOINT_URL_S3")])
def test_obstore_asks_no_other_endpoint_than_pyarrow(monkeypatch, query, name):
    folder = Location.parse(f"s3://bucket/folder?region=us-east-1{query}")
    assert bucket_of(folder.name, folder.path, folder.filesystem) is not None
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=f"obstore obeys {name}, and"):
        bucket_of(folder.name, folder.path, folder.filesystem)


def test_a_run_of_many_units_finds_its_parts_in_several_ranges(s3_folder, monkeypatch):
    monkeypatch.setattr("pipeline.storage.listing._FEWEST", 2)
    run = RunDirectory.create(s3_folder, RUN, [unit(unit_id) for unit_id in range(7)])
    for unit_id in (0, 1, 2, 4, 6):
        put(run.part_path(unit_id), b"x")
    asked = []
    several = obstore.list
    monkeypatch.setattr(obstore, "list", lambda *how, **more: asked.append(more["offset"]) or several(*how, **more))
    assert run.committed_unit_ids() == {0, 1, 2, 4, 6}
    assert len(asked) == 4
