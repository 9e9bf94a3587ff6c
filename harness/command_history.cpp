// `tpjitter history`: a SQLite file of runs over time, and the changes in it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>

#include "harness/contract/error.h"
#include "harness/contract/thresholds.h"
#include "harness/subcommands.h"
#include "reports/baseline.h"
#include "reports/gate.h"
#include "reports/history.h"

namespace tpjitter {
namespace {

namespace fs = std::filesystem;

struct HistoryRequest {
  fs::path file = "tpjitter-history.sqlite";
  std::vector<fs::path> runs;
  double relative_limit = 0.10;
  bool json = false;
};

int add_runs(const HistoryRequest& request) {
  std::vector<LaunchSet> sets;
  for (const fs::path& run : request.runs) {
    sets.push_back(read_side(run));
    if (!sets.back().incomplete.empty()) {
      throw RunError(
          fmt::format("{}: an incomplete run is not added", sets.back().incomplete.front()));
    }
    if (sets.back().launches.empty()) {
      throw RecordError(fmt::format("{}: holds no rows", run.string()), kExitNothingMeasured);
    }
  }
  History history(request.file, true);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const auto id = history.add(sets[i]);
    if (id) {
      fmt::print("{}: entry {}\n", request.runs[i].string(), *id);
    } else {
      fmt::print("{}: is in the history already\n", request.runs[i].string());
    }
  }
  return kExitPass;
}

// "2026-11-29 17:26:51", UTC.
std::string utc(const std::optional<std::int64_t>& realtime_ns) {
  if (!realtime_ns) return "time unknown";
  const std::time_t seconds = *realtime_ns / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

int list_entries(const HistoryRequest& request) {
  const History history(request.file, false);
  if (request.json) {
    fmt::print("{}", json_text(history.to_json().at("entries")));
    return kExitPass;
  }
  for (const HistoryEntry& entry : history.entries()) {
    fmt::print("{:>5}  {}  {} {} x{}, {} launches, {}  {}\n", entry.id, utc(entry.began_ns),
               entry.scenario, entry.backend, entry.world_size, entry.launches, entry.git_revision,
               entry.source);
  }
  return kExitPass;
}

// Required metrics only, at p50: what `gate` decides by.
bool is_checked(const HistorySeries& series, const Thresholds& thresholds) {
  if (series.statistic != "p50") return false;
  for (const ThresholdRule& rule : thresholds.rules) {
    if (rule.metric == series.metric) return rule.required;
  }
  return false;
}

Json change_json(const HistoryChange& change) {
  return {{"scenario", change.series.scenario},
          {"backend", change.series.backend},
          {"world_size", change.series.world_size},
          {"case", change.series.case_name},
          {"metric", change.series.metric},
          {"statistic", change.series.statistic},
          {"entry", change.series.entries[change.change.index]},
          {"before_ns", change.change.before},
          {"after_ns", change.change.after},
          {"p_value", change.change.p_value},
          {"latest", change.latest},
          {"worse", change.worse}};
}

// Of each scenario the series that its newest entry is in: other machines, drivers and keys are over.
std::vector<HistorySeries> current_series(const History& history) {
  std::map<std::int64_t, std::size_t> place;  // of an entry, in time order
  for (const HistoryEntry& entry : history.entries()) place.emplace(entry.id, place.size());
  struct Newest {
    std::size_t place = 0;
    std::string setup;
  };
  std::map<std::string, Newest> newest;
  const auto scenario_of = [](const HistorySeries& s) {
    return fmt::format("{}/{}/{}", s.scenario, s.backend, s.world_size);
  };
  std::vector<HistorySeries> all = history.series();
  for (const HistorySeries& series : all) {
    Newest& kept = newest[scenario_of(series)];
    const std::size_t last = place.at(series.entries.back());
    if (kept.setup.empty() || last > kept.place) kept = {last, series.setup};
  }
  std::erase_if(all, [&](const HistorySeries& series) {
    return series.setup != newest.at(scenario_of(series)).setup;
  });
  return all;
}

int check_history(const HistoryRequest& request) {
  const History history(request.file, false);
  std::size_t shortest = SIZE_MAX;
  std::vector<HistorySeries> host, cuda;
  for (const HistorySeries& series : current_series(history)) {
    const Thresholds thresholds = default_thresholds(gate_metrics(), series.backend);
    if (!is_checked(series, thresholds)) continue;
    shortest = std::min(shortest, series.values.size());
    (series.backend == "host" ? host : cuda).push_back(series);
  }
  if (shortest == SIZE_MAX) shortest = 0;
  std::vector<HistoryChange> changes =
      history_changes(host, request.relative_limit, default_floor_ns("host"));
  for (HistoryChange& change :
       history_changes(cuda, request.relative_limit, default_floor_ns("cuda"))) {
    changes.push_back(std::move(change));
  }
  bool alarm = false;
  Json list = Json::array();
  for (const HistoryChange& change : changes) {
    alarm = alarm || (change.latest && change.worse);
    list.push_back(change_json(change));
    if (request.json) continue;
    fmt::print("{}: {} p50 of {} ({}, {} ranks): {:.1f} to {:.1f} us since entry {}, p = {:.3f}\n",
               change.latest && change.worse ? "worse"
               : change.worse                ? "was worse"
                                             : "changed",
               change.series.metric, change.series.case_name, change.series.scenario,
               change.series.world_size, change.change.before / 1000, change.change.after / 1000,
               change.series.entries[change.change.index], change.change.p_value);
  }
  const bool short_history = shortest < kMinChangeSeries && !alarm;
  const std::string verdict =
      short_history
          ? fmt::format("{} {} of the newest setup so far; changes are looked for from {} on",
                        shortest, shortest == 1 ? "run" : "runs", kMinChangeSeries)
      : alarm ? "a required metric got worse and has stayed so"
              : "no required metric got worse";
  const int exit_code = short_history ? kExitInconclusive : alarm ? kExitRegressed : kExitPass;
  if (request.json) {
    fmt::print("{}", json_text({{"schema", kHistorySchema},
                                {"verdict", verdict},
                                {"exit_code", exit_code},
                                {"changes", list}}));
  } else {
    fmt::print("{}\n", verdict);
  }
  return exit_code;
}

int export_history(const HistoryRequest& request) {
  fmt::print("{}", json_text(History(request.file, false).to_json()));
  return kExitPass;
}

}  // namespace

void add_history_command(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<HistoryRequest>();
  CLI::App* history = app.add_subcommand("history", "Runs over time, and what changed when");
  history->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*call)(const HistoryRequest&)) {
    CLI::App* command = history->add_subcommand(name, help);
    command->add_option("--db", request->file, "The history, a SQLite file")
        ->capture_default_str()
        ->check(not_empty());
    command->callback([request, call, &exit_code] { exit_code = call(*request); });
    return command;
  };
  add("add", "Add runs", add_runs)
      ->add_option("run", request->runs, "Run directories or baseline files")
      ->required();
  add("list", "The entries, oldest first", list_entries)
      ->add_flag("--json", request->json, "As JSON");
  CLI::App* check = add("check", "Look for changes; exit 1 if a metric got worse", check_history);
  check->add_flag("--json", request->json, "As JSON");
  check->add_option("--relative-limit", request->relative_limit, "Smallest change that is worse")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  add("export", "All values as JSON", export_history);
}

}  // namespace tpjitter
