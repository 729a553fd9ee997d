#!/bin/sh
# One experiment per volume: the first start begins it, every later one goes on with it. When it is done, or somebody has
# stopped it, the pod stays, so that its results can be read; delete it when you have them.
set -u
data=${TRIAL_MANAGER_DATA_DIR:-/data}
# There once somebody has stopped the search, so that another pod does not go on with it.
stopped=$data/stopped

# As the first process of the container nobody else would pass signals on. `$!` names the program from the moment it is
# there, which a variable of our own would not.
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
# A pod that is moved leaves its trials to the next one.
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

# docs/exit-codes.md says what they mean.
case $code in
0 | 1) # It is done, or held until something is mended.
    stay ;;
130) # Somebody has stopped it.
    : >"$stopped"
    stay ;;
*) # The next start goes on.
    exit "$code" ;;
esac
