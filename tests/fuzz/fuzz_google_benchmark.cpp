// libFuzzer over the reader of Google Benchmark's JSON: one file, and the same file twice as two
// launches, judged against each other.
#include <cstdint>
#include <string>

#include "harness/contract/error.h"
#include "reports/gate_exports.h"
#include "reports/google_benchmark.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tpjitter;
  const BenchmarkText file{"b.json", std::string(reinterpret_cast<const char*>(data), size)};
  GateOptions options;
  options.thresholds = default_benchmark_thresholds();
  options.today = "2026-01-01";
  try {
    const BenchmarkSide one = read_benchmark_texts({file}),
                        two = read_benchmark_texts({file, file});
    for (const BenchmarkSide* contender : {&one, &two}) {
      const GateResult result = evaluate_benchmarks(one, *contender, options);
      (void)json_text(gate_json(result));
      (void)gate_text(result);
      (void)gate_junit(result);
    }
  } catch (const Error&) {  // one line that says what is wrong
  }
  return 0;
}
