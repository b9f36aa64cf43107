#!/usr/bin/env bash
# Stock SGLang 0.5.23 beside clef-serving on one CUDA GPU, in one run; writes one JSON file.
#
#   benchmarks/gpu/prefix_sharing.sh                        Clef-Flash's shape, random weights (built once, 19 GB on disk)
#   MODEL=/path/to/clef-flash benchmarks/gpu/prefix_sharing.sh     a real release
#   benchmarks/gpu/prefix_sharing.sh --state-tokens 16384          further options go to benchmarks.prefix_sharing
#
# Both engines are alive at once, so that they can take turns: the GPU needs about 80 GB for Clef-Flash in BF16. Settings:
#   PYTHON  the environment to use       (default: .venv/bin/python, which `make install` prepares on a CUDA machine)
#   OUT     the JSON file to write       (default: prefix-sharing-DATE-COMMIT.json in the current directory)
#   TOKENS  KV slots of each engine      (default: 270000, 4 prompts of the longest length; 9 GB each for Clef-Flash)
#   STATES  Gated DeltaNet states kept   (default: 96; 50 MB each for Clef-Flash)
#
# Nobody has run this yet: no figure in this repository comes from a GPU.
set -euo pipefail

here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "prefix_sharing.sh: $*" >&2
  exit 1
}

python=${PYTHON:-.venv/bin/python}
command -v "$python" > /dev/null || fail "no $python; run 'make install' on this machine, or set PYTHON"
device=$("$python" -c 'from launch.device import cuda_problem; print(cuda_problem() or "usable")')
[[ $device == usable ]] || fail "CUDA cannot be used: $device"

commit=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)
out=${OUT:-prefix-sharing-$(date -u +%Y-%m-%d)-$commit.json}
[[ $out == /* ]] || out=$here/$out
touch "$out" || fail "cannot write $out"

if [[ -n ${MODEL:-} ]]; then
  model=$(cd "$here" && cd "$MODEL" && pwd) || fail "MODEL=$MODEL is not a directory"
  weights=(--model "$model")
else
  weights=(--random-shape clef-flash)
fi

# SGLang would give most of the GPU to whichever engine starts first: both get pools of the same, fixed size instead.
engine=()
for argument in --mem-fraction-static 0.8 --max-total-tokens "${TOKENS:-270000}" --max-mamba-cache-size "${STATES:-96}"; do
  engine+=("--engine-arg=$argument")
done

printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
"$python" -m benchmarks.prefix_sharing --device cuda "${weights[@]}" "${engine[@]}" "$@" | tee "$printed"
tail -n 1 "$printed" > "$out"
"$python" -m json.tool "$out" > /dev/null || fail "the last line of the output is no JSON; see above"
echo "written: $out" >&2
