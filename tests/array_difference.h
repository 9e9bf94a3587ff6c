// Where two arrays differ, in words, for the tests that compare metadata.
#pragma once

#include <algorithm>
#include <string>

namespace tpjitter::test {

// Empty if equal, else the first index that differs with both values.
template <class Array>
std::string array_difference(const char* what, const Array& actual, const Array& expected) {
  if (actual.size() != expected.size()) return std::string(what) + ": sizes differ";
  const auto [at, other] = std::mismatch(actual.begin(), actual.end(), expected.begin());
  if (at == actual.end()) return {};
  return std::string(what) + "[" + std::to_string(at - actual.begin()) + "] is " +
         std::to_string(*at) + ", expected " + std::to_string(*other);
}

}  // namespace tpjitter::test
