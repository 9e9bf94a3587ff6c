#include "reports/run_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "harness/contract/error.h"
#include "reports/parallel.h"
#include "reports/record_checks.h"
#include "reports/record_consistency.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

std::string rank_file(int rank) { return fmt::format("rank{}.phases.npy", rank); }

bool is_todays_layout(const NpyFile& file) {
  const auto fields = phase_row_fields();
  if (file.row_size() != sizeof(PhaseRow) || file.fields().size() != fields.size()) return false;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const NpyFile::Field& field = file.fields()[i];
    if (field.name != fields[i].name || field.type != fields[i].type ||
        field.offset != fields[i].offset) {
      return false;
    }
  }
  return reinterpret_cast<std::uintptr_t>(file.row(0)) % alignof(PhaseRow) == 0;
}

std::int64_t read_integer(const std::byte* at, const std::string& type) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<std::int64_t>(value);
  };
  if (type == "<i8") return load(std::int64_t{});
  if (type == "<u8") return load(std::uint64_t{});
  if (type == "<i4") return load(std::int32_t{});
  if (type == "<u4") return load(std::uint32_t{});
  if (type == "<i2") return load(std::int16_t{});
  if (type == "<u2") return load(std::uint16_t{});
  if (type == "|i1") return load(std::int8_t{});
  return load(std::uint8_t{});
}

bool is_integer_type(const std::string& type) {
  static constexpr const char* kTypes[] = {"<i8", "<u8", "<i4", "<u4", "<i2", "<u2", "|i1", "|u1"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

// A record made by hand or by another version: the fields that it has, by name; 0 for the others.
std::vector<PhaseRow> convert_rows(const NpyFile& file, std::uint64_t num_rows, int rank,
                                   Run* run) {
  std::vector<PhaseRow> rows(num_rows, PhaseRow{});
  std::string absent;
  bool needed = false;
  for (const NpyField& target : phase_row_fields()) {
    const auto source = std::find_if(file.fields().begin(), file.fields().end(),
                                     [&](const auto& field) { return field.name == target.name; });
    if (source == file.fields().end() || !is_integer_type(source->type)) {
      needed = needed || target.name == std::string_view("sequence") ||
               target.name == std::string_view("step");
      absent += absent.empty() ? target.name : fmt::format(", {}", target.name);
      continue;
    }
    const bool wide = target.type == std::string_view("<i8");
    for (std::uint64_t i = 0; i < num_rows; ++i) {
      const std::int64_t value = read_integer(file.row(i) + source->offset, source->type);
      auto* at = reinterpret_cast<std::byte*>(&rows[i]) + target.offset;
      if (wide) {
        std::memcpy(at, &value, sizeof value);
      } else {
        const auto narrow = static_cast<std::int32_t>(value);
        std::memcpy(at, &narrow, sizeof narrow);
      }
    }
  }
  if (!absent.empty()) {
    // An older version or a hand-made record is no damage.
    (needed ? run->problems : run->notes)
        .push_back({"missing_field",
                    fmt::format("{} has no integer field {}; figures that need it are null",
                                rank_file(rank), absent),
                    rank});
  }
  return rows;
}

// Rows past the declared end that a launcher wrote before it died: up to the first unwritten one.
std::uint64_t recovered_rows(const NpyFile& file) {
  const auto sequence = std::find_if(file.fields().begin(), file.fields().end(),
                                     [](const auto& field) { return field.name == "sequence"; });
  std::uint64_t end = file.rows();
  if (sequence == file.fields().end() || !is_integer_type(sequence->type)) return end;
  while (end < file.capacity_rows() &&
         read_integer(file.row(end) + sequence->offset, sequence->type) > 0) {
    ++end;
  }
  return end;
}

struct RowCounts {
  std::uint64_t foreign = 0;     // case, phase, launch or step outside the run
  std::uint64_t zero_stamp = 0;  // a host stamp that every row has is 0
  std::uint64_t bad_checksum = 0;
  std::uint64_t unordered = 0;     // sequence does not grow from row to row of a launch
  std::uint64_t out_of_range = 0;  // stamps that no run can have
  std::uint64_t wrapped = 0;       // a 32-bit counter wrapped within the row
  std::uint64_t went_back = 0;     // the host's clock did
  std::uint64_t negative_counter = 0;
  std::uint64_t no_device_stamp = 0, launched = 0;
  std::vector<std::optional<std::int64_t>> starts;  // [launch], first stamp, if no other rank's
};

bool lacks_stamp(const PhaseRow& row) {
  const bool launched = (row.flags & kFlagNoLaunch) == 0;
  return row.accept_seen_ns == 0 || row.dispatch_begin_ns == 0 || row.dispatch_end_ns == 0 ||
         (launched && (row.launch_begin_ns == 0 || row.launch_end_ns == 0));
}

// The order of the recorder, in which rows are matched across ranks.
bool comes_before(const PhaseRow& a, const PhaseRow& b) {
  const auto key = [](const PhaseRow& row) {
    return std::tuple(row.launch, row.repetition, row.step, row.graph,
                      (row.flags & kFlagNoLaunch) == 0, row.sequence);
  };
  return key(a) < key(b);
}

// False if a launch of this rank begins too far from that of the ranks before.
bool merge_starts(const std::vector<std::optional<std::int64_t>>& own,
                  std::vector<std::optional<std::int64_t>>* starts) {
  if (starts->size() < own.size()) starts->resize(own.size());
  for (std::size_t launch = 0; launch < own.size(); ++launch) {
    if (own[launch] && (*starts)[launch] && !within_an_hour(*own[launch], *(*starts)[launch])) {
      return false;
    }
  }
  for (std::size_t launch = 0; launch < own.size(); ++launch) {
    if (!(*starts)[launch]) (*starts)[launch] = own[launch];
  }
  return true;
}

// The one pass over a rank's rows. `starts`: of the ranks before, if they are to be compared with.
RowCounts index_rows(const RunInfo& info, std::vector<std::optional<std::int64_t>>* starts,
                     RankRows* rank, OwnerCheck* owner) {
  RowCounts counts;
  const std::size_t num_cases = info.cases.size();
  // A record made by hand may list no launches, a killed launcher not yet the one that ran.
  const std::int64_t num_launches =
      info.launches.empty()
          ? std::int64_t{INT32_MAX} + 1
          : static_cast<std::int64_t>(info.launches.size()) + (info.status == "complete" ? 0 : 1);
  ClockCheck clock(starts != nullptr ? starts : &counts.starts);
  std::int64_t launch = -1, sequence = 0;
  rank->rows_of_case.assign(num_cases, {});
  // As many as there are when all cases are alike.
  for (auto& numbers : rank->rows_of_case) numbers.reserve(rank->rows.size() / num_cases + 1);
  rank->case_in_order.assign(num_cases, 1);
  rank->written = 0;
  for (std::size_t i = 0; i < rank->rows.size(); ++i) {
    fetch_row(rank->rows, i + kRowsAhead);
    const PhaseRow& row = rank->rows[i];
    if (row.sequence == 0) continue;
    const auto case_index = static_cast<std::size_t>(row.case_index);
    if (row.sequence < 0 || row.case_index < 0 || case_index >= num_cases || row.phase < 0 ||
        row.phase >= kNumPhases || row.launch < 0 || row.launch >= num_launches ||
        row.repetition < 0 || row.step < 0 || row.graph < 0) {
      ++counts.foreign;
      continue;
    }
    if (row.launch < launch || (row.launch == launch && row.sequence <= sequence)) {
      ++counts.unordered;
    }
    launch = row.launch;
    sequence = row.sequence;
    if (!clock.in_range(row)) {
      ++counts.out_of_range;
      continue;
    }
    if (wrapped_within(row)) {
      ++counts.wrapped;
      continue;
    }
    counts.launched += launched(row) ? 1 : 0;
    counts.no_device_stamp += lacks_device_stamp(row) ? 1 : 0;
    counts.negative_counter += has_negative_counter(row) ? 1 : 0;
    auto& numbers = rank->rows_of_case[case_index];
    if (!numbers.empty() && comes_before(row, rank->rows[numbers.back()])) {
      rank->case_in_order[case_index] = 0;
    }
    numbers.push_back(static_cast<std::uint32_t>(i));
    ++rank->written;
    owner->see(row);
    if (lacks_stamp(row)) ++counts.zero_stamp;
    if ((row.flags & kFlagChecksumFailed) != 0) ++counts.bad_checksum;
  }
  counts.went_back = clock.went_back();
  // A record without any was made without a device; one with some has lost the others.
  if (counts.no_device_stamp == counts.launched) counts.no_device_stamp = 0;
  return counts;
}

void report_counts(const RowCounts& counts, int rank, std::vector<RunWarning>* problems) {
  const auto add = [&](std::uint64_t n, const char* code, const char* text) {
    if (n > 0)
      problems->push_back({code, fmt::format("{}: {} {}", rank_file(rank), n, text), rank});
  };
  add(counts.foreign, "foreign_rows",
      "rows name a case, phase, launch, step or graph that the run does not have; left out");
  add(counts.unordered, "unordered_rows",
      "rows do not continue the sequence (numbers repeat or go back): rows are doubled or moved");
  add(counts.out_of_range, "stamps_out_of_range",
      "rows have stamps out of range (more than 1 h apart within the row, from the row before or "
      "from the other ranks); left out");
  add(counts.wrapped, "wrapped_stamps",
      "rows end a stage 2.1 to 4.3 s before it begins: a 32-bit nanosecond counter wrapped; left "
      "out");
  add(counts.went_back, "clock_went_back",
      "rows begin before the row before them: the host's clock was set, or a counter wrapped");
  add(counts.negative_counter, "negative_counters",
      "rows count all-reduces, context switches or page faults below 0: a counter wrapped");
  add(counts.no_device_stamp, "zero_device_stamps",
      "rows lack a device stamp (0) without the flag that says so; figures from it are left out");
  add(counts.zero_stamp, "zero_stamps",
      "rows lack a host stamp (accept, dispatch or launch is 0); figures from it are left out");
  add(counts.bad_checksum, "checksum_failed",
      "rows failed the checksum: the step read wrong metadata, its times mean nothing");
}

bool has_field(const NpyFile& file, const char* name) {
  return std::any_of(file.fields().begin(), file.fields().end(),
                     [&](const auto& field) { return field.name == name; });
}

// Maps a rank's file. Its rows are looked at later, all ranks at once.
void open_rank(const std::filesystem::path& directory, int rank, Run* run) {
  RankRows& out = run->ranks[static_cast<std::size_t>(rank)];
  const std::filesystem::path path = directory / rank_file(rank);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    run->problems.push_back(
        {"missing_rank", fmt::format("{} is missing; rank {} has no rows", rank_file(rank), rank),
         rank});
    return;
  }
  try {
    out.file = std::make_unique<NpyFile>(path);
  } catch (const RecordError& damage) {
    std::string text = damage.what();
    const std::size_t name = text.find(rank_file(rank));  // a report does not depend on the folder
    run->problems.push_back(
        {"damaged_file", name == std::string::npos ? text : text.substr(name), rank});
    return;
  }
  const NpyFile& file = *out.file;
  if (file.rows() < file.declared_rows()) {
    run->problems.push_back({"truncated_file",
                             fmt::format("{} is cut off: it declares {} rows and holds {}",
                                         rank_file(rank), file.declared_rows(), file.rows()),
                             rank});
  }
  const std::uint64_t num_rows = recovered_rows(file);
  if (num_rows > std::numeric_limits<std::uint32_t>::max()) {
    throw RecordError(fmt::format("{}: more than 2^32 rows; split the run", rank_file(rank)),
                      kExitUsage);
  }
  if (num_rows > file.rows()) {
    run->problems.push_back({"undeclared_rows",
                             fmt::format("{}: {} rows stand past the declared end; they are used",
                                         rank_file(rank), num_rows - file.rows()),
                             rank});
  }
  if (is_todays_layout(file)) {
    out.rows = {reinterpret_cast<const PhaseRow*>(file.row(0)), num_rows};
  } else {
    out.converted = convert_rows(file, num_rows, rank, run);
    out.rows = out.converted;
  }
}

// Ranks whose clock does not fit to those before are read again, with what is known by then.
void index_ranks(Run* run) {
  const std::size_t world = run->ranks.size();
  std::size_t rows = 0;
  for (const RankRows& rank : run->ranks) rows += rank.rows.size();
  std::vector<RowCounts> counts(world);
  std::vector<std::vector<RunWarning>> owner(world);
  const auto index = [&](std::size_t rank, std::vector<std::optional<std::int64_t>>* starts) {
    RankRows& of_rank = run->ranks[rank];
    OwnerCheck check(run->info, static_cast<int>(rank));
    counts[rank] = index_rows(run->info, starts, &of_rank, &check);
    if (of_rank.file == nullptr) return;
    owner[rank] = check.problems(has_field(*of_rank.file, "first_all_reduce_last_peer"));
  };
  parallel_for(world, rows, [&](std::size_t rank) { index(rank, nullptr); });
  std::vector<std::optional<std::int64_t>> starts;  // [launch], host clock
  for (std::size_t rank = 0; rank < world; ++rank) {
    RankRows& out = run->ranks[rank];
    if (out.file == nullptr) continue;
    if (!merge_starts(counts[rank].starts, &starts)) index(rank, &starts);
    // A field that is absent counts as 0.
    if (!out.converted.empty()) counts[rank].zero_stamp = counts[rank].no_device_stamp = 0;
    report_counts(counts[rank], static_cast<int>(rank), &run->problems);
    run->problems.insert(run->problems.end(), owner[rank].begin(), owner[rank].end());
    run->rows += out.written;
  }
}

// What run.json says about the ranks against what is there.
void check_ranks(Run* run) {
  for (const RunRank& said : run->info.ranks) {
    if (said.rank < 0 || said.rank >= run->info.world_size) {
      run->problems.push_back({"unknown_rank",
                               fmt::format("run.json lists rank {}, but world_size is {}",
                                           said.rank, run->info.world_size),
                               std::nullopt});
      continue;
    }
    const std::uint64_t written = run->ranks[static_cast<std::size_t>(said.rank)].written;
    // A killed launcher had no time to count the last rows.
    if (run->info.status == "complete" && said.rows > 0 &&
        written > static_cast<std::uint64_t>(said.rows)) {
      run->problems.push_back({"more_rows",
                               fmt::format("rank {} has {} usable rows, run.json says {}",
                                           said.rank, written, said.rows),
                               said.rank});
    }
    if (said.rows > 0 && written < static_cast<std::uint64_t>(said.rows)) {
      run->problems.push_back({"fewer_rows",
                               fmt::format("rank {} has {} usable rows, run.json says {}",
                                           said.rank, written, said.rows),
                               said.rank});
    }
    if (said.status != "complete") {
      run->problems.push_back({"rank_" + said.status,
                               fmt::format("rank {} {}{}{}", said.rank, said.status,
                                           said.ended_at ? " at " : "", said.ended_at.value_or("")),
                               said.rank});
    }
  }
  const auto [least, most] =
      std::minmax_element(run->ranks.begin(), run->ranks.end(),
                          [](const auto& a, const auto& b) { return a.written < b.written; });
  if (least->written != most->written) {
    run->problems.push_back(
        {"unequal_rows",
         fmt::format("rank {} has {} rows, rank {} has {}; figures over all ranks use only the "
                     "replays that every rank recorded",
                     least - run->ranks.begin(), least->written, most - run->ranks.begin(),
                     most->written),
         std::nullopt});
  }
}

// Row files of ranks that the run does not have.
void check_foreign_files(const std::filesystem::path& directory, Run* run) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with(".phases.npy")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    bool known = false;
    for (int rank = 0; rank < run->info.world_size && !known; ++rank)
      known = name == rank_file(rank);
    if (!known) {
      run->problems.push_back({"foreign_file",
                               fmt::format("{} belongs to no rank of this run (world_size {}); it "
                                           "is not read",
                                           name, run->info.world_size),
                               std::nullopt});
    }
  }
}

}  // namespace

Run read_run(const std::filesystem::path& directory) {
  Run run;
  run.info = read_run_json(directory);
  run.ranks.resize(static_cast<std::size_t>(run.info.world_size));
  check_run_info(&run);
  for (int rank = 0; rank < run.info.world_size; ++rank) open_rank(directory, rank, &run);
  index_ranks(&run);
  check_copies(&run);
  check_backend(&run);
  check_cases(&run);
  check_ranks(&run);
  check_foreign_files(directory, &run);
  return run;
}

}  // namespace tpjitter
