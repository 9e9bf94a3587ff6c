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

void fetch_outputs(const kernels::DecodeMetadataArgs& host, const PhaseOutputs& out) {
  fetch(host.cache_seqlens, out.cache_seqlens, host.batch_size);
  fetch(host.cu_seqlens_k, out.cu_seqlens_k, host.batch_size + 1);
  fetch(host.cu_seqlens_q, out.cu_seqlens_q, host.batch_size + 1);
  fetch(host.page_table, out.page_table, host.batch_size * host.page_table_stride);
  if (host.swa_page_table == nullptr) return;
  fetch(host.swa_page_table, out.swa_page_table, host.batch_size * host.swa_page_table_stride);
  fetch(host.swa_out_cache_loc, out.swa_out_cache_loc, host.swa_out_len);
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

struct Path {
  const char* name;
  CudaPath path;
};

// Every phase rebuilt once, from the staged inputs, over outputs that no path wrote.
void rebuild_every_phase(const RankContext& context, const Path& path, CudaCase& c,
                         CudaDevice& device, cudaGraphExec_t in_graph, cudaStream_t stream) {
  const int phases = static_cast<int>(c.plan.phases.size());
  c.poison_outputs(stream);
  for (int phase = 0; phase < phases; ++phase) device.copy_inputs(phase);
  if (path.path == CudaPath::kFusedInGraph) {
    check_cuda(cudaGraphLaunch(in_graph, stream));
  } else {
    for (int phase = 0; phase < phases; ++phase) device.rebuild_with(path.path, phase);
  }
  device.check_status();
  wait_for_stream(context, stream, device.wait_deadline_ns(), "the check of a metadata path");
}

// Expected and fetched tables of one phase.
struct PhaseCheck {
  PhaseCheck(const CudaCase& c, int phase, const ServingState& state, const StepInputs& inputs)
      : columns(c.metadata_args(phase, c.shape.batch_size, true).page_columns),
        expected_buffers(c.shape, c.plan.phases[phase], columns),
        got_buffers(c.shape, c.plan.phases[phase], columns),
        expected(expected_buffers.args(state, inputs)),
        got(got_buffers.args(state, inputs)) {
    kernels::reference_decode_metadata(expected);
  }

  // Empty: the path gave what it promises.
  std::string difference(const Path& path, const PhaseOutputs& outputs) const {
    fetch_outputs(got, outputs);
    std::string text = MetadataBuffers::difference(got, expected);
    const bool fused = path.path == CudaPath::kFused || path.path == CudaPath::kFusedInGraph;
    if (text.empty() && fused && columns == kernels::PageColumns::kAll) {
      text = dead_column_difference(got, expected);
    }
    return text;
  }

  kernels::PageColumns columns;
  MetadataBuffers expected_buffers, got_buffers;
  kernels::DecodeMetadataArgs expected, got;
};

}  // namespace

CaseChecks check_paths(const RankContext& context, CudaCase& c, CudaDevice& device,
                       cudaStream_t stream) {
  ServingState state(c.shape);
  const StepInputs& inputs = state.advance();
  const int phases = static_cast<int>(c.plan.phases.size());
  const GraphExec in_graph = capture_graph(stream, [&] {
    for (int phase = 0; phase < phases; ++phase) {
      check_cuda(kernels::launch_fused_metadata(
          c.metadata_args(phase, c.shape.batch_size, /*for_paths=*/true), stream));
    }
  });
  CaseChecks checks;
  for (const Path& path :
       {Path{"aten", CudaPath::kAten}, Path{"page_table_kernel", CudaPath::kPageTable},
        Path{"fused", CudaPath::kFused}, Path{"fused_in_graph", CudaPath::kFusedInGraph}}) {
    rebuild_every_phase(context, path, c, device, in_graph.get(), stream);
    for (int phase = 0; phase < phases; ++phase) {
      const PhaseCheck check(c, phase, state, inputs);
      const std::string difference = check.difference(path, c.outputs[phase]);
      if (difference.empty()) continue;
      checks.bit_equal = false;
      checks.first_failure =
          fmt::format("rank {}, phase {}: path {} differs from the reference: {}", context.rank,
                      phase_name(c.plan.phases[phase].phase), path.name, difference);
      return checks;
    }
  }
  return checks;
}

StepChecker::StepChecker(const RankContext& context, const CaseConfig& config)
    : context_(context), plan_(step_plan(config)), state_(ServingShape::of(config)) {
  for (const PlannedPhase& phase : plan_.phases) {
    // Live columns are all that the checksum reads.
    expected_.emplace_back(state_.shape(), phase, kernels::PageColumns::kLive);
    forwards_.push_back({{}, phase.layers, phase.swa});
  }
  for (int graph = 0; graph < plan_.graphs; ++graph) {
    bodies_.push_back(
        body_shape(config, plan_.phases[plan_.first_phase(graph)], context.world_size));
  }
}

std::uint64_t StepChecker::expected_checksum(int graph) const {
  const int first = plan_.first_phase(graph);
  const auto forwards = std::span(forwards_).subspan(first, plan_.last_phase(graph) - first);
  return kernels::reference_graph_checksum(forwards, bodies_[graph], step_);
}

CaseChecks StepChecker::check(std::span<const kernels::GraphStamp> graphs,
                              std::span<PhaseRow> rows) {
  CaseChecks checks;
  const std::size_t phases = plan_.phases.size();
  const std::size_t steps = graphs.size() / plan_.graphs;
  const std::size_t unrecorded = steps - rows.size() / phases;
  for (std::size_t i = 0; i < steps; ++i, ++step_) {
    const StepInputs& inputs = state_.advance();
    for (std::size_t phase = 0; phase < phases; ++phase) {
      forwards_[phase].metadata = expected_[phase].args(state_, inputs);
      kernels::reference_decode_metadata(forwards_[phase].metadata);
    }
    ++checks.steps_checked;
    if (step_ % kStepsPerProgress == 0) {
      context_.control->rank(context_.rank).progress.fetch_add(1, std::memory_order_relaxed);
    }
    for (int graph = 0; graph < plan_.graphs; ++graph) {
      const kernels::GraphStamp& stamp = graphs[i * plan_.graphs + graph];
      const std::uint64_t expected = expected_checksum(graph);
      if (stamp.checksum == expected && stamp.replay == step_ * plan_.graphs + graph + 1) continue;
      ++checks.checksum_failures;
      const int last = plan_.last_phase(graph) - 1;
      if (i >= unrecorded) rows[(i - unrecorded) * phases + last].flags |= kFlagChecksumFailed;
      if (!checks.first_failure.empty()) continue;
      checks.first_failure = fmt::format(
          "rank {}, step {}, phase {}, graph {}: checksum {:016x}, expected {:016x}", context_.rank,
          step_, phase_name(plan_.phases[last].phase), graph, stamp.checksum, expected);
    }
  }
  return checks;
}

}  // namespace tpjitter
