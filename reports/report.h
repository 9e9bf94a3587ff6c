// `tpjitter report`: reads run directories, computes each summary once and renders it.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

// Renders summaries (tpjitter.summary/1), one after another.
struct Exporter {
  const char* format;  // value of --format
  const char* summary;
  void (*write)(const std::vector<Json>& summaries, std::ostream& out);
};
std::span<const Exporter> exporters();

void write_text(const std::vector<Json>& summaries, std::ostream& out);
void write_markdown(const std::vector<Json>& summaries, std::ostream& out);
void write_json(const std::vector<Json>& summaries, std::ostream& out);

// A directory without run.json that holds run directories (several scenarios in one --out) stands
// for all of them, by name. Returns the exit code: 0, 3 if a run is incomplete or damaged, 6 if one
// has no rows. Throws ConfigError (unknown format) and RecordError before anything is written.
int report(const std::vector<std::filesystem::path>& runs, const std::string& format,
           std::ostream& out);

}  // namespace tpjitter
