// A run directory as the analysis sees it: run.json and the mapped rows of every rank.
// Only what cannot be reported at all throws; everything else that is wrong with the record becomes
// a named problem, and what is there is still reported (exit code 3).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/contract/npy.h"
#include "harness/contract/phase_row.h"
#include "harness/contract/run_info.h"

namespace tpjitter {

struct RankRows {
  std::unique_ptr<NpyFile> file;    // null: missing or damaged
  std::vector<PhaseRow> converted;  // only for files of another layout than today's PhaseRow
  std::span<const PhaseRow> rows;   // as in the file; rows with sequence 0 were never written
  std::vector<std::vector<std::uint32_t>> rows_of_case;  // [case]: numbers of its written rows
  std::vector<std::uint8_t> case_in_order;               // [case]: as the recorder writes them
  std::uint64_t written = 0;                             // rows that belong to a case
};

struct Run {
  RunInfo info;
  std::vector<RankRows> ranks;       // world_size entries, by rank
  std::vector<RunWarning> problems;  // what is wrong with the record; in rank order
  std::vector<RunWarning> notes;     // what is unusual but no damage: fields of another version
  std::uint64_t rows = 0;            // written rows of all ranks
};

// Throws RecordError: exit code 2 for a directory that is no run, 3 for a run.json that is damaged
// or newer than this program.
Run read_run(const std::filesystem::path& directory);

// Rows are read in order, but no hardware looks ahead beyond a page of memory, of which a row takes a
// twentieth: this brings row `number` near. Call it with that of kRowsAhead rows later.
inline constexpr std::size_t kRowsAhead = 24;
inline void fetch_row(std::span<const PhaseRow> rows, std::size_t number) {
  if (number >= rows.size()) return;
  const char* row = reinterpret_cast<const char*>(rows.data() + number);
  for (std::size_t line = 0; line < sizeof(PhaseRow); line += 64) __builtin_prefetch(row + line);
}
// The same, with the numbers of the rows.
inline void fetch_ahead(std::span<const PhaseRow> rows, std::span<const std::uint32_t> numbers,
                        std::size_t at) {
  if (at + kRowsAhead < numbers.size()) fetch_row(rows, numbers[at + kRowsAhead]);
}

}  // namespace tpjitter
