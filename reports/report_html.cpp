// One page that opens offline: sections of tables, the data behind them, and a script that draws.
// Its content security policy forbids every request and any script or style but the embedded ones,
// by their hashes, so that a name in a record can do nothing whatever it holds.
#include <fmt/format.h>

#include <ostream>

#include "reports/html_assets.h"
#include "reports/html_charts.h"
#include "reports/html_sections.h"
#include "reports/html_writer.h"
#include "reports/report.h"

namespace tpjitter {

void write_html(std::span<const AnalysedRun> runs, const ReportOptions&, std::ostream& out) {
  std::string title = "tpjitter:";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    title += (i == 0 ? " " : ", ") + run_label(runs, i);
  }
  std::string scripts = csp_hash(kPageJs.sha256);
  if (!kChartJs.text.empty()) scripts += ' ' + csp_hash(kChartJs.sha256);
  out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << fmt::format(
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
             "{}; script-src {}; base-uri 'none'; form-action 'none'\">\n",
             csp_hash(kPageCss.sha256), scripts)
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>"
      << escape_html(title) << "</title>\n<style>" << kPageCss.text
      << "</style>\n</head>\n<body>\n<header><h1>" << escape_html(title)
      << "</h1></header>\n<nav aria-label=\"Sections\"><ul>\n";
  for (const HtmlSection& section : html_sections()) {
    out << fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section.key, section.title);
  }
  out << "</ul></nav>\n<noscript><p class=\"note\">Without scripts there are no curves, no time "
         "line "
         "and no sorting; the tables are complete.</p></noscript>\n<main>\n";
  for (const HtmlSection& section : html_sections()) {
    out << fmt::format(
        "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 id=\"{0}-title\">{1}"
        "</h2>\n<p class=\"question\">{2}</p>\n",
        section.key, section.title, section.question);
    section.write(runs, out);
    out << "</section>\n";
  }
  out << "</main>\n<script type=\"application/json\" id=\"data\">" << page_data(runs)
      << "</script>\n";
  if (!kChartJs.text.empty()) out << "<script>" << kChartJs.text << "</script>\n";
  out << "<script>" << kPageJs.text << "</script>\n</body>\n</html>\n";
}

}  // namespace tpjitter
