#!/bin/sh
# Runs a configuration as a job of a Ray cluster, shows its logs and ends with 0 if it completed, else with 1:
#   RAY_API_SERVER_ADDRESS=http://head:8265 examples/submit_job.sh examples/configs/gpu_cluster.yaml
# Stopped or failed, it goes on from what is committed when it is submitted again. docs/operations.md says more.
set -eu
cd "$(dirname "$0")/.."
# Ray kills a stopped job after 3 seconds unless told otherwise; units in flight get run.grace_period_s (120) to finish.
exec ray job submit --working-dir . \
  --runtime-env-json '{"excludes": ["benchmarks", "docs", "tests"], "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "180"}}' \
  -- python -m jobs.generate --config "$1"
