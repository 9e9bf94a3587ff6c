#!/usr/bin/env bash
# On a machine with a GPU: the GPU tests, then the kernel tests under compute-sanitizer (memcheck,
# racecheck, initcheck). The build folder is the first argument, build/ by default.
# Timing tests are left out under the sanitizer, which slows kernels tenfold and more.
set -uo pipefail
cd "$(dirname "$0")/.."
bin="${1:-build}/bin"
failed=0

check() {  # name, command...
  local name="$1" log
  shift
  log="$(mktemp)"
  if "$@" > "$log" 2>&1; then
    echo "ok       $name   $(grep -E 'SUMMARY' "$log" | tail -1)"
  else
    echo "FAILED   $name"
    grep -E 'SUMMARY|Failure|FAILED|Invalid|hazard' "$log" | head -20
    failed=1
  fi
  rm -f "$log"
}

for test in metadata_gpu metadata_page_table_gpu metadata_kv_indices_gpu step_inputs_gpu all_reduce decode_body_gpu body_graph cuda_backend cuda_backend_stale; do
  check "$test" "$bin/test_$test"
done
if ! command -v compute-sanitizer > /dev/null; then
  echo "compute-sanitizer is not on PATH: the sanitizer runs were left out"
  exit "$failed"
fi

# Large shapes and thousands of replays show nothing more to a sanitizer, and take minutes under it.
small='-*PastTwoToThe31*:*EnginesMatrix*:*LargeShapes*:*GraphReplays*:*RecoverADelay*:*PaysTheAskedOverhead*'
sanitizer=(compute-sanitizer --error-exitcode 9 --tool)
for test in metadata_gpu metadata_page_table_gpu metadata_kv_indices_gpu step_inputs_gpu all_reduce decode_body_gpu body_graph cuda_backend; do
  check "memcheck $test" "${sanitizer[@]}" memcheck "$bin/test_$test" --gtest_filter="$small"
done
for test in metadata_gpu decode_body_gpu; do
  check "racecheck $test" "${sanitizer[@]}" racecheck "$bin/test_$test" --gtest_filter="$small"
done
# Ranks that share a GPU are slowed too unevenly by racecheck for many ranks: two show every race.
check "racecheck all_reduce" "${sanitizer[@]}" racecheck "$bin/test_all_reduce" \
  --gtest_filter='*EverySize/ranks2_gpus1:*MixesSizes*/ranks2_gpus1'
# Left out: a captured graph's copy is checked when the graph is launched, before the graph's own
# kernels have written what it copies.
for test in metadata_gpu metadata_page_table_gpu metadata_kv_indices_gpu step_inputs_gpu decode_body_gpu; do
  check "initcheck $test" "${sanitizer[@]}" initcheck "$bin/test_$test" \
    --gtest_filter="$small:*Captured*:*Replay*:*OneNode*"
done
exit "$failed"
