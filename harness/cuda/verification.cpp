#include "harness/cuda/verification.h"

#include <fmt/format.h>

#include <string_view>

#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter {
namespace {

// Steps between two signs of life: the launcher takes a silent rank for a hung one.
constexpr std::int64_t kStepsPerProgress = 16;

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

}  // namespace

CaseChecks check_paths(const RankContext& context, CudaCase& c, CudaDevice& device,
                       cudaStream_t stream) {
  const kernels::PageColumns columns = page_columns(c.config);
  ExpectedGraphs expected(c.config, context.world_size, columns);
  expected.advance();
  const int phases = static_cast<int>(c.plan.phases.size());
  const CudaPath own_path = c.metadata->path();
  c.metadata->set_path(CudaPath::kFusedInGraph);
  const GraphExec in_graph = capture_graph(stream, [&] {
    for (int phase = 0; phase < phases; ++phase) c.metadata->composition().in_graph(c.view(phase));
    check_cuda(c.metadata->take_status());
  });
  c.metadata->set_path(own_path);
  CaseChecks checks;
  for (const Path& path :
       {Path{"aten", CudaPath::kAten}, Path{"page_table_kernel", CudaPath::kPageTable},
        Path{"glue_graph", CudaPath::kGlueGraph}, Path{"fused", CudaPath::kFused},
        Path{"fused_in_graph", CudaPath::kFusedInGraph}, Path{"fused_multi", CudaPath::kFusedMulti},
        Path{"torch", CudaPath::kTorch}}) {
    if (!path_exists(c.config, path.name)) continue;
    // PyTorch's state in the process is a part of its own path's cases only.
    if (path.path == CudaPath::kTorch && c.config.path != "torch") continue;
    if (path.path == CudaPath::kGlueGraph && !device.has_glue_graphs()) continue;  // padded rows
    rebuild_every_phase(context, path, c, device, in_graph.get(), stream);
    const bool fused = std::string_view(path.name).starts_with("fused");
    for (const ExpectedGraphs::Expected& wanted : expected.tables()) {
      HostTableMemory memory;
      const int phase = wanted.rows.view.phase;
      const auto got = make_tables(wanted.rows.leaf.kind, expected.setup(phase, memory));
      got->copy_from(c.metadata->tables(wanted.rows), c.metadata->memory());
      const std::string difference = got->difference(
          *wanted.tables, wanted.rows.view, fused && columns == kernels::PageColumns::kAll);
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
