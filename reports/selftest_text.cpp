// The selftest document as a table for terminals.
#include <fmt/format.h>

#include <ostream>

#include "harness/contract/delay_ladder.h"
#include "reports/selftest.h"
#include "reports/text_table.h"

namespace tpjitter {
namespace {

constexpr DisplayUnit kMicroseconds = {"us", 1e3};

std::optional<std::int64_t> integer(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::int64_t>());
}
std::optional<double> number(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

std::string name_of(const Json& row) {
  const std::string pattern = row["pattern"];
  return fmt::format("{:g} us, rank {}{}", row["injected_ns"].get<double>() / 1e3,
                     row["victim"].get<int>(), pattern == "rotating" ? "" : ", " + pattern);
}

std::string table_of(const Json& document, const std::string& place) {
  std::vector<TableGroup> groups = {
      {"", {{"injected " + place, {}}}},
      {"found (p50), us", {{"actual", {}}, {"skew", {}}, {"wait", {}}}},
      {"error, us", {{"p50", {}}, {"p95", {}}, {"max", {}}}},
      {"gap error, us", {{"p95", {}}, {"max", {}}}},
      {"right", {{"rank", {}}, {"stage", {}}}},
      {"", {{"", {}}}}};
  for (const Json& row : document["rows"]) {
    if (row["inject"] != place) continue;
    std::size_t group = 0;
    const auto put = [&](std::size_t column, std::string cell) {
      groups[group].columns[column].cells.push_back(std::move(cell));
    };
    const auto put_ns = [&](std::size_t column, const Json& value) {
      put(column, format_ns(integer(value), kMicroseconds));
    };
    put(0, name_of(row));
    group = 1;
    put_ns(0, row["actual_ns"]);
    put_ns(1, row["recovered_skew_ns"]);
    put_ns(2, row["recovered_excess_wait_ns"]);
    group = 2;
    put_ns(0, row["error_ns"]["p50"]);
    put_ns(1, row["error_ns"]["p95"]);
    put_ns(2, row["error_ns"]["max"]);
    group = 3;
    put_ns(0, row["arrival_gap_error_ns"]["p95"]);
    put_ns(1, row["arrival_gap_error_ns"]["max"]);
    group = 4;
    put(0, format_percent(number(row["laggard_right"])));
    put(1, format_percent(number(row["stage_right"])));
    group = 5;
    put(0, row["pass"].get<bool>() ? "pass" : "FAIL");
  }
  return groups[0].columns[0].cells.empty() ? "" : render_table(groups, 0) + '\n';
}

}  // namespace

void write_selftest_text(const Json& document, std::ostream& out) {
  for (const char* place : kDelayPlaces) out << table_of(document, place);
  std::size_t passed = 0;
  for (const Json& row : document["rows"]) {
    if (row["pass"].get<bool>()) {
      ++passed;
      continue;
    }
    for (const Json& reason : row["reasons"]) {
      out << wrap(fmt::format("FAIL {}, {}: {}", row["inject"].get<std::string>(), name_of(row),
                              reason.get<std::string>()),
                  0, 2);
    }
  }
  for (const Json& problem : document["problems"]) {
    out << wrap("FAIL " + printable(problem.get<std::string>()), 0, 2);
  }
  if (!document["pass"].get<bool>()) {
    for (const Json& warning : document["warnings"]) {
      out << wrap("warning " + printable(warning.get<std::string>()), 0, 2);
    }
  }
  out << fmt::format("selftest {}: {} of {} rows within their targets, backend {}, {} ranks{}\n",
                     document["pass"].get<bool>() ? "passed" : "FAILED", passed,
                     document["rows"].size(), document["backend"].get<std::string>(),
                     document["world_size"].get<int>(),
                     document["ranks_fit_cpus"].get<bool>() ? "" : " on fewer CPUs");
}

}  // namespace tpjitter
