#!/bin/bash
# Takes this pod's Ray node out of use before the pod ends: nothing new is sent here, and what runs gets SECONDS to finish.
#   drain.sh SECONDS        in a pod of KubeRay, which sets RAY_ADDRESS; else that of the cluster on this machine
# It never fails: a pod must end whether or not its cluster still answers.
seconds=${1:?how many seconds may it take}
node=$(sed -n 's/.*--node_id=\([0-9a-f]\{56\}\).*/\1/p' <(tr '\0' ' ' < "/proc/$(pgrep -o -x raylet)/cmdline") 2>/dev/null)
ray drain-node ${RAY_ADDRESS:+--address "$RAY_ADDRESS"} ${node:+--node-id "$node"} \
  --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod ends" --deadline-remaining-seconds "$seconds" || exit 0
end=$((SECONDS + seconds))
while [ $SECONDS -lt $end ] && pgrep -x raylet > /dev/null; do sleep 1; done
