#include "tests/record_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "harness/contract/npy.h"

namespace tpjitter {
namespace {

struct Rebuild {
  Phase phase;
  int graph;
  bool launches;
};

std::vector<Rebuild> rebuilds_of(const GeneratedCase& c) {
  if (!c.speculative) return {{Phase::kNormalDecode, 0, true}};
  return {{Phase::kDraftDecode, 0, false},
          {Phase::kDraftDecode, 0, true},
          {Phase::kTargetVerify, 1, true},
          {Phase::kDraftExtendCumsum, 2, true}};
}

class Generator {
 public:
  explicit Generator(const GeneratorConfig& config)
      : config_(config), random_(config.seed), now_(config.start_ns) {
    run_.rows.resize(static_cast<std::size_t>(config.world_size));
  }

  GeneratedRun make() {
    fill_info();
    for (int launch = 0; launch < config_.launches; ++launch) {
      sequence_ = 0;
      RunLaunch& entry = run_.info.launches.emplace_back();
      entry.index = launch;
      for (int repetition = 0; repetition < config_.repetitions; ++repetition) {
        for (int c = 0; c < static_cast<int>(config_.cases.size()); ++c) {
          entry.order.push_back({c, repetition});
          for (int step = 0; step < config_.steps; ++step) add_step(launch, repetition, c, step);
        }
      }
      if (config_.controls) add_controls(launch);
    }
    return std::move(run_);
  }

 private:
  // mt19937_64 is the same everywhere; the standard distributions are not.
  std::int64_t noise() {
    const auto range = static_cast<std::uint64_t>(config_.noise_ns) + 1;
    return static_cast<std::int64_t>(random_() % range);
  }
  std::int64_t flight_noise() {
    if (config_.flight_noise_ns == 0) return 0;
    return static_cast<std::int64_t>(random_() %
                                     static_cast<std::uint64_t>(config_.flight_noise_ns));
  }
  // A GPU's own clock; the modelled device runs on the host's.
  std::int64_t gpu_clock(std::int64_t host_ns, int rank) const {
    if (config_.backend == "host") return host_ns;
    const std::int64_t ns = host_ns + 7'000'000'000 + rank * 45'000;
    return ns - ns % config_.gpu_tick_ns;
  }

  // Which rebuild it is of, without any times.
  PhaseRow empty_row(int launch, int repetition, int case_index, int step,
                     const Rebuild& rebuild) const {
    PhaseRow row{};
    row.sequence = sequence_ + 1;
    row.launch = launch;
    row.case_index = case_index;
    row.repetition = repetition;
    row.step = step;
    row.phase = static_cast<std::int32_t>(rebuild.phase);
    row.graph = rebuild.graph;
    row.first_all_reduce_last_peer = -1;
    if (!rebuild.launches) row.flags |= kFlagNoLaunch;
    if (step == 0) row.flags |= kFlagFirstAfterWarmup;
    if (step % config_.block_steps == 0) row.flags |= kFlagFirstOfBlock;
    if (config_.backend == "host") row.flags |= kFlagModelledDevice;
    return row;
  }

  void add_step(int launch, int repetition, int case_index, int step) {
    const GeneratedCase& c = config_.cases[static_cast<std::size_t>(case_index)];
    const int world = config_.world_size;
    const auto begin = now_;  // all ranks' accept, but for a late one
    std::vector<std::int64_t> host(static_cast<std::size_t>(world), begin);
    const std::vector<GeneratedCase::Once> delays = delays_of(c, step);
    bool first = true;
    int launched = 0;  // graphs of this step
    for (const Rebuild& rebuild : rebuilds_of(c)) {
      std::vector<PhaseRow> rows(static_cast<std::size_t>(world),
                                 empty_row(launch, repetition, case_index, step, rebuild));
      std::vector<std::int64_t> own(rows.size());
      for (int rank = 0; rank < world; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        const auto late = [&](LateStage stage) {
          std::int64_t ns = 0;
          for (const GeneratedCase::Once& d : delays) {
            if (d.stage == stage && d.rank == rank && (launched == 0 || !c.late_first_graph_only)) {
              ns += d.ns;
            }
          }
          return ns;
        };
        const auto delay = [&](LateStage stage) { return noise() + late(stage); };
        PhaseRow& row = rows[r];
        if (first) {
          accept_begin_ = begin - 40'000;
          host[r] += delay(LateStage::kCoupling);
          accept_.resize(rows.size());
          accept_[r] = host[r];
        }
        row.coupling_begin_ns = accept_begin_;
        row.accept_seen_ns = accept_[r];
        row.inputs_begin_ns = host[r];
        row.inputs_end_ns = host[r] += config_.inputs_ns + delay(LateStage::kInputs);
        row.dispatch_begin_ns = host[r];
        row.dispatch_end_ns = host[r] += c.dispatch_ns + delay(LateStage::kDispatch);
        if (rebuild.launches) {
          // A late launch enters late: the delay stands before the entry.
          host[r] += late(LateStage::kGraphLaunch);
          row.launch_begin_ns = host[r];
          row.launch_end_ns = host[r] += config_.graph_launch_ns + noise();
          own[r] = host[r] + config_.arrival_ns + delay(LateStage::kArrival);
        }
        row.cpu = rank;
      }
      ++sequence_;
      first = false;
      if (rebuild.launches) {
        finish_replay(c, own, &rows);
        add_truth(rows.front(), own, delays);
        ++launched;
        // What the GPU has caught up with the host has too.
        if (c.late_first_graph_only) {
          std::fill(host.begin(), host.end(), *std::max_element(host.begin(), host.end()));
        }
      }
      for (std::size_t r = 0; r < rows.size(); ++r) run_.rows[r].push_back(rows[r]);
    }
    now_ = std::max(now_, *std::max_element(host.begin(), host.end())) + 50'000;
  }

  std::vector<GeneratedCase::Once> delays_of(const GeneratedCase& c, int step) {
    const int world = config_.world_size;
    std::vector<GeneratedCase::Once> delays;
    for (const GeneratedCase::Once& once : c.once) {
      if (once.step == step) delays.push_back(once);
    }
    if (c.late_random) {
      constexpr LateStage kStages[] = {LateStage::kCoupling, LateStage::kInputs,
                                       LateStage::kDispatch, LateStage::kGraphLaunch,
                                       LateStage::kArrival};
      const int rank = static_cast<int>(random_() % static_cast<std::uint64_t>(world));
      const LateStage stage = kStages[random_() % std::size(kStages)];
      const std::int64_t least = c.late_ns / 16;
      const auto range = static_cast<std::uint64_t>(c.late_ns - least) + 1;
      delays.push_back({step, rank, stage, least + static_cast<std::int64_t>(random_() % range)});
    } else if (c.late_stage != LateStage::kNone) {
      const int rank = c.late_rotates ? (c.late_rank + step) % world : c.late_rank;
      delays.push_back({step, rank, c.late_stage, c.late_ns});
    }
    return delays;
  }

  void add_truth(const PhaseRow& row, const std::vector<std::int64_t>& own,
                 const std::vector<GeneratedCase::Once>& delays) {
    const auto [first, last] = std::minmax_element(own.begin(), own.end());
    run_.truth.push_back({row.launch, row.repetition, row.case_index, row.step, row.graph,
                          static_cast<int>(last - own.begin()),
                          delays.empty() ? LateStage::kNone : delays.back().stage, *last - *first});
  }

  void finish_replay(const GeneratedCase& c, const std::vector<std::int64_t>& own,
                     std::vector<PhaseRow>* rows) {
    std::int64_t last_end = 0;
    for (std::size_t r = 0; r < own.size(); ++r) {
      PhaseRow& row = (*rows)[r];
      const int rank = static_cast<int>(r);
      std::size_t latest_peer = r;
      for (std::size_t peer = 0; peer < own.size(); ++peer) {
        if (peer != r && (latest_peer == r || own[peer] > own[latest_peer])) latest_peer = peer;
      }
      const std::int64_t there = own[r] + config_.local_ns;  // when the flag is already there
      const std::int64_t flight = config_.flight_ns + config_.slower_flight_ns;
      const std::int64_t flown = own[latest_peer] + flight + flight_noise();
      const bool waited = latest_peer != r && flown > there;
      const std::int64_t seen = waited ? flown : there;
      const std::int64_t end = seen + config_.transfer_ns + config_.slower_transfer_ns;
      last_end = std::max(last_end, end);
      row.gpu_begin_ns = gpu_clock(own[r] - config_.arrival_ns / 2, rank);
      row.gpu_end_ns = gpu_clock(end + config_.decode_ns, rank);
      if (c.all_reduce == "none" || own.size() == 1) continue;
      row.all_reduce_count = 72;
      row.first_all_reduce_own_ns = gpu_clock(own[r], rank);
      row.first_all_reduce_end_ns = gpu_clock(end, rank);
      if (c.all_reduce == "nccl") {
        row.flags |= kFlagBracketed;
        continue;
      }
      if (waited) row.flags |= kFlagWaited;
      row.first_all_reduce_last_peer = static_cast<std::int32_t>(latest_peer);
      row.first_all_reduce_last_seen_ns = gpu_clock(seen, rank);
      const std::int64_t later = flight + (rank == c.late_rank ? 0 : c.later_skew_ns);
      row.all_reduce_wait_max_ns = std::max(seen - own[r], later);
      row.all_reduce_wait_sum_ns = seen - own[r] + 71 * later;
    }
    now_ = last_end + config_.decode_ns;
  }

  void add_controls(int launch) {
    std::vector<std::string> kernels;
    for (const GeneratedCase& c : config_.cases) {
      if (c.all_reduce != "none" &&
          std::find(kernels.begin(), kernels.end(), c.all_reduce) == kernels.end()) {
        kernels.push_back(c.all_reduce);
      }
    }
    for (const std::string& kernel : kernels) {
      for (int rank = 0; rank < config_.world_size; ++rank) {
        RunControl& control = run_.info.controls.emplace_back();
        control.launch = launch;
        control.rank = rank;
        control.when = "before";
        control.all_reduce = kernel;
        control.all_reduce_bytes = 8 * 2880 * 2;
        control.empty_graph_launch_ns.assign(30, config_.graph_launch_ns / 2);
        if (config_.world_size == 1) continue;
        control.zero_skew_all_reduce_ns.assign(30, config_.flight_ns + config_.transfer_ns);
        if (kernel == "nccl") continue;
        // A clock offset makes one rank's waits longer and the other's shorter.
        const std::int64_t offset = config_.world_size == 2 ? (rank == 0 ? 30 : -30) : 0;
        control.zero_skew_wait_ns.assign(30, config_.flight_ns + offset);
      }
    }
  }

  void fill_info() {
    RunInfo& info = run_.info;
    info.status = "complete";
    info.backend = config_.backend;
    info.world_size = config_.world_size;
    info.scenario_name = "generated";
    info.scenario_file = "generated.toml";
    info.summary = "made by the record generator of the tests";
    info.source = "tests/record_generator.cpp";
    info.command = {"tpjitter", "run", "generated.toml"};
    info.seed = config_.seed;
    for (const GeneratedCase& generated : config_.cases) {
      RunCase& c = info.cases.emplace_back();
      c.index = static_cast<int>(info.cases.size()) - 1;
      c.name = generated.name;
      c.path = generated.path;
      c.values = Json{{"shape", {{"batch_size", 8}, {"hidden_size", 2880}}},
                      {"body", {{"all_reduce", generated.all_reduce}}}};
      c.bit_equal = true;
      c.steps_checked = static_cast<std::int64_t>(config_.steps) * config_.world_size;
    }
    for (int rank = 0; rank < config_.world_size; ++rank) {
      RunRank& r = info.ranks.emplace_back();
      r.rank = rank;
      r.device = config_.backend == "host" ? "modelled device" : "NVIDIA H200";
      r.cpu = rank;
    }
    if (config_.backend == "host") info.model = Json{{"transfer_ns", config_.transfer_ns}};
    info.environment = Json{{"cpu", "generated"}};
    info.overhead = Json{{"stamp_ns", 25}, {"row_ns", 90}};
    info.versions = Json{{"tpjitter", "0.1.0"}};
    info.git_revision = "unknown";
  }

  const GeneratorConfig& config_;
  std::mt19937_64 random_;
  std::int64_t now_;
  std::int64_t accept_begin_ = 0;
  std::vector<std::int64_t> accept_;  // [rank], of the current step
  std::int64_t sequence_ = 0;         // rows written per rank in this launch
  GeneratedRun run_;
};

}  // namespace

GeneratedRun generate_run(const GeneratorConfig& config) { return Generator(config).make(); }

void write_run(const std::filesystem::path& directory, GeneratedRun run) {
  for (std::size_t rank = 0; rank < run.rows.size(); ++rank) {
    const auto& rows = run.rows[rank];
    if (rank < run.info.ranks.size()) {
      run.info.ranks[rank].rows = static_cast<std::int64_t>(rows.size());
    }
    std::ofstream file(directory / fmt::format("rank{}.phases.npy", rank), std::ios::binary);
    file << npy_header(phase_row_fields(), sizeof(PhaseRow), rows.size());
    file.write(reinterpret_cast<const char*>(rows.data()),
               static_cast<std::streamsize>(rows.size() * sizeof(PhaseRow)));
  }
  write_run_json(directory, run.info);
}

}  // namespace tpjitter
