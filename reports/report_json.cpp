// The summary as it is: one document for one run, an array of documents for several.
#include <ostream>

#include "reports/report.h"

namespace tpjitter {

void write_json(const std::vector<Json>& summaries, std::ostream& out) {
  out << json_text(summaries.size() == 1 ? summaries[0] : Json(summaries));
}

}  // namespace tpjitter
