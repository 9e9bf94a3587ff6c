#!/usr/bin/env bash
# Everything tpjitter can say about one node, into one folder: doctor, selftest, all bench_*
# programs, a scenario over several process launches, its report, and the gate if there is a
# baseline. Runs the host backend where there is no GPU. The exit code is the gate's, or the first
# failure's; everything that could be written is written before it.
#   scripts/b200_node.sh OUT [SCENARIO] [BASELINE]
#   BUILD=build LAUNCHES=10 THRESHOLDS=scripts/ci/thresholds_b200.toml BACKEND=auto
set -uo pipefail
if [[ $# -lt 1 || $# -gt 3 ]]; then
  echo "usage: $0 OUT [SCENARIO] [BASELINE]" >&2
  exit 2
fi
out="$(realpath -m "$1")" scenario="${2:-scenarios/smoke.toml}"
baseline="${3:+$(realpath -m "$3")}"
cd "$(dirname "$0")/.." || exit 2
bin="${BUILD:-build}/bin" launches="${LAUNCHES:-10}" backend="${BACKEND:-auto}"
if [[ ! -x $bin/tpjitter ]]; then
  echo "$0: $bin/tpjitter is missing: run scripts/quickstart.sh, or set BUILD" >&2
  exit 2
fi
mkdir -p "$out" || exit 3
rm -rf "$out/run" "$out"/gate.*  # an earlier node's verdict must not stay
status=0 gate=0
step() {  # file, command...: keeps the first exit code that is not 0; 77 is "skipped here"
  local file="$1" code
  shift
  echo "== $*" >&2
  "$@" > "$out/$file"
  code=$?
  if [[ $code -ne 0 && $code -ne 77 && $status -eq 0 ]]; then status=$code; fi
}

step doctor.json "$bin/tpjitter" doctor --backend "$backend" --json
step selftest.json "$bin/tpjitter" selftest --backend "$backend" --json
for bench in "$bin"/bench_*; do
  step "$(basename "$bench").json" "$bench" --benchmark_format=json ${BENCH_FLAGS:-}
done
step run.txt "$bin/tpjitter" run "$scenario" --backend "$backend" --launches "$launches" \
  --out "$out/run" --quiet
step report.md "$bin/tpjitter" report "$out/run" --format md
step report.html.txt "$bin/tpjitter" report "$out/run" --format html -o "$out/report.html"
if [[ -n $baseline ]]; then
  "$bin/tpjitter" gate "$out/run" --baseline "$baseline" \
    ${THRESHOLDS:+--thresholds "$THRESHOLDS"} --junit "$out/gate.xml" --markdown "$out/gate.md" \
    > "$out/gate.txt"
  gate=$?
else
  step baseline.txt "$bin/tpjitter" baseline make "$out/run" -o "$out/baseline.json"
  echo "no baseline given: $out/baseline.json can be the next run's" >&2
fi
exit "$((gate != 0 ? gate : status))"
