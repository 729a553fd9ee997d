#!/bin/sh
# One experiment per volume: the first start begins it, every later one goes on with it. When it is done, the pod
# stays, so that its results can be read; delete it when you have them.
set -u
data=${TRIAL_MANAGER_DATA_DIR:-/data}

# The configuration is mounted as links into a folder that Kubernetes swaps; trials get plain files.
mkdir -p "$data/code"
cp -L "${EXPERIMENT_DIR:-/experiment}"/* "$data/code/"

# As the first process of the container nobody else would pass signals on.
manager= asked=
trap 'asked=yes; if [ -n "$manager" ]; then kill -TERM "$manager" 2>/dev/null; else exit 143; fi' TERM INT

set -- run "$data/code/experiment.yml"
for database in "$data"/*/trialkeeper.db; do
    if [ -e "$database" ]; then
        folder=${database%/*}
        set -- resume "${folder##*/}"
    fi
done
trial-manager "$@" &
manager=$!
wait "$manager"
code=$?
# A signal ends the wait, not the manager.
while [ -n "$asked" ]; do
    asked=
    wait "$manager"
    code=$?
done

case $code in
0 | 1) # It is done; 1 says that no trial has succeeded.
    sleep infinity &
    manager=$!
    wait "$manager"
    ;;
*) # The next start goes on.
    exit "$code" ;;
esac
