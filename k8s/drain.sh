#!/bin/bash
# Takes this pod's Ray node out of use before the pod ends: nothing new is sent here, and what runs gets SECONDS to finish.
#   drain.sh SECONDS        in a pod of KubeRay, which sets RAY_ADDRESS
# It never fails: a pod must end whether or not its cluster still answers.
seconds=${1:?how many seconds may it take}
raylet=$(pgrep -o -x raylet) || exit 0
node=$(tr '\0' '\n' < "/proc/$raylet/cmdline" | sed -n 's/^--node_id=//p')
ray drain-node --address "${RAY_ADDRESS:-auto}" --node-id "$node" --reason DRAIN_NODE_REASON_PREEMPTION \
  --reason-message "the pod ends" --deadline-remaining-seconds "$seconds" || exit 0
end=$((SECONDS + seconds))
while [ $SECONDS -lt $end ] && kill -0 "$raylet" 2> /dev/null; do sleep 1; done
