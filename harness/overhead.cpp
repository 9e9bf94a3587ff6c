#include "harness/overhead.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "harness/step.h"

namespace tpjitter {
namespace {

constexpr int kBatches = 21;
constexpr int kPerBatch = 200;

// Median over batches of the mean time of one call.
template <class Call>
double median_ns(Call call) {
  std::vector<double> samples;
  for (int b = 0; b < kBatches; ++b) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < kPerBatch; ++i) call(i);
    samples.push_back(static_cast<double>(now_ns() - begin) / kPerBatch);
  }
  std::nth_element(samples.begin(), samples.begin() + kBatches / 2, samples.end());
  return samples[kBatches / 2];
}

}  // namespace

Overhead measure_overhead() {
  Overhead overhead;
  std::int64_t sink = 0;
  overhead.stamp_ns = median_ns([&](int) { sink += now_ns(); });

  // The cost of one more phase row: a step of two phases against a step of one, so that what a
  // step costs once (usage call, coupling stamps) drops out.
  const auto slot = std::make_unique<RankSlot>();
  StepContext context;
  context.slot = slot.get();
  context.plan.phases.resize(2);
  NullDevice device;
  std::array<PhaseRow, 2> rows{};
  const double one =
      median_ns([&](int i) { run_step(device, context, i, std::span(rows).first(1)); });
  const double two = median_ns([&](int i) { run_step(device, context, i, std::span(rows)); });
  overhead.row_ns = two - one;
  overhead.recording_ns = one;
  return overhead;
}

}  // namespace tpjitter
