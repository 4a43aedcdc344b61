#!/usr/bin/env bash
# A real model gets better, on CPU: improve.sh [sft|dpo|grpo] [SEED]
# collect from the model, probe the verifier, check, prepare, train, serve the trained model, and let `bench` say whether it is better.
# Everything is under work/; a step that is done is not done again. Exit code 0: better, with a paired interval; 4: not shown.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD variant=${1:-sft} seed=${2:-1}
python=${IMPROVE_PYTHON:-$here/.venv/bin/python} rollforge=${ROLLFORGE:-rollforge} work=${WORK:-$here/work}
train_pairs=${TRAIN_PAIRS:-36} heldout_pairs=${HELDOUT_PAIRS:-20} k=${SAMPLES:-6} bench_k=${BENCH_SAMPLES:-4} steps=${STEPS:-0}
run=${RUN:-runs/seed$seed} name=$variant$seed verifier=$here/number.py:verify
sampling=(--temperature 0.8 --max-output-tokens 32 -c 8 --progress plain)
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

servers=()
stop() {
  for one in "${servers[@]}"; do kill "$one" 2>/dev/null || true; done
  servers=()
}
trap stop EXIT
serve() { # serve FILE; sets $url
  local port log=logs/$(basename "$1").log
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  mkdir -p logs
  "$python" "$here/model.py" serve "$1" "$port" >"$log" 2>&1 &
  servers+=($!)
  url=http://127.0.0.1:$port/v1
  for _ in $(seq 120); do
    if "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health', timeout=2)" 2>/dev/null; then return; fi
    sleep 1
  done
  echo "the server did not start; see $work/$log" >&2
  exit 1
}

[ -n "${IMPROVE_PYTHON:-}" ] || bash setup.sh
mkdir -p "$work"
cd "$work"
weights=$("$python" "$here/model.py" weights)
[ -f heldout.jsonl ] || "$python" "$here/tasks.py" "$train_pairs" "$heldout_pairs" 1 .
[ -f base/config.json ] || "$python" "$here/model.py" unpack base

serve "$weights"
"$rollforge" collect -i train.jsonl -o "$run" -m smollm2 --base-url "$url" --verifier "$verifier" -k "$k" --stop-on never "${sampling[@]}"
"$rollforge" verify "$run" --verifier "$verifier" --probe
"$rollforge" check "$run" --for "$variant" || echo "(the manifest of the dataset records what check found)"
"$rollforge" prepare "$variant" "$run" -o "data/$name" --to trl --decontaminate heldout.jsonl --force
stop # the trainer needs both cores

if [ ! -f "models/$name.gguf" ]; then
  "$python" "$here/train.py" "$variant" "data/$name" base "models/$name" "$seed" "$steps"
  "$python" "$here/model.py" pack "models/$name" "models/$name.gguf"
  rm -r "models/$name"
fi

serve "$weights"
base_url=$url
serve "models/$name.gguf"
mkdir -p "bench/$name"
[ ! -d bench/base ] || cp -r bench/base "bench/$name/" # the base model is asked once, whatever was trained since
bench=("$rollforge" bench -i heldout=heldout.jsonl -o "bench/$name" -m "base=smollm2@$base_url" -m "trained=smollm2@$url" -k "$bench_k"
  --verifier "$verifier" "${sampling[@]}")
code=0
"${bench[@]}" --require 'trained > base' || code=$?
[ -d bench/base ] || cp -r "bench/$name/base" bench/
cp "bench/$name/bench.json" "bench/$name.json"
echo "the same, where it is enough to mention the right number: what is left of the gain is not brevity"
"${bench[@]}" --metric mentions --json >"bench/$name-mentions.json"
"$python" - "bench/$name-mentions.json" <<'END'
import json, sys
print(json.load(open(sys.argv[1]))["differences"][-1]["verdict"])
END
exit "$code"
