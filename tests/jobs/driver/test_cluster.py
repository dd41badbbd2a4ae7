"""A cluster that cannot be joined or started is told in one line."""

import pytest
import ray

from jobs.driver.cluster import start_ray


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (None, "^cannot start Ray on this machine .*timed out.*; if the"),
        ("there:6379", "^cannot join .* at there:6379"),
    ],
)
def test_a_start_that_takes_ray_too_long_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, address: str | None, message: str
) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen")  # as ray/_private/node.py does

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConnectionError, match=message) as caught:
        start_ray(address)
    assert "\n" not in str(caught.value)
