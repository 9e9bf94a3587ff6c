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

kernels=(metadata_gpu metadata_page_table_gpu metadata_kv_indices_gpu metadata_topk_gpu
  linear_state_gpu step_inputs_gpu decode_body_gpu decode_body_tables_gpu delay_gpu)
ranks=(all_reduce clock_ping_pong)
harness=(body_graph compositions_gpu execution_gpu execution_parts_gpu injection_gpu cuda_backend cuda_backend_stale)

for test in "${kernels[@]}" "${ranks[@]}" "${harness[@]}"; do
  check "$test" "$bin/test_$test"
done
if ! command -v compute-sanitizer > /dev/null; then
  echo "compute-sanitizer is not on PATH: the sanitizer runs were left out"
  exit "$failed"
fi

# Large shapes and thousands of replays show nothing more to a sanitizer, and take minutes under it.
small='-*PastTwoToThe31*:*EnginesMatrix*:*LargeShapes*:*GraphReplays*:*RecoversADelay*:*AgainstNccl*:*EverySize/*ranks5*:*EverySize/*ranks6*:*EverySize/*ranks7*:*PaysTheAskedOverhead*:*DelaysWithinAMicrosecond*'
sanitizer=(timeout 240 compute-sanitizer --error-exitcode 9 --tool)
for test in "${kernels[@]}" "${ranks[@]}" body_graph compositions_gpu cuda_backend; do
  check "memcheck $test" "${sanitizer[@]}" memcheck "$bin/test_$test" --gtest_filter="$small"
done
for test in metadata_gpu metadata_kv_indices_gpu metadata_topk_gpu linear_state_gpu decode_body_gpu \
  decode_body_tables_gpu; do
  check "racecheck $test" "${sanitizer[@]}" racecheck "$bin/test_$test" --gtest_filter="$small"
done
# Ranks that share a GPU are slowed too unevenly by racecheck for many ranks: two show every race.
check "racecheck all_reduce" "${sanitizer[@]}" racecheck "$bin/test_all_reduce" \
  --gtest_filter='*EverySize/*ranks2_gpus1:*MixesSizes*/*ranks2_gpus1'
# Left out: a captured graph's copy is checked when the graph is launched, before the graph's own
# kernels have written what it copies.
for test in "${kernels[@]}"; do
  check "initcheck $test" "${sanitizer[@]}" initcheck "$bin/test_$test" \
    --gtest_filter="$small:*Captured*:*Replay*:*OneNode*"
done
exit "$failed"
