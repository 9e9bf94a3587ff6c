// Makes run directories with known truth, for the tests of the analysis: who is late, in which
// stage, by how much, and what floor and transfer the waits have. Same seed, same bytes; with
// noise_ns 0 every figure is exact.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/contract/phase_row.h"
#include "harness/contract/run_info.h"

namespace tpjitter {

enum class LateStage { kNone, kCoupling, kInputs, kDispatch, kGraphLaunch, kArrival };

struct GeneratedCase {
  std::string name = "fused/bs8";
  std::string path = "fused";
  std::string all_reduce = "one_shot_pull";  // "nccl": bracketed; "none": no all-reduce
  std::int64_t dispatch_ns = 20'000;
  bool speculative = false;  // 4 rebuilds and 3 graph launches a step
  LateStage late_stage = LateStage::kNone;
  int late_rank = 0;
  bool late_rotates = false;  // step s: rank (late_rank + s) modulo world size
  // Every step another rank and stage, drawn, and late_ns/16 to late_ns; late_stage is ignored.
  bool late_random = false;
  bool late_first_graph_only = false;  // the others wait for nobody: the GPU has caught up
  std::int64_t late_ns = 0;            // the same for each graph of a step
  // Wait of the early ranks at every all-reduce but the first, beyond the flight.
  std::int64_t later_skew_ns = 0;
  // Delays of single steps, in the given stage, besides those above.
  struct Once {
    int step = 0;
    int rank = 0;
    LateStage stage = LateStage::kNone;
    std::int64_t ns = 0;
  };
  std::vector<Once> once = {};
};

struct GeneratorConfig {
  std::uint64_t seed = 1;
  std::string backend = "host";
  int world_size = 2;
  int launches = 1;
  int repetitions = 1;
  int steps = 40;
  int block_steps = 20;
  std::int64_t start_ns = 1'000'000'000;  // host clock at the first step
  std::int64_t inputs_ns = 3'000;
  std::int64_t graph_launch_ns = 6'000;
  std::int64_t arrival_ns = 10'000;  // return of the launch to the first all-reduce
  std::int64_t flight_ns = 2'100;  // wait of ranks that arrive together, or of an early one beyond
                                   // the other's lateness
  std::int64_t local_ns = 400;     // wait when the flag is already there
  std::int64_t transfer_ns = 1'500;
  std::int64_t decode_ns = 500'000;     // end of the first all-reduce to the end of the graph
  std::int64_t noise_ns = 0;            // each stage takes 0..noise_ns more, per rank and step
  std::int64_t flight_noise_ns = 0;     // each flight takes up to that more
  std::int64_t slower_flight_ns = 0;    // every flight, over that of the controls
  std::int64_t slower_transfer_ns = 0;  // every transfer, over that of the controls
  std::int64_t gpu_tick_ns = 1;         // GPU stamps are multiples of it (32 on Hopper)
  bool controls = true;
  std::vector<GeneratedCase> cases = {GeneratedCase{}};
};

// What really happened in a replay, on the one clock that only the generator has.
struct ReplayTruth {
  int launch = 0, repetition = 0, case_index = 0, step = 0, graph = 0;
  int laggard = 0;                     // last to arrive
  LateStage stage = LateStage::kNone;  // of the delay that was put in; kNone: only noise
  std::int64_t skew_ns = 0;            // last arrival minus first
};

struct GeneratedRun {
  RunInfo info;
  std::vector<std::vector<PhaseRow>> rows;  // [rank]
  std::vector<ReplayTruth> truth;           // in the order of the rows
};

GeneratedRun generate_run(const GeneratorConfig& config);

// Writes run.json and the rank files into an existing directory. ranks[].rows is set from the rows.
void write_run(const std::filesystem::path& directory, GeneratedRun run);

}  // namespace tpjitter
