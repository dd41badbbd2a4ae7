"""Runs that the tests of the page only read."""

import pytest

from pipeline.run.directory import RunDirectory
from tests.jobs.report_page.made_run import made_run

ATTACKS = (
    "</script><script>document.title='taken'</script>",
    '"><img src="https://attacker.example/x" onerror="document.title=\'taken\'">',
    "</style><style>body{display:none}</style>",
    "{{ 7 * 7 }} ${7 * 7} <!-- \x1b[31m red \x07 -->",
    "a \u202e right to left, \U0001f426 a bird",
)


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run whose prompts, ids, kinds and errors try to become a part of the page; each row has two samples."""
    rows = [
        {"id": f"row-{number} {attack}", "kind": f"kind {number % 2} {attack[:9]}", "prompt": f"{attack} Once upon"}
        for number, attack in enumerate(ATTACKS * 4)
    ]
    broken = [{"id": "bad", "kind": "none", "prompt": 7}, "</table><script>alert(1)</script> {not json"]
    flags = ("--sampling.n=2", "--sampling.temperature=0.8", "--sampling.max_tokens=24")
    return made_run(tmp_path_factory.mktemp("hostile"), [*rows, *broken], *flags)
