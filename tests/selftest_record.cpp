#include "tests/selftest_record.h"

#include <algorithm>
#include <random>
#include <utility>

#include "harness/injection.h"
#include "harness/selftest.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kFlightNs = 1'800, kLocalNs = 500, kTransferNs = 900, kLeadNs = 2'000;
constexpr std::int64_t kFabricNs = 64;  // a GPU's stages take up to this longer

class Generator {
 public:
  explicit Generator(const SelftestRecord& truth) : truth_(truth), random_(truth.seed) {
    run_.rows.resize(static_cast<std::size_t>(truth.world_size));
  }

  GeneratedRun make() {
    const Scenario scenario = selftest_scenario(truth_.world_size, truth_.delays);
    fill_info(scenario);
    for (int c = 0; c < static_cast<int>(scenario.cases.size()); ++c) {
      run_.info.launches[0].order.push_back({c, 0});
      add_case(c, scenario.cases[static_cast<std::size_t>(c)].config);
    }
    if (truth_.clocks) add_clock_points();
    if (truth_.lie == RecordLie::kRowsSwapped) std::swap(run_.rows[0], run_.rows[1]);
    return std::move(run_);
  }

 private:
  bool host() const { return truth_.backend == "host"; }
  std::int64_t up_to(std::int64_t ns) {
    return static_cast<std::int64_t>(random_() % (static_cast<std::uint64_t>(ns) + 1));
  }
  // Each GPU counts from a time of its own, and not equally fast.
  std::int64_t gpu_clock(std::int64_t ns, std::size_t rank) const {
    const auto r = static_cast<std::int64_t>(rank);
    return host() ? ns : ns + r * 45'000 + r * ns / 1'000'000;
  }

  void fill_info(const Scenario& scenario) {
    RunInfo& info = run_.info;
    info.status = "complete";
    info.backend = truth_.backend;
    info.world_size = truth_.world_size;
    info.scenario_name = scenario.name;
    info.environment["cpus_allowed"] = Json::array();
    for (int cpu = 0; cpu < truth_.cpus; ++cpu) info.environment["cpus_allowed"].push_back(cpu);
    for (const Scenario::Case& c : scenario.cases) {
      RunCase& made = info.cases.emplace_back();
      made.index = static_cast<int>(info.cases.size()) - 1;
      made.name = c.name;
      made.path = c.config.path;
      made.values = case_to_json(c.config);
      made.bit_equal = true;
    }
    info.launches.push_back({0, {}, "complete"});
    for (int rank = 0; rank < truth_.world_size; ++rank) {
      RunRank& r = info.ranks.emplace_back();
      r.rank = rank;
      r.device = host() ? "modelled device" : "NVIDIA H200";
      RunControl& control = info.controls.emplace_back();
      control.rank = rank;
      control.when = "before";
      control.all_reduce = "one_shot_pull";
      control.all_reduce_bytes = 8 * 2880 * 2;
      // Between launches a flag flies longer than in the graph of the controls.
      control.zero_skew_wait_ns.assign(30, host() ? kFlightNs : kFlightNs - 400);
    }
  }

  // Messages of 600 ns there and back, at times that hold the whole record.
  void add_clock_points() {
    constexpr int kPoints = 16, kExchanges = 8;
    run_.info.clock["points"] = Json::array();
    for (int point = 0; point < kPoints; ++point) {
      Json stamps = Json::array();
      for (int i = 0; i < kExchanges; ++i) {
        const std::int64_t at = kStartNs - 1'000'000 +
                                (now_ - kStartNs + 2'000'000) / (kPoints - 1) * point + i * 2'000;
        for (const auto& [clock, ns] : {std::pair(0, 0), {1, 600}, {1, 700}, {0, 1'300}}) {
          stamps.push_back(gpu_clock(at + ns, static_cast<std::size_t>(clock)));
        }
      }
      run_.info.clock["points"].push_back({{"launch", 0},
                                           {"when", "between"},
                                           {"a", 0},
                                           {"b", 1},
                                           {"made", kExchanges},
                                           {"exchanges_ns", stamps}});
    }
  }

  void add_case(int index, const CaseConfig& config) {
    for (std::int64_t step = 0; step < config.steps; ++step) add_step(index, config, step);
  }

  void add_step(int index, const CaseConfig& config, std::int64_t step) {
    const auto ranks = static_cast<std::size_t>(truth_.world_size);
    ++sequence_;
    std::vector<PhaseRow> rows(ranks);
    std::vector<std::int64_t> begin(ranks), own(ranks);
    std::vector<std::int64_t> on_gpu(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const Injection injection = Injection::of(config, static_cast<int>(r), truth_.world_size);
      std::int64_t delay = injection.delay_ns(config.warmup_steps + step);
      PhaseRow& row = rows[r];
      row.sequence = sequence_;
      row.case_index = index;
      row.step = static_cast<std::int32_t>(step);
      row.injected_ns = truth_.lie == RecordLie::kDelayNotRecorded ? 0 : delay;
      if (truth_.lie == RecordLie::kDelayLost && step % 50 == 7) delay = 0;
      if (truth_.lie == RecordLie::kDelayShared) delay = injection.amount_ns;
      bool at_launch = injection.where == InjectWhere::kBeforeLaunch;
      bool at_gpu = injection.where == InjectWhere::kGpu;
      if (truth_.lie == RecordLie::kDelayElsewhere) {
        at_launch = !at_launch;
        at_gpu = false;
      }
      const std::int64_t before_launch = !at_gpu && at_launch ? delay : 0;
      const std::int64_t before_inputs = !at_gpu && !at_launch ? delay : 0;
      std::int64_t at = now_;
      row.coupling_begin_ns = at;
      row.accept_seen_ns = at += 1'000 + up_to(truth_.natural_ns);
      row.inputs_begin_ns = at += before_inputs;
      row.inputs_end_ns = row.dispatch_begin_ns = at += 3'000 + up_to(truth_.natural_ns);
      row.dispatch_end_ns = at += 4'000 + up_to(truth_.natural_ns);
      row.launch_begin_ns = at += before_launch;
      row.launch_end_ns = at += 2'000 + up_to(truth_.natural_ns);
      on_gpu[r] = at_gpu ? delay : 0;
      begin[r] = at + (host() ? 0 : 2'000 + up_to(kFabricNs));
      if (step % 11 == 3 && injection.amount_ns > 0 && delay == 0) begin[r] += truth_.slow_start_ns;
    }
    if (config.inject_where == "gpu") {  // the gate: the last one finds the other flags there
      const std::vector<std::int64_t> at_gate = begin;
      for (std::size_t r = 0; r < ranks; ++r) begin[r] = seen(at_gate, r);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      own[r] = begin[r] + on_gpu[r] + kLeadNs + (host() ? 0 : up_to(kFabricNs));
    }
    finish_step(step, begin, own, &rows);
  }

  std::int64_t seen(const std::vector<std::int64_t>& own, std::size_t rank) const {
    std::int64_t last = own[rank];
    for (std::size_t p = 0; p < own.size(); ++p) {
      if (p != rank || host()) last = std::max(last, own[p] + kFlightNs);
    }
    return host() ? last : std::max(last, own[rank] + kLocalNs);
  }

  void finish_step(std::int64_t step, const std::vector<std::int64_t>& begin,
                   const std::vector<std::int64_t>& own, std::vector<PhaseRow>* rows) {
    for (std::size_t r = 0; r < own.size(); ++r) {
      PhaseRow& row = (*rows)[r];
      std::size_t peer = r == 0 ? 1 : 0;
      for (std::size_t p = 0; p < own.size(); ++p) {
        if (p != r && own[p] > own[peer]) peer = p;
      }
      const std::int64_t at = seen(own, r);
      std::int64_t wait = at - own[r];
      if (truth_.lie == RecordLie::kWaitsLonger) wait += wait / 10;
      if (host()) row.flags |= kFlagModelledDevice;
      if (host() || at > own[r] + kLocalNs) row.flags |= kFlagWaited;
      if (step == 0) row.flags |= kFlagFirstAfterWarmup | kFlagFirstOfBlock;
      row.gpu_begin_ns = gpu_clock(begin[r], r);
      row.first_all_reduce_own_ns = gpu_clock(own[r], r);
      row.first_all_reduce_last_seen_ns = gpu_clock(own[r] + wait, r);
      row.first_all_reduce_end_ns = gpu_clock(own[r] + wait + kTransferNs, r);
      row.gpu_end_ns = gpu_clock(at + 40'000, r);
      row.first_all_reduce_last_peer = static_cast<std::int32_t>(peer);
      row.all_reduce_count = 4;
      now_ = std::max(now_, at + 40'000);
    }
    const bool delayed = std::any_of(rows->begin(), rows->end(),
                                     [](const PhaseRow& row) { return row.injected_ns > 0; });
    if (truth_.lie == RecordLie::kOwnShifted && delayed && step % 9 == 4) {
      (*rows)[1].first_all_reduce_own_ns -= 2'000'000;
    }
    if (truth_.lie == RecordLie::kDeviceStampsSwapped) swap_device_stamps((*rows)[0], (*rows)[1]);
    for (std::size_t r = 0; r < rows->size(); ++r) run_.rows[r].push_back((*rows)[r]);
  }

  static void swap_device_stamps(PhaseRow& a, PhaseRow& b) {
    for (const auto field :
         {&PhaseRow::gpu_begin_ns, &PhaseRow::gpu_end_ns, &PhaseRow::first_all_reduce_own_ns,
          &PhaseRow::first_all_reduce_last_seen_ns, &PhaseRow::first_all_reduce_end_ns}) {
      std::swap(a.*field, b.*field);
    }
  }

  const SelftestRecord& truth_;
  std::mt19937_64 random_;
  static constexpr std::int64_t kStartNs = 1'000'000'000;
  std::int64_t now_ = kStartNs;
  std::int64_t sequence_ = 0;
  GeneratedRun run_;
};

}  // namespace

GeneratedRun generate_selftest(const SelftestRecord& truth) { return Generator(truth).make(); }

}  // namespace tpjitter
