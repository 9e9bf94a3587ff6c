#include "reports/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>

namespace tpjitter {
namespace {

constexpr std::size_t kGap = 2;  // between columns
constexpr std::size_t kMinNameWidth = 16;

std::string pad_left(const std::string& text, std::size_t width) {
  const std::size_t w = display_width(text);
  return std::string(width > w ? width - w : 0, ' ') + text;
}

std::string pad_right(const std::string& text, std::size_t width) {
  const std::size_t w = display_width(text);
  return text + std::string(width > w ? width - w : 0, ' ');
}

void add_line(std::string line, std::string* out) {
  line.erase(line.find_last_not_of(' ') + 1);
  *out += line + '\n';
}

std::size_t column_width(const TableColumn& column) {
  std::size_t width = display_width(column.head);
  for (const std::string& cell : column.cells) width = std::max(width, display_width(cell));
  return width;
}

}  // namespace

DisplayUnit choose_unit(const std::vector<std::optional<std::int64_t>>& values_ns) {
  double most = 0;
  for (const auto& value : values_ns) {
    if (value) most = std::max(most, std::fabs(static_cast<double>(*value)));
  }
  if (most < 1e8) return {"us", 1e3};
  if (most < 1e11) return {"ms", 1e6};
  return {"s", 1e9};
}

std::string format_ns(const std::optional<std::int64_t>& value_ns, const DisplayUnit& unit) {
  if (!value_ns) return "-";
  const double value = static_cast<double>(*value_ns) / unit.ns;
  std::string text = fmt::format("{:.{}f}", value, std::fabs(value) < 99.995 ? 2 : 1);
  // A value that rounds to nothing has no sign.
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string format_ns(const std::optional<std::int64_t>& value_ns) {
  if (!value_ns) return "-";
  const DisplayUnit unit = choose_unit({value_ns});
  return format_ns(value_ns, unit) + ' ' + unit.name;
}

std::string format_percent(const std::optional<double>& share) {
  if (!share) return "-";
  const double rounded = std::round(*share * 100);
  return fmt::format("{:.0f}%", rounded == 0 ? 0.0 : rounded);
}

std::string printable(const std::string& text) {
  std::string out = text;
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return out;
}

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not a UTF-8 continuation byte
  }));
}

std::string render_table(const std::vector<TableGroup>& groups, std::size_t indent) {
  std::vector<std::vector<std::size_t>> widths;
  std::size_t numbers = 0;  // width of all but the names
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::size_t> of_group;
    std::size_t total = 0;
    for (const TableColumn& column : groups[g].columns) {
      of_group.push_back(column_width(column));
      total += of_group.back() + (of_group.size() > 1 ? kGap : 0);
    }
    const std::size_t title = display_width(groups[g].title);
    if (title > total) of_group.front() += title - total;
    if (g > 0) numbers += std::max(title, total) + kGap;
    widths.push_back(std::move(of_group));
  }
  const std::size_t room =
      numbers + indent + kMinNameWidth < kTextWidth ? kTextWidth - indent - numbers : kMinNameWidth;
  const std::size_t name_width = std::min(widths[0][0], room);

  std::string out;
  const std::string margin(indent, ' ');
  std::string titles = margin + pad_right(groups[0].title, name_width);
  std::string heads = margin + pad_right(groups[0].columns[0].head, name_width);
  for (std::size_t g = 1; g < groups.size(); ++g) {
    std::size_t total = 0;
    for (std::size_t c = 0; c < groups[g].columns.size(); ++c) {
      heads += std::string(kGap, ' ') + pad_left(groups[g].columns[c].head, widths[g][c]);
      total += widths[g][c] + (c > 0 ? kGap : 0);
    }
    titles += std::string(kGap, ' ') + pad_left(groups[g].title, total);
  }
  add_line(titles, &out);
  add_line(heads, &out);
  for (std::size_t row = 0; row < groups[0].columns[0].cells.size(); ++row) {
    const std::string& name = groups[0].columns[0].cells[row];
    std::string line = margin;
    if (display_width(name) > name_width) {
      add_line(margin + name, &out);
      line += std::string(name_width, ' ');
    } else {
      line += pad_right(name, name_width);
    }
    for (std::size_t g = 1; g < groups.size(); ++g) {
      for (std::size_t c = 0; c < groups[g].columns.size(); ++c) {
        line += std::string(kGap, ' ') + pad_left(groups[g].columns[c].cells[row], widths[g][c]);
      }
    }
    add_line(line, &out);
  }
  return out;
}

std::string plain_spaces(std::string text) {
  const std::string_view space = kNoBreak;
  for (std::size_t at = 0; (at = text.find(space, at)) != std::string::npos; ++at) {
    text.replace(at, space.size(), " ");
  }
  return text;
}

std::string wrap(const std::string& text, std::size_t indent, std::size_t hanging) {
  std::istringstream words(text);
  std::string out, line(indent, ' '), word;
  std::size_t used = indent;
  bool empty = true;
  while (words >> word) {
    const std::size_t width = display_width(word);
    if (!empty && used + 1 + width > kTextWidth) {
      add_line(line, &out);
      line = std::string(hanging, ' ');
      used = hanging;
      empty = true;
    }
    if (!empty) line += ' ';
    line += plain_spaces(word);
    used += width + (empty ? 0 : 1);
    empty = false;
  }
  if (!empty) add_line(line, &out);
  return out;
}

}  // namespace tpjitter
