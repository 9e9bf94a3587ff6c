#include <gtest/gtest.h>

#include "reports/text_table.h"

namespace tpjitter {
namespace {

TEST(ReportTable, TheUnitFollowsTheLargestValue) {
  EXPECT_STREQ(choose_unit({40, std::nullopt}).name, "us");
  EXPECT_STREQ(choose_unit({99'999'999}).name, "us");
  EXPECT_STREQ(choose_unit({100'000'000}).name, "ms");
  EXPECT_STREQ(choose_unit({5, -200'000'000'000}).name, "s");
  EXPECT_STREQ(choose_unit({INT64_MIN}).name, "s");
  EXPECT_STREQ(choose_unit({}).name, "us");
}

TEST(ReportTable, NumbersHaveTwoDecimalsBelowAHundredAndOneAbove) {
  EXPECT_EQ(format_ns(2'104), "2.10 us");
  EXPECT_EQ(format_ns(99'994), "99.99 us");
  EXPECT_EQ(format_ns(99'995), "100.0 us");
  EXPECT_EQ(format_ns(1'234'567), "1234.6 us");
  EXPECT_EQ(format_ns(-1'500), "-1.50 us");
  EXPECT_EQ(format_ns(-4), "0.00 us");  // no minus before a zero
  EXPECT_EQ(format_ns(std::nullopt), "-");
  EXPECT_EQ(format_percent(-0.001), "0%");
  EXPECT_EQ(format_percent(0.125), "13%");
}

TEST(ReportTable, NamesLineUpLeftAndNumbersRight) {
  const std::string table =
      render_table({{"", {{"case", {"a", "b\u00e4r"}}}},
                    {"wait us", {{"p50", {"1.00", "10.00"}}, {"p99", {"-", "2"}}}}},
                   0);
  EXPECT_EQ(table,
            "         wait us\n"
            "case    p50  p99\n"
            "a      1.00    -\n"
            "b\u00e4r   10.00    2\n");
}

TEST(ReportTable, ANameTooLongForTheWidthStandsOnItsOwnLine) {
  const std::string name(140, 'x');
  const std::string table = render_table({{"", {{"case", {name}}}}, {"us", {{"p50", {"7"}}}}}, 0);
  EXPECT_NE(table.find(name + "\n"), std::string::npos);
  EXPECT_EQ(table.substr(table.rfind(' ') + 1), "7\n");
}

TEST(ReportTable, WrapBreaksAtSpacesAndKeepsWordsThatAreTooLong) {
  EXPECT_EQ(wrap("a b", 2, 4), "  a b\n");
  EXPECT_EQ(wrap("", 2, 4), "");
  const std::string word(60, 'w');
  EXPECT_EQ(wrap(word + " " + word, 0, 4), word + "\n    " + word + "\n");
  EXPECT_EQ(wrap(std::string(150, 'w'), 0, 4), std::string(150, 'w') + "\n");
}

TEST(ReportTable, ControlCharactersAreNotPrinted) {
  EXPECT_EQ(printable("a\x1b[1m\n\t\x7f"), "a?[1m???");
  EXPECT_EQ(display_width("b\u00e4r"), 3u);
}

}  // namespace
}  // namespace tpjitter
