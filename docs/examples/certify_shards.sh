#!/bin/bash
# Certifies a test set on a SLURM cluster: an array job of shards, then their merge.
#
#     bash certify_shards.sh
#
# submits the shards that are missing or unfinished, and only those. Run it again when the array has
# ended, as often as needed: shards that were preempted, ran into their time limit or failed are
# submitted again and resume where they stopped. Once all are complete it merges them into $RUN. With
# `--sampling budget` the first merge makes the plan from the pilot votes of all shards, and the
# script submits them a second time to draw the votes.
#
# Adjust the lines down to "no changes needed below", or set the variables in the environment.

#SBATCH --time=04:00:00
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --output=certify-%A_%a.log

set -euo pipefail

# source .venv/bin/activate    # wherever sween is installed

RUN=${RUN:-runs/cifar10-test}  # folder of the merged run; shard 3 is in $RUN.shards/3
SHARDS=${SHARDS:-16}           # keep this number until the run is merged
CERTIFY=${CERTIFY:-cifar10-sween3-gaussian-sigma0.50 --data-root data --all --n 100000 --device cuda}

# No changes needed below.

export RUN SHARDS CERTIFY  # sbatch passes the environment on to its jobs

if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then  # one task of the array: one shard
    # shellcheck disable=SC2086  # the words of $CERTIFY are separate arguments
    exec sween certify $CERTIFY --quiet \
        --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" --out "$RUN.shards/$SLURM_ARRAY_TASK_ID"
fi

job=certify-${RUN//[^A-Za-z0-9]/-}
if [[ -n $(squeue --me --noheader --name="$job") ]]; then
    echo "shards of $RUN are still queued or running; run this again when they have ended"
    exit
fi

folders=()
for ((number = 1; number <= SHARDS; number++)); do
    folders+=("$RUN.shards/$number")
done

left=$(sween merge "${folders[@]}" --missing)
if [[ -z $left ]]; then
    sween merge "${folders[@]}" --out "$RUN"
    left=$(sween merge "${folders[@]}" --missing)  # all of them, if that merge made their plan
fi
if [[ -n $left ]]; then
    sbatch --job-name="$job" --array="$left" "$0"
fi
