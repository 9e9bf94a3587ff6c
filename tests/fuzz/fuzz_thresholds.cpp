// libFuzzer over the thresholds reader: whatever the text holds ends in thresholds that are written
// and read back as the same, or in an Error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "harness/contract/error.h"
#include "harness/contract/thresholds.h"
#include "reports/gate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tpjitter;
  Thresholds read;
  try {
    read = parse_thresholds(std::string(reinterpret_cast<const char*>(data), size), "t.toml",
                            gate_metrics());
  } catch (const Error&) {  // one line that says what is wrong
    return 0;
  }
  const std::string text = thresholds_text(read, "again");
  if (thresholds_text(parse_thresholds(text, "again.toml", gate_metrics()), "again") != text) {
    std::abort();
  }
  return 0;
}
