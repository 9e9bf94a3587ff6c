#include "harness/path_operations.h"

#include <optional>

#include "harness/host/host_metadata.h"
#include "kernels/tensor_ops_recording.h"

namespace tpjitter {
namespace {

class RecordingExecution final : public HostExecution {
 public:
  kernels::TensorOps& operations(std::int64_t scalar) override {
    take_recorded();
    return ops_.emplace(allocator_, scalar);
  }
  void launch_kernel() override {
    ++counts_.calls;
    ++counts_.kernel_launches;
  }
  void launch_glue_graph(std::int64_t) override { launch_kernel(); }
  bool computes() const override { return false; }

  // Since the last call.
  kernels::OperationCounts take() {
    take_recorded();
    const kernels::OperationCounts counts = counts_;
    counts_ = {};
    return counts;
  }

 private:
  void take_recorded() {
    if (!ops_) return;
    add(counts_, ops_->counts());
    ops_.reset();
  }

 public:
  static void add(kernels::OperationCounts& to, const kernels::OperationCounts& counts) {
    to.calls += counts.calls;
    to.kernel_launches += counts.kernel_launches;
    to.copies += counts.copies;
    to.syncs += counts.syncs;
  }

 private:
  kernels::AddressSource addresses_;
  kernels::TensorAllocator allocator_{addresses_.block_source()};
  std::optional<kernels::RecordingTensorOps> ops_;
  kernels::OperationCounts counts_;
};

Json to_json(const kernels::OperationCounts& counts) {
  return {{"calls", counts.calls},
          {"kernel_launches", counts.kernel_launches},
          {"copies", counts.copies},
          {"syncs", counts.syncs}};
}

}  // namespace

Json path_operations(const CaseConfig& config) {
  ServingState state(ServingShape::of(config));
  RecordingExecution recording;
  HostMetadata metadata(config, metadata_path(config.path), state, recording);
  metadata.set_inputs(state.advance());
  recording.take();  // capture's

  const StepPlan plan = step_plan(config);
  kernels::OperationCounts total;
  Json phases = Json::array();
  for (int i = 0; i < static_cast<int>(plan.phases.size()); ++i) {
    metadata.rebuild(i);
    const kernels::OperationCounts counts = recording.take();
    RecordingExecution::add(total, counts);
    Json phase = {{"phase", phase_name(plan.phases[i].phase)}};
    phase.update(to_json(counts));
    phases.push_back(phase);
  }
  Json document = to_json(total);
  document["phases"] = phases;
  return document;
}

}  // namespace tpjitter
