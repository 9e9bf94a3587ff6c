// The op-by-op rebuild from C++, compiled by pytorch_rebuild.py as a PyTorch extension:
// one object holds a rebuild's tensors and gives the time of a run, or of each of its calls.
#include <c10/core/InferenceMode.h>
#include <time.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/torch/aten_rebuild.h"

namespace {

using Tensors = std::map<std::string, at::Tensor>;

std::int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

class Rebuild {
 public:
  Rebuild(int phase, const Tensors& given, std::int64_t batch_size, std::int64_t page_size,
          std::int64_t seqlen_offset, std::int64_t q_stride)
      : sizes_{static_cast<tpjitter::kernels::DecodePhase>(phase), batch_size, page_size,
               seqlen_offset, q_stride} {
    auto& t = tensors_;
    const std::map<std::string, at::Tensor*> members = {
        {"seq_lens", &t.seq_lens},
        {"seq_lens_cpu", &t.seq_lens_cpu},
        {"req_pool_indices", &t.req_pool_indices},
        {"q_lens", &t.q_lens},
        {"req_to_token", &t.req_to_token},
        {"strided_indices", &t.strided_indices},
        {"full_to_swa", &t.full_to_swa},
        {"out_cache_loc", &t.out_cache_loc},
        {"cache_seqlens", &t.cache_seqlens},
        {"cu_seqlens_k", &t.cu_seqlens_k},
        {"cu_seqlens_q", &t.cu_seqlens_q},
        {"page_table", &t.page_table},
        {"swa_page_table", &t.swa_page_table},
        {"swa_out_cache_loc", &t.swa_out_cache_loc}};
    for (const auto& [name, tensor] : given) *members.at(name) = tensor;
    stamps_.reserve(128);
  }

  // ns of one rebuild.
  std::int64_t run() const {
    const c10::InferenceMode guard;
    const std::int64_t begin = now_ns();
    tpjitter::rebuild_with_aten(tensors_, sizes_, [](tpjitter::kernels::CallKind) {});
    return now_ns() - begin;
  }

  // Kind (tpjitter::kernels::CallKind) and ns of each call; a stamp's cost is in each.
  std::vector<std::pair<int, std::int64_t>> calls() {
    const c10::InferenceMode guard;
    stamps_.clear();
    const std::int64_t begin = now_ns();
    tpjitter::rebuild_with_aten(tensors_, sizes_, [this](tpjitter::kernels::CallKind kind) {
      stamps_.emplace_back(static_cast<int>(kind), now_ns());
    });
    std::vector<std::pair<int, std::int64_t>> calls = stamps_;
    for (std::size_t i = calls.size(); i-- > 0;) {
      calls[i].second -= i > 0 ? stamps_[i - 1].second : begin;
    }
    return calls;
  }

 private:
  tpjitter::AtenRebuildSizes sizes_;
  tpjitter::AtenRebuildTensors tensors_;
  std::vector<std::pair<int, std::int64_t>> stamps_;
};

// What a stamp in a row of stamps takes, median ns.
std::int64_t stamp_cost_ns() {
  constexpr int kStamps = 1001;
  std::vector<std::int64_t> cost;
  std::int64_t before = now_ns();
  for (int i = 0; i < kStamps; ++i) {
    const std::int64_t now = now_ns();
    cost.push_back(now - before);
    before = now;
  }
  std::nth_element(cost.begin(), cost.begin() + kStamps / 2, cost.end());
  return cost[kStamps / 2];
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  pybind11::class_<Rebuild>(m, "Rebuild")
      .def(pybind11::init<int, const Tensors&, std::int64_t, std::int64_t, std::int64_t,
                          std::int64_t>())
      .def("run", &Rebuild::run)
      .def("calls", &Rebuild::calls);
  m.def("stamp_cost_ns", stamp_cost_ns);
}
