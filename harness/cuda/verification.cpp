#include "harness/cuda/verification.h"

#include <fmt/format.h>

#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter {
namespace {

// Steps between two signs of life: the launcher takes a silent rank for a hung one.
constexpr std::int64_t kStepsPerProgress = 16;

// What the path leaves to the graph, of all phases.
GraphExec capture_in_graph(const MetadataPath& path, CudaCase& c, cudaStream_t stream) {
  const MetadataPath& before = c.metadata->path();
  c.metadata->set_path(path);
  GraphExec graph = capture_graph(stream, [&] {
    for (int phase = 0; phase < static_cast<int>(c.plan.phases.size()); ++phase) {
      c.metadata->composition().in_graph(c.view(phase));
    }
    check_cuda(c.metadata->take_status());
  });
  c.metadata->set_path(before);
  return graph;
}

// Every phase rebuilt once, from the staged inputs, over outputs that no path wrote.
void rebuild_every_phase(const RankContext& context, const MetadataPath& path, CudaCase& c,
                         CudaDevice& device, cudaStream_t stream) {
  GraphExec in_graph;
  if (path.in_graph) in_graph = capture_in_graph(path, c, stream);
  const int phases = static_cast<int>(c.plan.phases.size());
  c.poison_outputs(stream);
  for (int phase = 0; phase < phases; ++phase) device.copy_inputs(phase);
  if (path.in_graph) {
    check_cuda(cudaGraphLaunch(in_graph.get(), stream));
  } else {
    for (int phase = 0; phase < phases; ++phase) device.rebuild_with(path, phase);
  }
  device.check_status();
  wait_for_stream(context, stream, device.wait_deadline_ns(), "the check of a metadata path");
}

}  // namespace

CaseChecks check_paths(const RankContext& context, CudaCase& c, CudaDevice& device,
                       cudaStream_t stream) {
  const kernels::PageColumns columns = page_columns(c.config);
  ExpectedGraphs expected(c.config, context.world_size, columns);
  expected.advance();
  CaseChecks checks;
  for (const MetadataPath& path : kMetadataPaths) {
    if (!path_exists(c.config, path)) continue;
    // PyTorch's state in the process is a part of its own path's cases only.
    if (path.needs_torch && c.config.path != path.name) continue;
    if (path.form == RebuildForm::kGlueGraph && !device.has_glue_graphs()) continue;  // padded rows
    rebuild_every_phase(context, path, c, device, stream);
    const bool all_columns = runs_fused_kernel(path) && columns == kernels::PageColumns::kAll;
    for (const ExpectedGraphs::Expected& wanted : expected.tables()) {
      HostTableMemory memory;
      const int phase = wanted.rows.view.phase;
      const auto got = make_tables(wanted.rows.leaf.kind, expected.setup(phase, memory));
      got->copy_from(c.metadata->tables(wanted.rows), c.metadata->memory());
      const std::string difference = got->difference(*wanted.tables, wanted.rows.view, all_columns);
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
    : context_(context), expected_(config, context.world_size) {}

CaseChecks StepChecker::check(std::span<const kernels::GraphStamp> graphs,
                              std::span<PhaseRow> rows) {
  CaseChecks checks;
  const StepPlan& plan = expected_.plan();
  const std::size_t phases = plan.phases.size();
  const std::size_t steps = graphs.size() / plan.graphs;
  const std::size_t unrecorded = steps - rows.size() / phases;
  for (std::size_t i = 0; i < steps; ++i, ++step_) {
    expected_.advance();
    ++checks.steps_checked;
    if (step_ % kStepsPerProgress == 0) {
      context_.control->rank(context_.rank).progress.fetch_add(1, std::memory_order_relaxed);
    }
    for (int graph = 0; graph < plan.graphs; ++graph) {
      const kernels::GraphStamp& stamp = graphs[i * plan.graphs + graph];
      const std::uint64_t wanted = expected_.checksum(graph);
      if (stamp.checksum == wanted && stamp.replay == step_ * plan.graphs + graph + 1) continue;
      ++checks.checksum_failures;
      const int last = plan.last_phase(graph) - 1;
      if (i >= unrecorded) rows[(i - unrecorded) * phases + last].flags |= kFlagChecksumFailed;
      if (!checks.first_failure.empty()) continue;
      checks.first_failure = fmt::format(
          "rank {}, step {}, phase {}, graph {}: checksum {:016x}, expected {:016x}", context_.rank,
          step_, phase_name(plan.phases[last].phase), graph, stamp.checksum, wanted);
    }
  }
  return checks;
}

}  // namespace tpjitter
