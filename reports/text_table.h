// Aligned tables and wrapped paragraphs for terminals, at most kTextWidth columns wide, and the
// unit of a column of nanoseconds. No colour, no locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tpjitter {

inline constexpr std::size_t kTextWidth = 100;

// How a column of nanoseconds is shown: one unit for all of its cells.
struct DisplayUnit {
  const char* name;  // "us"
  double ns;         // one of it
};
DisplayUnit choose_unit(const std::vector<std::optional<std::int64_t>>& values_ns);
// Two decimals below 100, one above; "-" for nothing.
std::string format_ns(const std::optional<std::int64_t>& value_ns, const DisplayUnit& unit);
std::string format_ns(const std::optional<std::int64_t>& value_ns);  // with its own unit: "2.10 us"
std::string format_percent(const std::optional<double>& share);      // 0.5 gives "50%"

// Control characters become '?', so that a name cannot move the cursor.
std::string printable(const std::string& text);
std::size_t display_width(const std::string& text);  // code points

struct TableColumn {
  std::string head;
  std::vector<std::string> cells;
};
struct TableGroup {
  std::string title;  // above its columns
  std::vector<TableColumn> columns;
};
// The first group holds one column of names, left-aligned; a name too long for the width stands on
// a line of its own. All other columns are right-aligned.
std::string render_table(const std::vector<TableGroup>& groups, std::size_t indent);

// A space at which no line breaks; wrap() turns it into a plain one.
inline constexpr const char* kNoBreak = "\xc2\xa0";
std::string plain_spaces(std::string text);

// Breaks at spaces; lines after the first are indented by `hanging`.
std::string wrap(const std::string& text, std::size_t indent, std::size_t hanging);

}  // namespace tpjitter
