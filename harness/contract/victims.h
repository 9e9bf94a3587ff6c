// Which rank is delayed in which step. Every rank knows it from the case alone, and so does the
// analysis, which holds the record against it: one function for both.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tpjitter {

enum class InjectPattern {
  kFixed,     // always the first victim
  kRotating,  // all ranks in turn from the first victim on, so that each is delayed equally often
  kRandom,    // drawn anew in each step, from the seed
};

inline std::optional<InjectPattern> inject_pattern(std::string_view name) {
  if (name == "fixed") return InjectPattern::kFixed;
  if (name == "rotating") return InjectPattern::kRotating;
  if (name == "random") return InjectPattern::kRandom;
  return std::nullopt;
}

struct Victims {
  InjectPattern pattern = InjectPattern::kFixed;
  int first = 0;  // rank
  int world_size = 1;
  std::int64_t every_steps = 1;
  std::uint64_t seed = 1;

  // Rank delayed in `step`, which counts from 0 with the first warm-up step of a repetition;
  // nobody: -1.
  int of_step(std::int64_t step) const {
    if (step % every_steps != 0) return -1;
    if (pattern == InjectPattern::kFixed) return first;
    const auto ranks = static_cast<std::uint64_t>(world_size);
    const auto turn = static_cast<std::uint64_t>(step / every_steps);
    if (pattern == InjectPattern::kRotating) {
      return static_cast<int>((static_cast<std::uint64_t>(first) + turn) % ranks);
    }
    return static_cast<int>(mixed(seed + turn * 0x9e3779b97f4a7c15u) % ranks);
  }

 private:
  // splitmix64's mixer: the same on every library and machine.
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
};

}  // namespace tpjitter
