// libFuzzer over the baseline reader: what is read is judged against itself and rendered in every
// form, and comes back the same from its own document; or it ends in an Error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "harness/contract/error.h"
#include "reports/baseline.h"
#include "reports/gate.h"
#include "reports/gate_exports.h"

namespace {

using namespace tpjitter;

void judge(const LaunchSet& base, const LaunchSet& contender) {
  GateOptions options;
  options.thresholds = default_thresholds(gate_metrics(), contender.backend);
  options.today = "2026-01-01";
  const GateResult result = evaluate_gate(&base, contender, options);
  (void)json_text(gate_json(result));
  (void)gate_text(result);
  (void)gate_junit(result);
  (void)gate_markdown(result);
  (void)gate_annotations(result, "github");
  (void)gate_annotations(result, "gitlab");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const LaunchSet set = launch_set_from_text(text, "b.json");
    const Json document = launch_set_to_json(set);
    if (launch_set_to_json(launch_set_from_json(document, "again.json")) != document) std::abort();
    judge(set, set);
    LaunchSet more = set;
    for (LaunchResult& launch : more.launches) launch.source += "+";
    merge(&more, set);
    judge(set, more);
  } catch (const Error&) {  // one line that says what is wrong
  }
  return 0;
}
