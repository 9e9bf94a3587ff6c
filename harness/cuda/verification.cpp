#include "harness/cuda/verification.h"

#include <fmt/format.h>

#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter {
namespace {

// Steps between two signs of life: the launcher takes a silent rank for a hung one.
constexpr std::int64_t kStepsPerProgress = 16;

template <class T>
void fetch(T* host, const DeviceBuffer<T>& device, std::int64_t elements) {
  if (elements == 0) return;
  check_cuda(cudaMemcpy(host, device.data(), static_cast<std::size_t>(elements) * sizeof(T),
                        cudaMemcpyDeviceToHost));
}

void fetch_outputs(const kernels::DecodeMetadataArgs& host, const CudaCase& c) {
  fetch(host.cache_seqlens, c.cache_seqlens, host.batch_size);
  fetch(host.cu_seqlens_k, c.cu_seqlens_k, host.batch_size + 1);
  fetch(host.page_table, c.page_table, host.batch_size * host.page_table_stride);
  if (host.swa_page_table == nullptr) return;
  fetch(host.swa_page_table, c.swa_page_table, host.batch_size * host.swa_page_table_stride);
  fetch(host.swa_out_cache_loc, c.swa_out_cache_loc, host.swa_out_len);
}

// Promised but dead columns: all of them with page_columns "all" on the fused paths.
std::string dead_column_difference(const kernels::DecodeMetadataArgs& got,
                                   const kernels::DecodeMetadataArgs& expected) {
  for (std::int32_t row = 0; row < expected.batch_size; ++row) {
    for (std::int32_t column = 0; column < expected.max_seq_pages; ++column) {
      const std::int64_t at = row * expected.page_table_stride + column;
      if (got.page_table[at] != expected.page_table[at]) {
        return fmt::format("page_table[{}, {}] is {}, expected {}", row, column, got.page_table[at],
                           expected.page_table[at]);
      }
      if (expected.swa_page_table != nullptr &&
          got.swa_page_table[at] != expected.swa_page_table[at]) {
        return fmt::format("swa_page_table[{}, {}] is {}, expected {}", row, column,
                           got.swa_page_table[at], expected.swa_page_table[at]);
      }
    }
  }
  return {};
}

}  // namespace

CaseChecks check_paths(const RankContext& context, CudaCase& c, CudaDevice& device,
                       cudaStream_t stream) {
  ServingState state(c.shape);
  const StepInputs& inputs = state.advance();
  const kernels::DecodeMetadataArgs device_args =
      c.metadata_args(c.shape.batch_size, /*for_paths=*/true);
  MetadataBuffers expected_buffers(c.shape, device_args.page_columns);
  MetadataBuffers got_buffers(c.shape, device_args.page_columns);
  const kernels::DecodeMetadataArgs expected = expected_buffers.args(state, inputs);
  const kernels::DecodeMetadataArgs got = got_buffers.args(state, inputs);
  kernels::reference_decode_metadata(expected);

  const GraphExec graph = capture_graph(
      stream, [&] { check_cuda(kernels::launch_fused_metadata(device_args, stream)); });
  struct Path {
    const char* name;
    CudaPath path;
  };
  CaseChecks checks;
  for (const Path& path : {Path{"aten", CudaPath::kAten}, Path{"fused", CudaPath::kFused},
                           Path{"fused_in_graph", CudaPath::kFusedInGraph}}) {
    c.poison_outputs(stream);
    device.copy_inputs(0);
    if (path.path == CudaPath::kFusedInGraph) {
      check_cuda(cudaGraphLaunch(graph.get(), stream));
    } else {
      device.rebuild_with(path.path);
    }
    device.check_status();
    wait_for_stream(context, stream, device.wait_deadline_ns(), "the check of a metadata path");
    fetch_outputs(got, c);
    std::string difference = MetadataBuffers::difference(got, expected);
    const bool all_columns =
        path.path != CudaPath::kAten && device_args.page_columns == kernels::PageColumns::kAll;
    if (difference.empty() && all_columns) difference = dead_column_difference(got, expected);
    if (difference.empty()) continue;
    checks.bit_equal = false;
    checks.first_failure = fmt::format("rank {}: path {} differs from the reference: {}",
                                       context.rank, path.name, difference);
    break;
  }
  return checks;
}

StepChecker::StepChecker(const RankContext& context, const CaseConfig& config)
    : context_(context),
      state_(ServingShape::of(config)),
      // Live columns are all that the checksum reads.
      expected_(ServingShape::of(config), kernels::PageColumns::kLive),
      body_(body_shape(config, context.world_size)) {}

CaseChecks StepChecker::check(std::span<const kernels::GraphStamp> steps,
                              std::span<PhaseRow> rows) {
  CaseChecks checks;
  const std::size_t unrecorded = steps.size() - rows.size();
  for (std::size_t i = 0; i < steps.size(); ++i, ++step_) {
    const StepInputs& inputs = state_.advance();
    const kernels::DecodeMetadataArgs metadata = expected_.args(state_, inputs);
    kernels::reference_decode_metadata(metadata);
    const std::uint64_t expected = kernels::reference_step_checksum(metadata, body_, step_);
    ++checks.steps_checked;
    if (step_ % kStepsPerProgress == 0) {
      context_.control->rank(context_.rank).progress.fetch_add(1, std::memory_order_relaxed);
    }
    if (steps[i].checksum == expected && steps[i].replay == step_ + 1) continue;
    ++checks.checksum_failures;
    if (i >= unrecorded) rows[i - unrecorded].flags |= kFlagChecksumFailed;
    if (checks.first_failure.empty()) {
      checks.first_failure =
          fmt::format("rank {}, step {}, phase normal_decode: checksum {:016x}, expected {:016x}",
                      context_.rank, step_, steps[i].checksum, expected);
    }
  }
  return checks;
}

}  // namespace tpjitter
