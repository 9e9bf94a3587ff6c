// Host time that step.op_overhead_ns gives the dispatcher calls of the op-by-op paths, on both
// backends. A number is added to each call. A profile's draw is the whole of PyTorch's call: what
// our own call takes counts towards it, and the rest is spun. Draws follow from seed and rank.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "harness/clock.h"
#include "harness/contract/dispatch_profile.h"
#include "harness/contract/scenario.h"
#include "kernels/decode_body.h"  // mix64
#include "kernels/tensor_ops.h"

namespace tpjitter {

class CallOverhead {
 public:
  CallOverhead() = default;
  CallOverhead(DispatchProfile profile, std::uint64_t seed, int rank)
      : profile_(std::move(profile)),
        // Mixed, so that another seed is another sequence and not the same one from a later draw.
        state_(kernels::mix64(seed * 0xd1342543de82ef95u + static_cast<std::uint64_t>(rank) + 1)) {}
  // Of a case; throws ConfigError where its profile is not in this build.
  static CallOverhead of(const CaseConfig& config, int rank) {
    if (const auto* name = std::get_if<std::string>(&config.op_overhead_ns)) {
      return {built_in_dispatch_profile(*name), static_cast<std::uint64_t>(config.inject_seed),
              rank};
    }
    CallOverhead overhead;
    overhead.added_ns_ = std::get<std::int64_t>(config.op_overhead_ns);
    return overhead;
  }

  // Before the calls of a rebuild.
  void begin_rebuild() {
    if (profile_) permille_ = any_of(profile_->rebuild_permille);
  }
  void begin(kernels::CallKind kind) {
    if (added_ns_ > 0) spin_until_ns(now_ns() + added_ns_);
    if (profile_) end_ns_ = now_ns() + draw_ns(kind);
  }
  void end() const {
    if (profile_) spin_until_ns(end_ns_);
  }
  // Of the profile: any quantile of the kind's table, all equally likely, as fast as this rebuild.
  std::int64_t draw_ns(kernels::CallKind kind) {
    return any_of(profile_->kinds[static_cast<std::size_t>(kind)]) * permille_ / 1000;
  }

 private:
  std::int64_t any_of(const DispatchProfile::Quantiles& quantiles) {
    // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return quantiles[(((z ^ (z >> 31)) >> 32) * quantiles.size()) >> 32];
  }

  std::int64_t added_ns_ = 0;
  std::optional<DispatchProfile> profile_;
  std::uint64_t state_ = 0;
  std::int64_t permille_ = 1000;  // of the rebuild's calls
  std::int64_t end_ns_ = 0;
};
static_assert(kDispatchCallKinds.size() == kernels::kCallKinds);

}  // namespace tpjitter
