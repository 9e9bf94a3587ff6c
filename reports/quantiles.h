// Exact order statistics of integer samples. One definition everywhere: nearest rank, the
// ceil(q n)-th smallest value, so that every printed quantile is a value that was measured.
// A quantile q is given only if n (1 - q) >= 10: ten samples lie above it, so that one outlier
// more or less does not make it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tpjitter {

// Parts per thousand, so that the arithmetic is exact.
inline constexpr int kP50 = 500, kP90 = 900, kP99 = 990, kP999 = 999;

// In columns only: this row has no such value. Everywhere else absence is std::optional.
inline constexpr std::int64_t kAbsent = INT64_MIN;

struct Distribution {
  std::uint64_t n = 0;
  std::uint64_t negative = 0;  // values below 0: counted and shown, never clamped
  std::optional<std::int64_t> p50, p90, p99, p999;
  std::optional<std::int64_t> min, max;
  std::optional<double> mean;
};

bool quantile_supported(std::uint64_t n, int permille);

// Why a quantile of n samples is null: "p99 needs 1000 samples, there are 42".
std::string quantile_reason(std::uint64_t n, int permille);

// Nearest rank, whatever n. Reorders `values`; nullopt when empty.
std::optional<std::int64_t> nearest_rank(std::span<std::int64_t> values, int permille);

// Reorders `values`.
Distribution describe(std::span<std::int64_t> values);

// Index of the ceil(q n)-th smallest of n > 0 values.
std::uint64_t rank_index(std::uint64_t n, int permille);

// Sums of 64-bit values must not wrap.
__extension__ using WideInt = __int128;
double mean_of(WideInt sum, std::uint64_t samples);

}  // namespace tpjitter
