#include "harness/path_operations.h"

#include <algorithm>

#include "kernels/tensor_ops_recording.h"

namespace tpjitter {
namespace {

kernels::OperationCounts count(const std::string& path, const PhaseCall& call) {
  kernels::OperationCounts counts;
  if (path == "fused") counts.calls = counts.kernel_launches = 1;
  if (path != "aten" && path != "page_table_kernel") return counts;
  kernels::AddressSource addresses;
  kernels::TensorAllocator allocator(addresses.block_source());
  const std::int64_t* lengths = call.aten.seq_lens_cpu;
  const std::int64_t longest = *std::max_element(lengths, lengths + call.aten.metadata.batch_size);
  // A draft pass takes the maximum on the device, after its offset; the others on the host, before.
  const bool on_device = call.phase.inputs == PhaseInputs::kDraft;
  kernels::RecordingTensorOps ops(allocator,
                                  longest + (on_device ? call.aten.metadata.seqlen_offset : 0));
  if (path == "aten") {
    kernels::rebuild_metadata_aten(ops, call.phase.rebuild, call.aten);
  } else {
    kernels::rebuild_metadata_page_table(ops, call.phase.rebuild, call.page_table);
  }
  return ops.counts();
}

Json to_json(const kernels::OperationCounts& counts) {
  return {{"calls", counts.calls},
          {"kernel_launches", counts.kernel_launches},
          {"copies", counts.copies},
          {"syncs", counts.syncs}};
}

}  // namespace

Json path_operations(const std::string& path, const std::vector<PhaseCall>& calls) {
  kernels::OperationCounts total;
  Json phases = Json::array();
  for (const PhaseCall& call : calls) {
    const kernels::OperationCounts counts = count(path, call);
    total.calls += counts.calls;
    total.kernel_launches += counts.kernel_launches;
    total.copies += counts.copies;
    total.syncs += counts.syncs;
    Json phase = {{"phase", phase_name(call.phase.phase)}};
    phase.update(to_json(counts));
    phases.push_back(phase);
  }
  Json document = to_json(total);
  document["phases"] = phases;
  return document;
}

}  // namespace tpjitter
