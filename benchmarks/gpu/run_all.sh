#!/usr/bin/env bash
# Everything that is to be measured on one CUDA GPU, in one command; installs nothing and writes two JSON files.
#
#   benchmarks/gpu/run_all.sh                                   Clef-Flash's shape, random weights (built once, 19 GB on disk)
#   MODEL=/path/to/clef-flash benchmarks/gpu/run_all.sh         a real release
#   benchmarks/gpu/run_all.sh --slo "p99<200ms" --seconds 60    further options go to benchmarks.gpu.run_all
#
# First one server alone: cold and cached latency, the highest rate within an SLO, and how near the roofline they are. Then
# stock SGLang beside ours (prefix_sharing.sh; STOCK=0 leaves it out). About half an hour. Settings:
#   PYTHON  the environment to use       (default: .venv/bin/python, which `make install-dev DEVICE=cuda` prepares)
#   OUT     the directory to write into  (default: gpu-DATE-COMMIT in the current directory)
#
# Nobody has run this yet: no figure in this repository comes from a GPU.
set -euo pipefail

here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "run_all.sh: $*" >&2
  exit 1
}

python=${PYTHON:-.venv/bin/python}
command -v "$python" > /dev/null || fail "no $python; run 'make install-dev DEVICE=cuda' on this machine, or set PYTHON"
device=$("$python" -c 'from launch.device import cuda_problem; print(cuda_problem() or "usable")')
[[ $device == usable ]] || fail "CUDA cannot be used: $device"

commit=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)
out=${OUT:-gpu-$(date -u +%Y-%m-%d)-$commit}
[[ $out == /* ]] || out=$here/$out
mkdir -p "$out" 2> /dev/null || fail "cannot write $out"

model=()
if [[ -n ${MODEL:-} ]]; then
  path=$(cd "$here" && cd "$MODEL" && pwd) || fail "MODEL=$MODEL is not a directory"
  export MODEL=$path
  model=(--model "$MODEL")
fi

"$python" -m benchmarks.gpu.run_all "${model[@]}" "$@" | tee "$out/server.txt"
tail -n 1 "$out/server.txt" > "$out/server.json"
"$python" -m json.tool "$out/server.json" > /dev/null || fail "the last line of the output is no JSON; see above"
echo "written: $out/server.json" >&2

if [[ ${STOCK:-1} != 0 ]]; then
  PYTHON=$python OUT=$out/prefix-sharing.json benchmarks/gpu/prefix_sharing.sh
fi
