#!/usr/bin/env bash
# Builds the trial image and runs it in Docker: as PID 1, as an arbitrary user, with a read-only root, with a memory
# limit, and in an otherwise empty image. Then runs whole searches on the scripted cluster, where Docker acts as the
# kubelet and runs the manager's pods as containers.
#
#   tests/containers/run.sh [PATH OF A STATIC trialkeeper [FILTER OF THE SEARCHES]]
#
# TRIALKEEPER_TEST_KINDS restricts the kinds of objects that run the searches, for instance to `Framework,Job`.
#
# Requires Docker, and root to start its daemon. If it cannot run, it prints the reason and exits with 0. The base image
# is python:3.12-slim, or without a registry an image that debootstrap creates.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
  echo "skipped: $*"
  exit 0
}

command -v docker >/dev/null 2>&1 || skip "docker is not installed"
work=$(mktemp -d)
daemon=
finish() {
  [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon" || true; } 2>/dev/null
  # The daemon leaves the host's network namespace mounted there.
  umount "$work/exec/netns/default" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# --- the daemon: the running one, or a private one -----------------------------------------------------------
if ! docker info >/dev/null 2>&1; then
  [ "$(id -u)" -eq 0 ] || skip "no Docker daemon is running, and only root can start one"
  command -v dockerd >/dev/null 2>&1 || skip "no Docker daemon is running, and dockerd is not installed"
  export DOCKER_HOST=unix://$work/docker.sock
  # The containers need no network, so the host's network is not changed.
  dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
    --bridge none --iptables=false >"$work/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 100); do
    docker info >/dev/null 2>&1 && break
    kill -0 "$daemon" 2>/dev/null || skip "dockerd does not start: $(tail -n 1 "$work/dockerd.log")"
    sleep 0.2
  done
  docker info >/dev/null 2>&1 || skip "dockerd did not answer within 20 s"
fi

# --- the program ---------------------------------------------------------------------------------------------
program=${1:-target/x86_64-unknown-linux-musl/dist/trialkeeper}
[ $# -gt 0 ] || cargo static || skip "cannot build a static trialkeeper"

# --- the image -----------------------------------------------------------------------------------------------
base=python:3.12-slim
if ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull --quiet "$base" >/dev/null 2>&1; then
  command -v debootstrap >/dev/null 2>&1 || skip "$base cannot be pulled, and debootstrap is not installed"
  base=trialkeeper-test-python
  # Kept between runs, because creating it takes a minute.
  tar=target/$base.tar
  if [ ! -e "$tar" ]; then
    debootstrap --variant=minbase --include=python3 bookworm "$work/root" >"$work/debootstrap.log" 2>&1 ||
      skip "cannot pull or create a base image: $(tail -n 1 "$work/debootstrap.log")"
    mkdir -p target
    tar -C "$work/root" -cf "$tar.part" . && mv "$tar.part" "$tar"
  fi
  docker import "$tar" "$base" >/dev/null
fi

# Uses the second stage unchanged, and replaces the first one with the built program.
mkdir "$work/context"
cp "$program" "$work/context/trialkeeper"
{
  sed -n 's/^ARG BASE.*/&/p' Dockerfile.trial
  printf 'FROM scratch AS agent\nCOPY trialkeeper /out/trialkeeper\n'
  sed -n '/^FROM ${BASE}/,$p' Dockerfile.trial
} >"$work/context/Dockerfile"
image() {
  docker build --quiet --build-arg BASE="$1" --tag "$2" "$work/context" >"$work/build.log" 2>&1 ||
    { cat "$work/build.log" && exit 1; }
}
image "$base" trialkeeper-test
image scratch trialkeeper-test-empty

# --- the checks ----------------------------------------------------------------------------------------------
failed=0
# check NAME EXPECTED-CODE EXPECTED-TEXT COMMAND...: checks the command's exit code, and a text in its output.
check() {
  local name=$1 code=$2 text=$3 said got=0
  shift 3
  said=$("$@" 2>&1) || got=$?
  if [ "$got" = "$code" ] && grep -qF -- "$text" <<<"$said"; then
    echo "ok      $name"
  else
    echo "FAILED  $name: exit code $got (expected $code), expected \"$text\" in: $said"
    failed=1
  fi
}
trial() { docker run --rm --network none "$@"; }
hardened=(--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges)
out=(run --output-dir /tmp/trial --)

check "the agent runs as PID 1 and returns the trial's exit code" 3 "parent 1" \
  trial trialkeeper-test "${out[@]}" sh -c 'echo parent $PPID; exit 3'
check "the agent runs as the image's user" 0 "id 65532" \
  trial trialkeeper-test "${out[@]}" sh -c 'echo id $(id -u)'
check "the agent runs as any other user" 0 "id 12345" \
  trial --user 12345:0 trialkeeper-test "${out[@]}" sh -c 'echo id $(id -u)'
check "the agent runs with a read-only root and without capabilities" 0 "score=0.5" \
  trial "${hardened[@]}" trialkeeper-test "${out[@]}" echo score=0.5
check "the agent runs without any writable folder" 0 "score=0.5" \
  trial --read-only --cap-drop ALL trialkeeper-test run -- echo score=0.5
check "the agent runs below another init" 4 "" \
  trial --init trialkeeper-test "${out[@]}" sh -c 'exit 4'
check "a killed trial returns 128 + signal" 137 "" \
  trial trialkeeper-test "${out[@]}" sh -c 'kill -9 $$'
check "a missing program returns 127" 127 "no-such-program" \
  trial trialkeeper-test "${out[@]}" no-such-program
check "a file that is not executable returns 126" 126 "passwd" \
  trial trialkeeper-test "${out[@]}" /etc/passwd
check "orphans are reaped" 0 "zombies 0" trial trialkeeper-test "${out[@]}" sh -c '
  for i in 1 2 3 4 5; do (sh -c "exit 0" &) ; done
  sleep 1
  echo zombies $(cat /proc/[0-9]*/stat | grep -c ") Z ")'
check "the verdict names the memory limit for a killed child" 137 "oom-kernel" trial --memory 64m --memory-swap 64m \
  --entrypoint /bin/sh trialkeeper-test -c '
    trialkeeper run --output-dir /tmp/trial -- sh -c "head -c 200m /dev/zero | tail >/dev/null; kill -9 \$\$"
    code=$?; cat /tmp/trial/verdict.json; exit $code'
check "the verdict names the memory limit for a killed trial" 137 "oom-kernel" trial --memory 64m --memory-swap 64m \
  --entrypoint /bin/sh trialkeeper-test -c '
    trialkeeper run --output-dir /tmp/trial -- tail /dev/zero
    code=$?; cat /tmp/trial/verdict.json; exit $code'
check "the agent runs under the default seccomp profile, as any user, without capabilities" 0 "Seccomp:	2" \
  trial --user 4242:4242 "${hardened[@]}" trialkeeper-test "${out[@]}" grep Seccomp: /proc/self/status
check "a killed agent takes processes outside its session with it" 0 "gone" trial \
  --entrypoint /bin/sh trialkeeper-test -c '
    trialkeeper run --output-dir /tmp/trial -- sh -c "setsid sleep 600 & sleep 600" &
    keeper=$!
    until ls /tmp/trial/verdict.json >/dev/null 2>&1; do sleep 0.1; done
    kill -9 $keeper
    for i in 1 2 3 4 5 6 7 8 9 10; do
      grep -lqs "^sleep$" /proc/[0-9]*/comm || { echo gone; exit 0; }
      sleep 0.3
    done'
check "the agent runs in an empty image" 0 "trialkeeper" \
  trial trialkeeper-test-empty run -- /usr/local/bin/trialkeeper --version

name=trialkeeper-test-$$
docker run --detach --network none --name "$name" trialkeeper-test "${out[@]}" \
  sh -c 'trap "echo bye; exit 7" TERM; echo up; while :; do sleep 0.1; done' >/dev/null
for _ in $(seq 100); do
  docker logs "$name" 2>&1 | grep -q up && break
  sleep 0.1
done
check "docker stop reaches the trial" 0 "$name" docker stop --time 20 "$name"
check "the trial can handle the stop" 0 "bye" docker logs "$name"
check "the container returns the trial's exit code" 0 "7" docker inspect --format '{{.State.ExitCode}}' "$name"
docker rm "$name" >/dev/null

# Control groups of version 2, if this kernel can mount them beside version 1.
if [ "$(id -u)" -eq 0 ] && unshare -m mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null; then
  check "the agent reads control groups of version 2" 0 "cpu_usage_us" unshare -m sh -c '
    mount -t cgroup2 none /sys/fs/cgroup && cd "$2" &&
      "$1" run --sample-interval 50ms --output-dir v2 -- sleep 0.4 2>/dev/null && cat v2/spool/*/bulk-*.seg | tr -d "\\0"' \
    sh "$(realpath "$program")" "$work"
else
  echo "skipped: cannot mount control groups of version 2"
fi

# A PID namespace with the /proc of its parent, in which process 1 is the ancestor of all processes.
if [ "$(id -u)" -eq 0 ] && unshare -fp true 2>/dev/null; then
  check "foreign processes do not count as the trial's" 3 "alone" sh -c '
    cd "$2" && unshare -fp --kill-child "$1" run --output-dir strange -- sh -c "(setsid sleep 60 &); exit 3" 2>/dev/null
    code=$?
    grep -q leftovers strange/verdict.json || echo alone
    exit "$code"' sh "$(realpath "$program")" "$work"
else
  echo "skipped: cannot create a PID namespace"
fi

[ "$failed" -eq 0 ] && echo "the trial image passes all checks"

# --- searches with containers as pods ------------------------------------------------------------------------
export TRIALKEEPER_TEST_DOCKER=1 TRIALKEEPER_TEST_IMAGE=$base TRIALKEEPER_TEST_AGENT_IMAGE=trialkeeper-test
TRIAL_MANAGER_AGENT=$(realpath "$program")
export TRIAL_MANAGER_AGENT
# The scripted cluster does not schedule or admit pods.
cargo test --locked --workspace --test e2e -- --ignored "${2:-cluster::}" --skip a_request_that_no_node_can_meet || failed=1
exit "$failed"
