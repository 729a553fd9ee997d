#!/bin/sh
# One experiment per volume: the first start begins it, and every later start continues it. When the experiment is done, or a
# user has stopped it, the pod stays, so that you can read the results. Delete the pod when you have them.
set -u
data=${TRIAL_MANAGER_DATA_DIR:-/data}
# Exists once a user has stopped the search, so that another pod does not continue it.
stopped=$data/stopped

# This script is the first process of the container, so it must pass signals on. `$!` names the program from its start on; a
# variable that is set afterwards would not.
asked= heard=
trap 'asked=yes heard=yes; if [ -n "${!:-}" ]; then kill -TERM "$!" 2>/dev/null; else exit 143; fi' TERM INT

# Until the pod is to end.
stay() {
    trap 'kill "${!:-}" 2>/dev/null; exit 0' TERM INT
    if [ -n "$asked" ]; then
        exit 0
    fi
    sleep infinity &
    wait "$!"
    exit 0
}

if [ -e "$stopped" ]; then
    echo "The search was stopped. It goes on once $stopped is removed and this pod is deleted." >&2
    stay
fi

# The configuration is mounted as links into a folder that Kubernetes swaps; trials get plain files.
rm -rf "$data/code"
mkdir -p "$data/code"
cp -L "${EXPERIMENT_DIR:-/experiment}"/* "$data/code/"

set -- run "$data/code/experiment.yml"
for database in "$data"/*/trialkeeper.db; do
    if [ -e "$database" ]; then
        folder=${database%/*}
        set -- resume "${folder##*/}"
    fi
done
# A moved pod leaves its trials to the next pod.
export TRIAL_MANAGER_ON_TERM=leave
trial-manager "$@" &
wait "$!"
code=$?
# A signal ends the wait, not the manager.
while [ -n "$heard" ]; do
    heard=
    wait "$!"
    code=$?
done

# docs/exit-codes.md lists the codes.
case $code in
0 | 1) # It is done, or held until a user fixes the cause.
    stay ;;
130) # A user has stopped it.
    : >"$stopped"
    stay ;;
*) # The next start continues.
    exit "$code" ;;
esac
