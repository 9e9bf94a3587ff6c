// The gate's result in the forms that CI systems show.
#pragma once

#include <string>

#include "reports/gate.h"

namespace tpjitter {

// testsuites / testsuite by case / testcase by check. A regression is a failure; what gives no
// verdict is an error (incomparable, nothing measured) or skipped (inconclusive, advisory, waived).
std::string gate_junit(const GateResult& result);
// A pull-request comment: fewer than 60 lines, whatever the number of rows.
std::string gate_markdown(const GateResult& result);
// What a row is to a CI system; waived and advisory rows are skipped ones at worst.
enum class Outcome { kPassed, kFailure, kError, kSkipped };
Outcome outcome_of(const GateRow& row);

// `system` "github": one workflow command a line; "gitlab": a code quality report, JSON.
std::string gate_annotations(const GateResult& result, const std::string& system);

}  // namespace tpjitter
