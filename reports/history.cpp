#include "reports/history.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "harness/contract/error.h"
#include "reports/gate_statistics.h"

namespace tpjitter {
namespace {

constexpr int kApplicationId = 0x74706a68;  // "tpjh": told apart from other SQLite files
constexpr int kVersion = 1;
constexpr int kBusyMs = 30'000;
constexpr std::size_t kMostValues = 200;  // of a series: the permutation test is quadratic
constexpr const char* kStored[] = {"p50", "p99"};

constexpr const char* kTables = R"(
CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  fingerprint TEXT NOT NULL UNIQUE,
  began_ns INTEGER,
  scenario TEXT NOT NULL, backend TEXT NOT NULL, world_size INTEGER NOT NULL,
  setup TEXT NOT NULL,
  git_revision TEXT NOT NULL, source TEXT NOT NULL, launches INTEGER NOT NULL);
CREATE TABLE metric_values (
  entry INTEGER NOT NULL REFERENCES entries(id),
  case_name TEXT NOT NULL, metric TEXT NOT NULL, statistic TEXT NOT NULL, value_ns REAL NOT NULL,
  PRIMARY KEY (entry, case_name, metric, statistic)) WITHOUT ROWID;
)";

class SqlError : public RunError {
 public:
  explicit SqlError(sqlite3* db)
      : RunError(fmt::format("history: {}", sqlite3_errmsg(db))), code_(sqlite3_errcode(db)) {}
  bool is_damage() const { return code_ == SQLITE_NOTADB || code_ == SQLITE_CORRUPT; }

 private:
  int code_;
};

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) : db_(db) {
    if (sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr) != SQLITE_OK) {
      throw SqlError(db);
    }
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(const std::string& text) {
    sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(std::int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(double value) {
    sqlite3_bind_double(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(const std::optional<std::int64_t>& value) {
    if (value) return bind(*value);
    sqlite3_bind_null(statement_, ++bound_);
    return *this;
  }
  // A row is there.
  bool step() {
    const int status = sqlite3_step(statement_);
    if (status == SQLITE_ROW) return true;
    if (status == SQLITE_DONE) return false;
    throw SqlError(db_);
  }
  void reset() {
    sqlite3_reset(statement_);
    bound_ = 0;
  }
  std::string text(int column) const {
    const unsigned char* value = sqlite3_column_text(statement_, column);
    return value == nullptr ? "" : reinterpret_cast<const char*>(value);
  }
  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double number(int column) const { return sqlite3_column_double(statement_, column); }
  std::optional<std::int64_t> optional_integer(int column) const {
    if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::nullopt;
    return integer(column);
  }

 private:
  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

// Rolls back unless committed. A reader takes no lock that a read-only file would refuse.
class Transaction {
 public:
  Transaction(sqlite3* db, bool writes) : db_(db) {
    Statement(db, writes ? "BEGIN IMMEDIATE" : "BEGIN").step();
  }
  ~Transaction() {
    if (open_) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  void commit() {
    Statement(db_, "COMMIT").step();
    open_ = false;
  }

 private:
  sqlite3* db_;
  bool open_ = true;
};

std::optional<std::int64_t> first_begin(const LaunchSet& set) {
  std::optional<std::int64_t> began;
  for (const LaunchResult& launch : set.launches) {
    if (launch.began_ns) began = std::min(began.value_or(*launch.began_ns), *launch.began_ns);
  }
  return began;
}

// FNV-1a of what must agree before runs are compared: machine, driver, every scenario key.
std::string setup_of(const LaunchSet& set) {
  std::string text = set.environment.dump() + set.versions.dump();
  for (const auto& [name, values] : set.case_values) text += name + values.dump();
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return fmt::format("{:016x}", hash);
}

// Two additions of one run are the same; two runs never begin in the same nanosecond.
std::string fingerprint(const LaunchSet& set, const std::optional<std::int64_t>& began) {
  const std::string when =
      began ? std::to_string(*began)
            : (set.launches.empty() ? std::string("none") : set.launches.front().source);
  return fmt::format("{}/{}/{}/{}/{}", set.scenario, set.backend, set.world_size,
                     set.launches.size(), when);
}

}  // namespace

History::History(const std::filesystem::path& file, bool create) : file_(file) {
  std::error_code error;
  if (!create && !std::filesystem::exists(file, error)) {
    throw ConfigError(fmt::format("{}: there is no such history; `tpjitter history add` makes it",
                                  file.string()));
  }
  const int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
  if (sqlite3_open_v2(file.c_str(), &db_, flags, nullptr) != SQLITE_OK) {
    fail("cannot be opened (does its folder exist, and may it be written?)");
  }
  sqlite3_busy_timeout(db_, kBusyMs);
  if (create && sqlite3_db_readonly(db_, "main") == 1) {  // SQLite falls back without a word
    sqlite3_close(db_);
    throw ConfigError(
        fmt::format("{}: cannot be written: the file is read-only; `list`, `check` and `export` "
                    "still read it",
                    file.string()));
  }
  try {
    Transaction transaction(db_, create);
    Statement id(db_, "PRAGMA application_id"), version(db_, "PRAGMA user_version"),
        tables(db_, "SELECT count(*) FROM sqlite_master");
    id.step();
    version.step();
    tables.step();
    if (tables.integer(0) == 0 && id.integer(0) == 0 && create) {
      execute(kTables);
      execute(fmt::format("PRAGMA application_id = {}", kApplicationId).c_str());
      execute(fmt::format("PRAGMA user_version = {}", kVersion).c_str());
    } else if (id.integer(0) != kApplicationId) {
      throw RecordError(fmt::format("{}: is a database, but no tpjitter history", file.string()),
                        kExitUsage);
    } else if (version.integer(0) > kVersion) {
      throw RecordError(fmt::format("{}: is of a newer schema (tpjitter.history/{})", file.string(),
                                    version.integer(0)),
                        kExitUsage);
    }
    id.reset();
    version.reset();
    tables.reset();
    transaction.commit();
  } catch (const RecordError&) {
    sqlite3_close(db_);
    throw;
  } catch (const SqlError& problem) {
    sqlite3_close(db_);
    throw RecordError(
        fmt::format("{}: {}: {}", file.string(),
                    problem.is_damage() ? "is no history" : "cannot be opened", problem.what()),
        kExitUsage);
  } catch (const Error&) {
    sqlite3_close(db_);
    throw;
  }
}

History::~History() { sqlite3_close(db_); }

void History::fail(const std::string& what) const {
  const std::string why = db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_);
  sqlite3_close(db_);
  throw ConfigError(fmt::format("{}: {}: {}", file_.string(), what, why));
}

void History::execute(const char* sql) const {
  char* message = nullptr;
  if (sqlite3_exec(db_, sql, nullptr, nullptr, &message) != SQLITE_OK) {
    const std::string why = message == nullptr ? "unknown" : message;
    sqlite3_free(message);
    throw RunError(fmt::format("{}: {}", file_.string(), why));
  }
}

std::optional<std::int64_t> History::add(const LaunchSet& set) {
  const std::optional<std::int64_t> began = first_begin(set);
  const std::string key = fingerprint(set, began);
  Transaction transaction(db_, true);
  {
    Statement known(db_, "SELECT 1 FROM entries WHERE fingerprint = ?");
    if (known.bind(key).step()) return std::nullopt;
  }
  Statement(db_,
            "INSERT INTO entries (fingerprint, began_ns, scenario, backend, world_size, setup, "
            "git_revision, source, launches) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .bind(key)
      .bind(began)
      .bind(set.scenario)
      .bind(set.backend)
      .bind(static_cast<std::int64_t>(set.world_size))
      .bind(setup_of(set))
      .bind(set.git_revision)
      .bind(set.launches.empty() ? std::string() : set.launches.front().source)
      .bind(static_cast<std::int64_t>(set.launches.size()))
      .step();
  const std::int64_t id = sqlite3_last_insert_rowid(db_);
  Statement insert(db_, "INSERT INTO metric_values VALUES (?, ?, ?, ?, ?)");
  for (const auto& [name, values] : set.case_values) {
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      for (const char* statistic : kStored) {
        std::vector<double> samples;
        for (const LaunchResult& launch : set.launches) {
          const auto found = launch.cases.find(name);
          if (found == launch.cases.end()) continue;
          const auto value = statistic_of(found->second.metrics[m], statistic);
          if (value) samples.push_back(*value);
        }
        if (samples.empty()) continue;
        insert.reset();
        insert.bind(id)
            .bind(name)
            .bind(std::string(metrics()[m].key))
            .bind(std::string(statistic))
            .bind(mean_and_variance(samples).mean)
            .step();
      }
    }
  }
  insert.reset();
  transaction.commit();
  return id;
}

std::vector<HistoryEntry> History::entries() const {
  // Without a time: in the order of addition, first.
  Statement select(db_,
                   "SELECT id, began_ns, scenario, backend, world_size, git_revision, source, "
                   "launches FROM entries ORDER BY began_ns, id");
  std::vector<HistoryEntry> entries;
  while (select.step()) {
    HistoryEntry& entry = entries.emplace_back();
    entry.id = select.integer(0);
    entry.began_ns = select.optional_integer(1);
    entry.scenario = select.text(2);
    entry.backend = select.text(3);
    entry.world_size = static_cast<int>(select.integer(4));
    entry.git_revision = select.text(5);
    entry.source = select.text(6);
    entry.launches = static_cast<int>(select.integer(7));
  }
  return entries;
}

std::vector<HistorySeries> History::series() const {
  Statement select(db_,
                   "SELECT e.scenario, e.backend, e.world_size, v.case_name, v.metric, "
                   "v.statistic, e.id, v.value_ns, e.setup FROM entries e JOIN metric_values v "
                   "ON v.entry = e.id ORDER BY e.began_ns, e.id");
  std::map<std::array<std::string, 7>, HistorySeries> by_key;
  while (select.step()) {
    const int world_size = static_cast<int>(select.integer(2));
    HistorySeries& series = by_key[{select.text(0), select.text(1), select.text(2), select.text(3),
                                    select.text(4), select.text(5), select.text(8)}];
    series.setup = select.text(8);
    series.scenario = select.text(0);
    series.backend = select.text(1);
    series.world_size = world_size;
    series.case_name = select.text(3);
    series.metric = select.text(4);
    series.statistic = select.text(5);
    series.entries.push_back(select.integer(6));
    series.values.push_back(select.number(7));
  }
  std::vector<HistorySeries> all;
  for (auto& [key, series] : by_key) all.push_back(std::move(series));
  return all;
}

Json History::to_json() const {
  Json entries_json = Json::array(), series_json = Json::array();
  for (const HistoryEntry& entry : entries()) {
    entries_json.push_back({{"id", entry.id},
                            {"began_ns", entry.began_ns ? Json(*entry.began_ns) : Json()},
                            {"scenario", entry.scenario},
                            {"backend", entry.backend},
                            {"world_size", entry.world_size},
                            {"git_revision", entry.git_revision},
                            {"source", entry.source},
                            {"launches", entry.launches}});
  }
  for (const HistorySeries& s : series()) {
    series_json.push_back({{"scenario", s.scenario},
                           {"backend", s.backend},
                           {"world_size", s.world_size},
                           {"setup", s.setup},
                           {"case", s.case_name},
                           {"metric", s.metric},
                           {"statistic", s.statistic},
                           {"entries", s.entries},
                           {"values_ns", s.values}});
  }
  return {{"schema", kHistorySchema}, {"entries", entries_json}, {"series", series_json}};
}

std::vector<HistoryChange> history_changes(const std::vector<HistorySeries>& all,
                                           double relative_limit, double floor_ns) {
  std::vector<HistoryChange> changes;
  for (HistorySeries series : all) {
    if (series.values.size() > kMostValues) {
      series.values.erase(series.values.begin(), series.values.end() - kMostValues);
      series.entries.erase(series.entries.begin(), series.entries.end() - kMostValues);
    }
    const std::vector<ChangePoint> points = change_points(series.values);
    double best = points.empty() ? 0 : points.front().before;  // lowest level so far: creep counts
    for (std::size_t i = 0; i < points.size(); ++i) {
      best = std::min(best, points[i].before);
      const double limit = std::max(relative_limit * std::abs(best), floor_ns);
      changes.push_back(
          {series, points[i], i + 1 == points.size(), points[i].after - best > limit});
    }
  }
  return changes;
}

}  // namespace tpjitter
