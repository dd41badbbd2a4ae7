"""Versions of a run's draft: numbered files, of which the newest that may be taken counts."""

import json

import pytest

from pipeline.run.progress.draft_versions import DraftVersions


@pytest.fixture
def versions(tmp_path) -> DraftVersions:
    return DraftVersions(str(tmp_path))


def test_a_run_without_offers_uses_the_draft_that_it_began_with(versions):
    assert versions.all() == []
    assert versions.in_use() is None


def test_the_newest_version_that_was_not_taken_back_is_in_use(versions):
    offered = [versions.offer(f"/drafts/{name}") for name in "abc"]
    assert [each.number for each in offered] == [1, 2, 3]
    assert versions.in_use() == offered[2]
    versions.mark(3, "rolled back", "0.61 before, 0.07 after")
    assert versions.in_use() == offered[1]
    versions.mark(2, "refused", "other sizes")
    assert versions.in_use() == offered[0]
    assert [(each.number, each.path, each.state, each.reason) for each in versions.all()] == [
        (1, "/drafts/a", "offered", ""),
        (2, "/drafts/b", "refused", "other sizes"),
        (3, "/drafts/c", "rolled back", "0.61 before, 0.07 after"),
    ]


def test_numbers_go_on_behind_versions_that_were_taken_back(versions):
    versions.offer("/drafts/a")
    versions.mark(1, "refused", "")
    assert versions.offer("/drafts/b").number == 2


def test_another_process_reads_what_was_written(versions, tmp_path):
    versions.offer("/drafts/a")
    said = json.loads((tmp_path / "drafts" / "version-000001.json").read_text())
    assert said.keys() == {"version", "path", "state", "reason", "time"}
    assert DraftVersions(str(tmp_path)).in_use() == versions.in_use()
    assert not list((tmp_path / "_tmp").iterdir())


@pytest.mark.parametrize(
    "content", ["", "{}", '{"version": 2, "path": "", "state": "offered", "reason": "", "time": ""}']
)
def test_a_file_that_describes_no_version_is_named(versions, tmp_path, content):
    versions.offer("/drafts/a")
    (tmp_path / "drafts" / "version-000001.json").write_text(content)
    with pytest.raises(ValueError, match=r"version-000001\.json does not describe"):
        versions.all()
