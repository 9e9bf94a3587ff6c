#!/usr/bin/env bash
# Everything tpjitter can say about one node, into one folder: doctor, selftest, all bench_*
# programs, a scenario over several process launches, its report, and the gate if there is a
# baseline. Runs the host backend where there is no GPU. The exit code is the gate's, or the first
# failure's; everything that could be written is written before it.
#   scripts/b200_node.sh [--quick] OUT [SCENARIO] [BASELINE]
# --quick: 3 launches, short benchmarks, short selftest: does everything run here?
#   BUILD=build LAUNCHES=10 THRESHOLDS=scripts/ci/thresholds_b200.toml BACKEND=auto
set -uo pipefail
quick=0
if [[ ${1:-} == --quick ]]; then quick=1 && shift; fi
if [[ $# -lt 1 || $# -gt 3 ]]; then
  echo "usage: $0 [--quick] OUT [SCENARIO] [BASELINE]" >&2
  exit 2
fi
out="$(realpath -m "$1")" scenario="${2:-scenarios/smoke.toml}"
baseline="${3:+$(realpath -m "$3")}"
cd "$(dirname "$0")/.." || exit 2
bin="${BUILD:-build}/bin" launches="${LAUNCHES:-10}" backend="${BACKEND:-auto}"
report_rows=10000000 selftest_flags=() bench_flags=()
read -ra bench_flags <<< "${BENCH_FLAGS:-}"
if [[ $quick -eq 1 ]]; then
  launches=3 report_rows=20000 selftest_flags=(--delays 40)
  bench_flags+=(--benchmark_min_time=0.01)
fi
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
step selftest.json "$bin/tpjitter" selftest --backend "$backend" --json --quiet \
  "${selftest_flags[@]}"
for bench in "$bin"/bench_*; do
  name="$(basename "$bench")"
  if [[ $name == bench_report ]]; then  # times reports over a record that it makes
    step bench_report.txt "$bench" --rows "$report_rows" --dir "$out/bench_report"
    rm -rf "$out/bench_report"
  else
    step "$name.json" "$bench" --benchmark_format=json "${bench_flags[@]}"
  fi
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
