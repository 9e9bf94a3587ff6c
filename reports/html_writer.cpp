#include "reports/html_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ostream>

#include "reports/summary_view.h"

namespace tpjitter {
namespace {

std::string scroll(const std::string& table, const std::string& caption) {
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n{}</div>\n",
      escape_html(caption), table);
}

int hex_digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

void add_values(const Json& object, const std::string& prefix, std::string* rows) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    if (value.is_object()) {
      add_values(value, name + ".", rows);
    } else if (!value.is_null()) {
      *rows += fmt::format(
          "<tr><th scope=\"row\" class=\"name\">{}</th><td class=\"text\">{}</td></tr>\n",
          escape_html(printable(name)), escape_html(plain(value)));
    }
  }
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_table(const std::vector<TableGroup>& groups, const std::string& caption,
                       std::size_t name_columns) {
  const bool titles = std::any_of(groups.begin(), groups.end(),
                                  [](const TableGroup& g) { return !g.title.empty(); });
  std::string out = fmt::format("<table class=\"sortable\">\n<caption>{}</caption>\n<thead>\n",
                                escape_html(caption));
  if (titles) {
    out += "<tr>";
    for (const TableGroup& group : groups) {
      out += fmt::format("<th scope=\"colgroup\" class=\"group\" colspan=\"{}\">{}</th>",
                         group.columns.size(), escape_html(group.title));
    }
    out += "</tr>\n";
  }
  out += "<tr>";
  std::size_t number = 0;
  for (const TableGroup& group : groups) {
    for (const TableColumn& column : group.columns) {
      out += fmt::format("<th scope=\"col\"{}>{}</th>",
                         number++ < name_columns ? " class=\"name\"" : "",
                         escape_html(plain_spaces(column.head)));
    }
  }
  out += "</tr>\n</thead>\n<tbody>\n";
  const std::size_t rows = groups.empty() ? 0 : groups[0].columns[0].cells.size();
  for (std::size_t row = 0; row < rows; ++row) {
    out += "<tr>";
    number = 0;
    for (const TableGroup& group : groups) {
      for (const TableColumn& column : group.columns) {
        out += fmt::format("<td{}>{}</td>", number++ < name_columns ? " class=\"name\"" : "",
                           escape_html(plain_spaces(column.cells[row])));
      }
    }
    out += "</tr>\n";
  }
  return scroll(out + "</tbody>\n</table>\n", caption);
}

std::string html_records(const Json& records, const std::string& caption) {
  std::vector<TableColumn> columns;
  for (const Json& record : records) {
    if (!record.is_object()) continue;
    for (const auto& [key, value] : record.items()) {
      if (std::none_of(columns.begin(), columns.end(),
                       [&](const TableColumn& c) { return c.head == printable(key); })) {
        columns.push_back({printable(key), {}});
      }
    }
  }
  if (columns.empty()) return "";
  for (const Json& record : records) {
    if (!record.is_object()) continue;
    for (TableColumn& column : columns) {
      const bool there = record.contains(column.head) && !record[column.head].is_null();
      column.cells.push_back(there ? plain(record[column.head]) : "-");
    }
  }
  std::vector<TableGroup> groups;
  for (TableColumn& column : columns) groups.push_back({"", {std::move(column)}});
  return html_table(groups, caption);
}

std::string html_values(const Json& object, const std::string& caption) {
  std::string rows;
  if (object.is_object()) add_values(object, "", &rows);
  if (rows.empty()) return "";
  return scroll(fmt::format("<table>\n<caption>{}</caption>\n<tbody>\n{}</tbody>\n</table>\n",
                            escape_html(caption), rows),
                caption);
}

void write_paragraph(const std::string& text, std::ostream& out, const char* css) {
  if (text.empty()) return;
  out << "<p" << (css == nullptr ? "" : fmt::format(" class=\"{}\"", css)) << '>'
      << escape_html(plain_spaces(text)) << "</p>\n";
}

void write_heading(const std::string& text, std::ostream& out) {
  out << "<h3>" << escape_html(text) << "</h3>\n";
}

void write_list(const std::vector<std::string>& lines, std::ostream& out, const char* css) {
  if (lines.empty()) return;
  out << "<ul class=\"" << css << "\">\n";
  for (const std::string& line : lines)
    out << "<li>" << escape_html(plain_spaces(line)) << "</li>\n";
  out << "</ul>\n";
}

std::string csp_hash(std::string_view sha256_hex) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out = "'sha256-";
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : sha256_hex) {
    bits = bits << 4 | static_cast<std::uint32_t>(hex_digit(c));
    held += 4;
    if (held < 6) continue;
    held -= 6;
    out += kDigits[bits >> held & 63];
  }
  if (held > 0) out += kDigits[bits << (6 - held) & 63];
  return out + "='";  // 256 bits leave one place of the last four empty
}

}  // namespace tpjitter
