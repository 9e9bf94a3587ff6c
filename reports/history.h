// A history of runs ("tpjitter.history/1"): one SQLite file with the means over launches of each
// case, metric and statistic, and the changes in them. Every addition is one transaction, so that
// concurrent writers and a kill at any moment leave a whole file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reports/change_points.h"
#include "reports/launch_set.h"

struct sqlite3;

namespace tpjitter {

inline constexpr const char* kHistorySchema = "tpjitter.history/1";

struct HistoryEntry {
  std::int64_t id = 0;
  std::optional<std::int64_t> began_ns;  // CLOCK_REALTIME of the first launch
  std::string scenario, backend, git_revision, source;
  int world_size = 0, launches = 0;
};

// One value a run, oldest first.
struct HistorySeries {
  std::string scenario, backend, case_name, metric, statistic;
  std::string setup;  // machine, driver and scenario keys, as a hash: others are other series
  int world_size = 0;
  std::vector<std::int64_t> entries;  // ids
  std::vector<double> values;         // ns
};

struct HistoryChange {
  HistorySeries series;
  ChangePoint change;
  bool latest = false;  // the last one of its series
  bool worse = false;   // by more than the limit
};

class History {
 public:
  // Makes the file if `create`, else throws ConfigError where there is none. Throws RecordError
  // (exit 2) for a file that is no history or of a newer schema.
  History(const std::filesystem::path& file, bool create);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // The id of the new entry; nullopt: the run is in it already. Throws RunError when it cannot be
  // written (locked for long, disk full).
  std::optional<std::int64_t> add(const LaunchSet& set);
  std::vector<HistoryEntry> entries() const;
  std::vector<HistorySeries> series() const;
  Json to_json() const;

 private:
  void execute(const char* sql) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path file_;
  sqlite3* db_ = nullptr;
};

// Changes of every series of at least kMinChangeSeries entries; a change is worse when the level
// after it is above the lowest one before by more than `relative_limit` and `floor_ns`.
std::vector<HistoryChange> history_changes(const std::vector<HistorySeries>& series,
                                           double relative_limit, double floor_ns);

}  // namespace tpjitter
