// CSV: the metrics as one table, the same figures as the summary; or, asked for, every replay of
// every rank with its metrics. RFC 4180 with \n; times in ns; an empty field is a null.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "reports/parallel.h"
#include "reports/report.h"
#include "reports/summary_view.h"

namespace tpjitter {
namespace {

constexpr std::size_t kFlushBytes = 1u << 20;
constexpr std::size_t kPartRows = 1u << 13;  // lines that one thread makes at a time
constexpr std::size_t kPartsAtOnce = 16;

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

// Lines are built in one buffer: a stream call for each field would be most of the time.
class CsvWriter {
 public:
  explicit CsvWriter(std::ostream& out) : out_(&out) { buffer_.reserve(kFlushBytes + 4096); }
  CsvWriter() { buffer_.reserve(kPartRows * 128); }  // a part, to be appended to another
  ~CsvWriter() { flush(); }
  CsvWriter(const CsvWriter&) = delete;
  CsvWriter& operator=(const CsvWriter&) = delete;

  void text(std::string_view field) {  // already quoted
    separate();
    buffer_ += field;
  }
  void number(std::int64_t value) {
    separate();
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    buffer_.append(digits, end);
  }
  void empty() { separate(); }
  void json(const Json& value) { text(value.is_null() ? "" : quoted(plain_number(value))); }
  void end_line() {
    buffer_ += '\n';
    first_ = true;
    if (out_ != nullptr && buffer_.size() > kFlushBytes) flush();
  }
  void append(const CsvWriter& part) {
    flush();
    out_->write(part.buffer_.data(), static_cast<std::streamsize>(part.buffer_.size()));
  }

 private:
  static std::string plain_number(const Json& value) {
    return value.is_string() ? printable(value.get<std::string>()) : value.dump();
  }
  void separate() {
    if (!first_) buffer_ += ',';
    first_ = false;
  }
  void flush() {
    if (out_ == nullptr) return;
    out_->write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  std::ostream* out_ = nullptr;
  std::string buffer_;
  bool first_ = true;
};

constexpr const char* kStatistics[] = {"n",   "p50", "p90",  "p99",     "p999",
                                       "min", "max", "mean", "negative"};

struct Place {
  std::string run, name, path, phase, rank;
};

void write_metrics(const Place& place, const Json& metrics, const Json* jitter, CsvWriter* csv) {
  for (const auto& [key, metric] : metrics.items()) {
    for (const std::string* field : {&place.run, &place.name, &place.path, &place.phase}) {
      csv->text(*field);
    }
    csv->text(place.rank);
    csv->text(key);
    csv->json(metric["unit"]);
    for (const char* statistic : kStatistics) csv->json(metric[statistic]);
    csv->json(jitter != nullptr && jitter->contains(key) ? (*jitter)[key]["p99_minus_p50"]
                                                         : Json(nullptr));
    // The first null tells: the others lack the same or more samples.
    const Json& reasons = metric["reasons"];
    csv->json(reasons.empty() ? Json(nullptr) : *reasons.begin());
    csv->end_line();
  }
}

void write_laggard(const Place& place, const Json& c, const Json& rank, CsvWriter* csv) {
  for (const std::string* field : {&place.run, &place.name, &place.path, &place.phase}) {
    csv->text(*field);
  }
  csv->text(place.rank);
  csv->text("laggard_share");
  csv->text("1");
  csv->json(c["attribution"]["replays"]);
  for (int i = 0; i < 6; ++i) csv->empty();
  csv->json(rank["laggard_share"]);
  csv->empty();
  csv->empty();
  csv->text(rank["laggard_share"].is_null() ? "no replay was compared" : "");
  csv->end_line();
}

void write_statistics(std::span<const AnalysedRun> runs, CsvWriter* csv) {
  for (const char* head : {"run", "case", "path", "phase", "rank", "metric", "unit"}) {
    csv->text(head);
  }
  for (const char* head : kStatistics) csv->text(head);
  csv->text("jitter_p99_minus_p50");
  csv->text("reason");
  csv->end_line();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string name = quoted(run_label(runs, i));
    for (const Json& c : runs[i].summary["cases"]) {
      Place place{name, quoted(plain(c["name"])), quoted(plain(c["path"])), "", ""};
      write_metrics(place, c["metrics"], nullptr, csv);
      for (const auto& [phase, metrics] : c["phases"].items()) {
        place.phase = phase;
        write_metrics(place, metrics, nullptr, csv);
      }
      place.phase.clear();
      for (const Json& rank : c["ranks"]) {
        place.rank = plain(rank["rank"]);
        write_metrics(place, rank["metrics"], &rank["jitter"], csv);
        write_laggard(place, c, rank, csv);
      }
    }
  }
}

class ReplayLines {
 public:
  ReplayLines(const AnalysedRun& run, const RunCase& c, const std::string& label)
      : run_(run.run),
        table_(match_replays(run.run, c.index)),
        floors_(compute_floors(run.run, c.index, table_)),
        begin_(fmt::format("{},{},{}", quoted(label), quoted(printable(c.name)),
                           quoted(printable(c.path)))) {}

  void write(CsvWriter* csv) const {
    visit_columns(run_, table_, floors_,
                  [&](std::optional<std::size_t> rank, const MetricColumns& columns) {
                    if (rank) write_rank(*rank, columns, csv);
                  });
  }

 private:
  // Parts of lines are made on all cores and written in order.
  void write_rank(std::size_t rank, const MetricColumns& columns, CsvWriter* csv) const {
    const std::string begin = fmt::format("{},{}", begin_, rank);
    const std::size_t parts = (table_.slots() + kPartRows - 1) / kPartRows;
    for (std::size_t first = 0; first < parts; first += kPartsAtOnce) {
      std::vector<CsvWriter> made(std::min(kPartsAtOnce, parts - first));
      parallel_for(made.size(), made.size() * kPartRows, [&](std::size_t i) {
        const std::size_t slot = (first + i) * kPartRows;
        const std::size_t end = std::min(slot + kPartRows, table_.slots());
        for (std::size_t s = slot; s < end; ++s) write_slot(rank, s, begin, columns, &made[i]);
      });
      for (const CsvWriter& part : made) csv->append(part);
    }
  }

  void write_slot(std::size_t rank, std::size_t slot, const std::string& begin,
                  const MetricColumns& columns, CsvWriter* csv) const {
    const std::uint32_t number = table_.row_of_slot[rank][slot];
    if (number == kNoRow || table_.has(slot, ReplayTable::kExcluded)) return;
    const PhaseRow& row = run_.ranks[rank].rows[number];
    csv->text(begin);
    for (const std::int32_t value : {row.launch, row.repetition, row.step, row.graph}) {
      csv->number(value);
    }
    csv->text(phase_name(static_cast<Phase>(row.phase)));
    for (const Column& column : columns) {
      if (column[slot] == kAbsent) {
        csv->empty();
      } else {
        csv->number(column[slot]);
      }
    }
    csv->number(row.injected_ns);
    csv->end_line();
  }

  const Run& run_;
  const ReplayTable table_;
  const Floors floors_;
  const std::string begin_;  // run, case, path
};

void write_replays(std::span<const AnalysedRun> runs, const std::string& glob, CsvWriter* csv) {
  for (const char* head :
       {"run", "case", "path", "rank", "launch", "repetition", "step", "graph", "phase"}) {
    csv->text(head);
  }
  for (const Metric& metric : metrics()) csv->text(metric.key);
  csv->text("injected_ns");
  csv->end_line();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const RunCase& c : runs[i].run.info.cases) {
      if (c.skip_reason || !matches(glob, c.name)) continue;
      ReplayLines(runs[i], c, run_label(runs, i)).write(csv);
    }
  }
}

}  // namespace

void write_csv(std::span<const AnalysedRun> runs, const ReportOptions& options, std::ostream& out) {
  CsvWriter csv(out);
  if (options.replays) {
    write_replays(runs, options.case_glob, &csv);
  } else {
    write_statistics(runs, &csv);
  }
}

}  // namespace tpjitter
