// Style sheet and scripts of the page, embedded at build time by reports/html/embed.cmake.
#pragma once

#include <string_view>

namespace tpjitter {

struct HtmlAsset {
  std::string_view text;
  std::string_view sha256;  // of text, 64 hex digits
};
extern const HtmlAsset kPageCss, kPageJs;
extern const HtmlAsset kChartJs;  // empty text where the build had no Chart.js

}  // namespace tpjitter
