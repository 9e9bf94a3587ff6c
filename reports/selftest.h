// `tpjitter selftest`: injected delays against what the record gives back of them, judged by the
// targets of the backend. A pure function of the record: the same document on any machine.
#pragma once

#include <iosfwd>

#include "reports/run_reader.h"

namespace tpjitter {

inline constexpr const char* kSelftestSchema = "tpjitter.selftest/1";

// {schema, pass, problems[], backend, world_size, ..., rows[]}: reports/selftest.schema.json.
Json selftest(const Run& run);

// An aligned table, what failed, and the verdict in one line.
void write_selftest_text(const Json& document, std::ostream& out);

}  // namespace tpjitter
