"""The example in docs/batches.md works."""

import re
from pathlib import Path

from tests.endpoint.in_process import MODEL
from tests.endpoint.toy_app import KEY

PAGE = Path(__file__).parents[3] / "docs/batches.md"


def test_the_example_of_the_official_client_prints_every_row(batch_server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(example.replace("http://127.0.0.1:8000", batch_server.url), {"KEY": KEY, "MODEL": MODEL})
    printed = capsys.readouterr().out
    assert [name for name in ("row-0", "row-1", "row-2") if name in printed] == ["row-0", "row-1", "row-2"]
