#!/bin/sh
# Takes its steps when the gate lets it. Everything it prints follows from its process id, and it keeps its
# own record of what it has printed.
echo "$NNI_TRIAL_JOB_ID $$ start" >>"$BED/record"
step=0
while [ $step -lt $STEPS ]; do
    read -r _ <"$BED/gate"
    end=$((step + BURST))
    [ $end -gt $STEPS ] && end=$STEPS
    while [ $step -lt $end ]; do
        echo "line $$ $step$PAD"
        echo "oops $$ $step" >&2
        echo "score=$(($$ * 100000 + step))"
        step=$((step + 1))
    done
    echo "$NNI_TRIAL_JOB_ID $$ $step" >>"$BED/record"
done
