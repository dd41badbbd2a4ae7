"""`ray job submit` on a cluster: a job that completes, and one that is stopped and submitted again."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from ray.job_submission import JobStatus, JobSubmissionClient

from tests.faults.cluster import ROOT, RayCluster
from tests.faults.runs import PATIENCE_S, FaultRun
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
STOP_WAIT = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}})


def ray_job(cluster: RayCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """`ray job WORDS`, ended."""
    verb, *rest = words
    command = ["ray", "job", verb, "--address", f"http://{cluster.dashboard}", *rest]
    return subprocess.run(command, cwd=ROOT, env=cluster.environment, capture_output=True, text=True, timeout=600)


def config_file(run: FaultRun) -> Path:
    """The run's configuration as a file: nothing of it is on the command line."""
    sections: dict[str, dict[str, object]] = {}
    for argument in run.arguments:
        name, has_value, value = argument.removeprefix("--").partition("=")
        section, _, field = name.removeprefix("no-").partition(".")
        sections.setdefault(section, {})[field] = yaml.safe_load(value) if has_value else not name.startswith("no-")
    path = run.folder / "job.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def test_a_submitted_job_completes_and_ends_with_exit_code_0(cluster, new_run, say):
    run = new_run()
    environment = cluster.environment | {"RAY_API_SERVER_ADDRESS": f"http://{cluster.dashboard}"}
    command = ["examples/submit_job.sh", str(config_file(run))]
    job = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "' succeeded" in job.stdout
    assert "Corpus in" in job.stdout
    assert "attempts were repeated" not in job.stdout
    say(run.prove_nothing_lost(0))


def test_a_submitted_job_that_cannot_run_fails_with_its_exit_code(cluster, new_run):
    run = new_run("--input.path=/nowhere")
    command = ["python", "-m", "jobs.generate", "--config", str(config_file(run))]
    job = ray_job(cluster, "submit", "--working-dir", ".", "--submission-id", "wrong", "--", *command)
    assert job.returncode == 1
    assert "error: no input file at '/nowhere'" in job.stdout
    info = JobSubmissionClient(f"http://{cluster.dashboard}").get_job_info("wrong")
    assert (info.status, info.driver_exit_code) == (JobStatus.FAILED, 2)


def test_a_job_that_is_stopped_finishes_its_units_in_flight_and_goes_on_when_it_is_submitted_again(
    cluster, new_run, say
):
    run, client = new_run(), JobSubmissionClient(f"http://{cluster.dashboard}")
    options = json.dumps({"diary": str(run.diary.path), "pause_s": 1.0})
    driver = ["python", "-m", "tests.faults.driver", "paced", options, "--config", str(config_file(run))]
    # The shell lives on through SIGTERM, to say the exit code: Ray keeps none of a job that was stopped.
    script = f'trap : TERM; {shlex.join(driver)}; code=$?; echo "exit code $code"; exit $code'
    submit = ("submit", "--no-wait", "--working-dir", ".", "--runtime-env-json", STOP_WAIT, "--submission-id")
    assert ray_job(cluster, *submit, "first", "--", "sh", "-c", script).returncode == 0

    def is_time() -> bool:
        return len(run.commits()) >= 3 or client.get_job_status("first").is_terminal()

    wait_until(is_time, PATIENCE_S, every_s=0.2)
    in_flight = set().union(*run.diary.in_flight().values())
    assert in_flight
    assert client.stop_job("first")
    wait_until(lambda: client.get_job_status("first").is_terminal(), PATIENCE_S, every_s=0.2)
    said = client.get_job_logs("first")
    assert client.get_job_status("first") == JobStatus.STOPPED, said
    assert "stopping: what is in flight gets 120 s" in said
    assert "units to go; the same command goes on" in said
    assert "exit code 3" in said
    before = run.commits()
    assert {f"part-{unit:09d}.parquet" for unit in in_flight} <= before.keys(), "a unit in flight was dropped"
    assert len(before) < run.corpus.num_units

    again = ray_job(cluster, *[word for word in submit if word != "--no-wait"], "again", "--", *driver)
    assert again.returncode == 0, again.stdout + again.stderr
    assert before.items() <= run.commits().items()
    say(f"stopped with {len(in_flight)} units in flight; {run.prove_nothing_lost(0)}")
