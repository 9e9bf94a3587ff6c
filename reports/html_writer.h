// Pieces of HTML. Everything from a record goes through escape_html: names may hold markup.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/text_table.h"

namespace tpjitter {

std::string escape_html(std::string_view text);

// A table that the page's script can sort. `name_columns`: so many of its first columns hold text.
std::string html_table(const std::vector<TableGroup>& groups, const std::string& caption,
                       std::size_t name_columns = 1);

// Objects as rows, their keys as columns; plain values only, nested ones as JSON.
std::string html_records(const Json& records, const std::string& caption);
// An object as rows of name and value, nested names joined by a dot. Empty for an empty object.
std::string html_values(const Json& object, const std::string& caption);

void write_paragraph(const std::string& text, std::ostream& out, const char* css = nullptr);
void write_heading(const std::string& text, std::ostream& out);
void write_list(const std::vector<std::string>& lines, std::ostream& out, const char* css = "note");

// 64 hex digits as a source of a content security policy: "'sha256-...='".
std::string csp_hash(std::string_view sha256_hex);

}  // namespace tpjitter
