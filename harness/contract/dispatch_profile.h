// Measured host times of PyTorch's dispatcher calls, as quantile tables by kind of call: what
// step.op_overhead_ns names. scripts/calibrate_dispatch.py measures a profile and writes it to
// harness/contract/dispatch_profiles/NAME.json, which is built in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

// Kinds of calls in the order of kernels::CallKind.
inline constexpr std::array<const char*, 9> kDispatchCallKinds = {
    "view", "host", "kernel", "copy", "scan", "index", "index_cast", "index_rows", "read"};

struct DispatchProfile {
  // One kind of call: quantile i of n is that of (i + 0.5) / n. ns of a whole call, ascending.
  using Quantiles = std::vector<std::int32_t>;
  std::array<Quantiles, kDispatchCallKinds.size()> kinds;  // none empty
  // What all calls of a rebuild have in common, in thousandths: calls slow down together. {1000}
  // where a document has none.
  Quantiles rebuild_permille;
  Json document;  // as it was read, for the record

  std::string summary() const;  // on what and when it was measured, as far as the document says
};

// Throws ConfigError that begins with `place` where the document is no profile. A kind that it
// does not have (normal decode, which is measured, reads nothing from the device) takes that of
// "kernel".
DispatchProfile dispatch_profile_from_json(const Json& document, std::string_view place);

// The profile of that name in this build. Throws ConfigError that says how to make one.
DispatchProfile built_in_dispatch_profile(const std::string& name);

}  // namespace tpjitter
