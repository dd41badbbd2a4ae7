"""Ray's HAProxy in the place of Serve's proxies is refused before anything starts, for what it does to requests.

`python -m tests.endpoint.on_serve.test_haproxy NUM_KILLS` prints what that is, as JSON, with
RAY_SERVE_ENABLE_HA_PROXY=1 for HAProxy, whose refusal it passes over, and else for the gate.
"""

import asyncio
import json
import random
import subprocess
import sys

import pytest
import ray

from endpoint.deployment import check_gate, deploy
from endpoint.http.bodies import Limits
from tests.endpoint.on_serve.application import running_serve, served_at
from tests.endpoint.on_serve.command import OWN_CLUSTER, ROOT
from tests.endpoint.on_serve.test_kills import Kills, running_ingresses
from tests.endpoint.web import ask
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]


def what_clients_meet(num_kills: int) -> dict[str, object]:
    """Serve the bundled pair, kill ingresses, and return what became of requests that were under way."""
    pair = ROOT / "examples" / "tiny_pair"
    ray.init(num_cpus=6, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
    with running_serve(Limits()) as port:
        deployed, kills, moments = served_at(port, (f"{pair}/target", f"{pair}/draft")), Kills(), random.Random(1)
        try:
            refusal = check_gate(Limits())
        except ValueError as error:
            refusal = str(error)
        deploy(deployed.application())
        for number in range(num_kills):
            deployed.wait_until_whole()
            wait_until(lambda: len(running_ingresses()) == 2, 180, every_s=0.1)
            asyncio.run(kills.kill_once(deployed, number, moments, running_ingresses))
        lost = {is_stream: [0, 0] for is_stream in (False, True)}
        for one in kills.asked:
            lost[one.body["stream"]][0] += not one.has_succeeded
            lost[one.body["stream"]][1] += 1
        found = {"plain": lost[False], "streams": lost[True]}
        return {**found, "refusal": refusal, "routes": ask(port, "/-/routes").status}


def in_process_of_its_own(*words: str, haproxy: bool) -> subprocess.CompletedProcess[str]:
    environment = OWN_CLUSTER | {"RAY_SERVE_ENABLE_HA_PROXY": str(int(haproxy))}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)


def test_the_command_refuses_haproxy_by_its_name_before_it_starts_anything(text_pair):
    done = in_process_of_its_own("jobs.serve", f"--models.target={text_pair[0]}", "--serve.open", haproxy=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Ray's HAProxy" in done.stderr
    assert "Unset RAY_SERVE_ENABLE_HA_PROXY" in done.stderr


# It fails on the day on which Ray's HAProxy does what the gate does, and ADR 60 is to be written anew.
@pytest.mark.slow
def test_haproxy_loses_what_the_gate_keeps_and_opens_what_it_closes(capsys):
    found = []
    for haproxy in (False, True):
        done = in_process_of_its_own("tests.endpoint.on_serve.test_haproxy", "5", haproxy=haproxy)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
        with capsys.disabled():
            sys.stdout.write(f"\n{'HAProxy' if haproxy else 'gate'}: {found[-1]}\n")
    gate, bare = found
    assert (gate["plain"], gate["streams"]) == ([0, 10], [0, 20]), "lost and asked"
    assert (gate["refusal"], gate["routes"]) == (None, 404)
    assert min(bare["plain"][0], bare["streams"][0]) > 0
    assert "Ray's HAProxy" in bare["refusal"]
    assert bare["routes"] == 200


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(what_clients_meet(int(sys.argv[1])))}\n")
