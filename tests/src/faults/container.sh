#!/bin/sh
# What a container runtime is to the agent: starts it with the manager's words, except that the manager is
# reached through the proxy, and starts it again in place where that is wanted.
kind=$1
skip=
for word do
    shift
    if [ -n "$skip" ]; then
        case $skip in
        attempt) TRIALKEEPER_ATTEMPT=$word ;;
        output)
            output=$word
            set -- "$@" "$word"
            ;;
        esac
        skip=
        continue
    fi
    case $word in
    --manager-file)
        skip=manager
        set -- "$@" --manager-file "$BED/proxy.url"
        ;;
    --attempt) skip=attempt ;;
    --output-dir)
        skip=output
        set -- "$@" "$word"
        ;;
    *) set -- "$@" "$word" ;;
    esac
done
export TRIALKEEPER_ATTEMPT
[ "$kind" = run ] || exec "$KEEPER" "$@"
shift
if [ -n "$SPOOLS" ]; then
    # The spool lies on a disk of its own.
    mkdir -p "$SPOOLS/${output##*/}"
    [ -e "$output/spool" ] || ln -s "$SPOOLS/${output##*/}" "$output/spool"
fi
set -- run --heartbeat 200ms --sample-interval 0 --gpu-program none --flush "$FLUSH" "$@"
export FAULTS_CLOCK="$BED/agents.clock"
[ -n "$IN_PLACE" ] || exec "$KEEPER" "$@"
while :; do
    "$KEEPER" "$@"
    code=$?
    [ $code = 137 ] || exit $code
    read -r answer <"$BED/restart"
    [ "$answer" = other ] && TRIALKEEPER_ATTEMPT=$TRIALKEEPER_ATTEMPT-again
done
