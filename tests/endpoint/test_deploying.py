"""Deploying on a cluster that others use, too: what is left where it fails, and what is not touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray import serve

from endpoint.deployment import APP_NAME, check_gate, is_deployed, withdraw
from jobs import serve as command
from jobs.ending import Exit
from jobs.serve_config import load_serve_config

pytestmark = pytest.mark.ray


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0}, graceful_shutdown_wait_loop_s=0.1)
class Tiny:
    """An application that does nothing."""


@pytest.fixture(scope="module", autouse=True)
def bystander(serve_port: int) -> Iterator[None]:
    """Somebody else's application on the same Serve."""
    serve.run(Tiny.bind(), name="bystander", route_prefix="/bystander")
    yield
    assert "bystander" in serve.status().applications, "it is not ours"
    serve.delete("bystander")


@pytest.fixture
def run(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Exit]:
    """Runs the command over an application that is deployed and then fails so."""
    config = load_serve_config(["--models.target=x", "--serve.open", f"--serve.ray_address={ray_address}"], "test")

    def run(error: BaseException) -> Exit:
        def deploy(application: Any) -> None:
            serve.run(Tiny.bind(), name=APP_NAME, route_prefix="/tiny")
            raise error

        monkeypatch.setattr(command, "deploy", deploy)
        return command._serve(config, None)

    return run


def test_an_application_that_does_not_come_up_is_taken_away(
    run: Callable[[BaseException], Exit], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(RuntimeError("a replica does not start")) is Exit.FAILED
    assert "a replica does not start" in capsys.readouterr().err
    assert not is_deployed()


def test_so_is_one_that_is_interrupted_on_its_way_up(run: Callable[[BaseException], Exit]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())
    assert not is_deployed()


def test_one_that_was_there_before_stays(run: Callable[[BaseException], Exit]) -> None:
    serve.run(Tiny.bind(), name=APP_NAME, route_prefix="/tiny")
    try:
        assert run(RuntimeError("the new one does not start")) is Exit.FAILED
        assert is_deployed()
    finally:
        withdraw(0.0)


def test_a_serve_that_has_the_gate_is_deployed_on_and_another_is_refused(
    run: Callable[[BaseException], Exit], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_gate()
    monkeypatch.setattr("endpoint.deployment.Gate", Tiny)  # the proxy's is none of that
    assert run(AssertionError("it is not deployed")) is Exit.BAD_CONFIGURATION
    assert "End it (`serve shutdown`)" in capsys.readouterr().err
    assert not is_deployed()
