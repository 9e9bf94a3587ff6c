// Cases of the linear-attention state metadata for the tests on the host and on a GPU; outputs
// start poisoned, with an entry behind each that nothing may write.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/linear_state.h"

namespace tpjitter::test {

inline constexpr std::int32_t kLinearPoison = -7;

struct LinearCase {
  std::vector<std::int64_t> req_pool_indices;
  std::vector<std::int32_t> mapping;
  std::int32_t num_padding = 0;
  std::int32_t query_len = 1;
};

struct LinearOutputs {
  explicit LinearOutputs(const LinearCase& c)
      : state_indices(c.req_pool_indices.size() + 1, kLinearPoison),
        query_start_loc(c.req_pool_indices.size() + 2, kLinearPoison),
        req_pool_indices(c.req_pool_indices) {}
  bool operator==(const LinearOutputs&) const = default;

  std::vector<std::int32_t> state_indices, query_start_loc;
  std::vector<std::int64_t> req_pool_indices;  // the runner's buffer: padded rows may be zeroed
};

inline kernels::LinearStateArgs bind(const LinearCase& c, LinearOutputs& outputs) {
  kernels::LinearStateArgs args;
  args.req_pool_indices = outputs.req_pool_indices.data();
  args.mapping = c.mapping.data();
  args.state_indices = outputs.state_indices.data();
  args.query_start_loc = outputs.query_start_loc.data();
  args.mapping_len = static_cast<std::int64_t>(c.mapping.size());
  args.batch_size = static_cast<std::int32_t>(c.req_pool_indices.size());
  args.num_padding = c.num_padding;
  args.query_len = c.query_len;
  return args;
}

inline std::vector<std::int32_t> query_start_preset(const LinearCase& c) {
  std::vector<std::int32_t> preset;
  for (std::size_t i = 0; i <= c.req_pool_indices.size(); ++i) {
    preset.push_back(static_cast<std::int32_t>(i) * c.query_len);
  }
  return preset;
}

// Batches around a block, no padding, some, and nothing but.
inline std::vector<LinearCase> random_linear_cases() {
  std::mt19937_64 random(5);
  std::vector<LinearCase> cases;
  for (const std::int32_t batch : {1, 2, 7, 33, 255, 256, 257, 1000}) {
    for (const std::int32_t padding : {0, 1, batch / 2, batch}) {
      LinearCase c;
      c.num_padding = padding;
      c.query_len = cases.size() % 2 == 0 ? 1 : 4;
      const std::size_t pool = static_cast<std::size_t>(batch) + 3;
      for (std::size_t i = 0; i < pool; ++i) {
        c.mapping.push_back(static_cast<std::int32_t>(random() % 1000));
      }
      for (std::int32_t row = 0; row < batch; ++row) {
        c.req_pool_indices.push_back(static_cast<std::int64_t>(random() % pool));
      }
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace tpjitter::test
