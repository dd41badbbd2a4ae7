"""Deploying on a cluster that others use, too: what a failure leaves behind, and what it does not touch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import GetTimeoutError

from endpoint.deployment import APP_NAME, check_gate, is_deployed, start, withdraw
from endpoint.gate.gate import INGRESS_NAME
from jobs.config.serve import load_serve_config
from jobs.driver.stopping import Exit
from jobs.work import serving as command
from tests.endpoint.conftest import SERVE_LIMITS

pytestmark = pytest.mark.ray
THE_LIMITS = (
    f"--serve.max_body_bytes={SERVE_LIMITS.max_body_bytes}",
    f"--serve.body_timeout_s={SERVE_LIMITS.body_timeout_s}",
)


@serve.deployment(autoscaling_config={"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1})
class Tiny:
    """An application that does nothing, without a process: it is deployed and withdrawn at once."""

    def reconfigure(self, config: dict[str, str]) -> None:
        """Accept a configuration, for the mark in it."""


@pytest.fixture(scope="module", autouse=True)
def bystander(serve_port: int) -> Iterator[None]:
    """The application of another program on the same Serve."""
    serve.run(Tiny.bind(), name="bystander", route_prefix="/bystander")
    yield
    assert "bystander" in serve.status().applications, "it is not ours"
    serve.delete("bystander")


@pytest.fixture
def run(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Exit]:
    """Runs the command over an application that is deployed and then fails so."""
    arguments = ["--models.target=x", "--serve.open", f"--serve.ray_address={ray_address}", *THE_LIMITS]

    def run(error: BaseException) -> Exit:
        def deploy(application: Any) -> None:
            serve.run(Tiny.bind(), name=APP_NAME, route_prefix="/tiny")
            raise error

        monkeypatch.setattr(command, "deploy", deploy)
        return command._serve(load_serve_config(arguments, "test"), None, "own")

    return run


def test_an_application_that_does_not_come_up_is_withdrawn(run, capsys):
    assert run(RuntimeError("a replica does not start")) is Exit.FAILED
    assert "a replica does not start" in capsys.readouterr().err
    assert not is_deployed()


def test_an_application_that_is_interrupted_as_it_comes_up_is_withdrawn(run):
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())
    assert not is_deployed()


def test_an_application_that_was_deployed_before_stays(run):
    serve.run(Tiny.bind(), name=APP_NAME, route_prefix="/tiny")
    try:
        assert run(RuntimeError("the new one does not start")) is Exit.FAILED
        assert is_deployed()
    finally:
        withdraw(0.0)


def test_a_serve_with_the_gate_is_used_and_one_without_it_is_refused(run, monkeypatch, capsys):
    check_gate(SERVE_LIMITS)
    monkeypatch.setattr("endpoint.deployment.Gate", Tiny)  # the proxy's is none of that
    assert run(AssertionError("it is not deployed")) is Exit.BAD_CONFIGURATION
    assert "End it (`serve shutdown`)" in capsys.readouterr().err
    assert not is_deployed()


def test_a_gate_of_another_release_or_with_other_limits_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="other limits"):
        check_gate(replace(SERVE_LIMITS, max_body_bytes=SERVE_LIMITS.max_body_bytes + 1))
    monkeypatch.setattr("endpoint.deployment.PROTOCOL", 0)
    with pytest.raises(ValueError, match="another release"):
        check_gate(SERVE_LIMITS)


def test_a_serve_that_does_not_reply_is_not_reported_as_having_no_gate(run, monkeypatch, capsys):
    def late(*arguments: Any, **options: Any) -> Any:
        assert options["timeout"] > 0, "it would be waited for without an end"
        raise GetTimeoutError

    monkeypatch.setattr("endpoint.deployment.ray", SimpleNamespace(get_actor=ray.get_actor, get=late))
    assert run(AssertionError("it is not deployed")) is Exit.FAILED
    assert "cannot be asked" in capsys.readouterr().err


def test_a_command_that_ends_withdraws_only_what_it_deployed_last(monkeypatch, capsys, serve_port):
    def deploy(mark: str) -> None:
        tiny = Tiny.options(name=INGRESS_NAME, user_config={"mark": mark})
        serve.run(tiny.bind(), name=APP_NAME, route_prefix="/tiny")

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_wait", interrupted)
    try:
        deploy("first")
        deploy("second")  # over it, by another command
        assert command._until_a_signal("first", 0.0) is Exit.COMPLETE
        assert "left to it" in capsys.readouterr().err
        assert is_deployed()
        assert command._until_a_signal("second", 0.0) is Exit.COMPLETE
        assert not is_deployed()
    finally:
        if is_deployed():
            withdraw(0.0)


def test_serves_time_limit_is_longer_than_the_endpoints_deadline(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr("endpoint.deployment.serve.start", lambda **options: asked.append(options["http_options"]))
    start("127.0.0.1", 1, SERVE_LIMITS, 5.0)
    start("127.0.0.1", 1, SERVE_LIMITS, None)
    assert [options["request_timeout_s"] for options in asked] == [65.0, None]
