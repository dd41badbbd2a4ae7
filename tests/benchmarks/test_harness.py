"""A measurement warms up before what it counts."""

from benchmarks.harness import interleaved
from decoding.turns import Pass, whole


def test_the_repeat_that_warms_up_does_not_count(capsys):
    table = interleaved({"one": whole(lambda repeat: Pass(seconds=1.0, done=repeat))}, 3, "ones")
    assert [each.done for each in table.passes["one"]] == [1, 2, 3]
    assert "ones: repeat 3 of 3" in capsys.readouterr().err
