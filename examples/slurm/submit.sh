#!/bin/bash
# Submit a run in N shards and its merge: examples/slurm/submit.sh TASKS N [more words for sbatch]
# Submit only what is owed, later: examples/slurm/submit.sh TASKS owed
# Reads RUN, MODEL, BASE_URL and, if set, VERIFIER, SAMPLES, CONCURRENCY (per shard), ROLLFORGE from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export TASKS=$1 RUN MODEL BASE_URL
if [ "$2" = owed ]; then
  array=$(${ROLLFORGE:-rollforge} status "$RUN" --owed)
  [ -n "$array" ] || { echo "nothing is owed"; exit 0; }
else
  array=0-$(($2 - 1))
fi
shift 2
shards=$(sbatch --parsable --export=ALL --array="$array" "$@" "$here/shards.sbatch")
# afterany: merge names what is missing and exits with code 3, which tells more than a job that never ran.
merge=$(sbatch --parsable --export=ALL --dependency="afterany:$shards" "$@" \
  --job-name=rollforge-merge --wrap "exec ${ROLLFORGE:-rollforge} merge '$RUN'")
echo "shards: job $shards, array $array; merge: job $merge"
