// Events of a Chrome trace (https://ui.perfetto.dev opens it): strict JSON, one event a line. Slices
// of a track must nest or follow each other, else viewers drop or misplace them silently: those that
// would overlap are left out here and counted. Times are ns after a base, so that a viewer's doubles
// hold them exactly.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

class TraceTracks {
 public:
  // Tracks of a process are numbered by the caller; a name is given once for each.
  void name_process(std::int64_t pid, const std::string& name, std::int64_t sort_index);
  void name_track(std::int64_t pid, std::int64_t tid, const std::string& name,
                  std::int64_t sort_index);
  // False if the times are no slice.
  bool add_slice(std::int64_t pid, std::int64_t tid, const std::string& name, std::int64_t begin_ns,
                 std::int64_t end_ns, Json args = nullptr);
  void add_counter(std::int64_t pid, const std::string& name, std::int64_t at_ns,
                   std::int64_t value_ns);
  // An arrow from slice to slice by way of others, each at a time within its slice.
  struct FlowPoint {
    std::int64_t pid, tid, at_ns;
  };
  void add_flow(const std::string& name, const std::vector<FlowPoint>& points);

  std::uint64_t refused() const { return refused_; }  // slices that end before they begin

  // `other`: more members of the document. Writes how many slices were left out into it.
  void write(Json other, std::ostream& out);

 private:
  struct Slice {
    std::int64_t pid, tid, begin_ns, end_ns;
    std::string name;
    Json args;
    std::size_t order;  // as added
  };
  struct Counter {
    std::int64_t pid, at_ns, value_ns;
    std::string name;
  };
  struct Flow {
    std::string name;
    std::vector<FlowPoint> points;
  };
  void keep_nested();
  bool in_a_slice(const FlowPoint& point) const;

  std::vector<std::string> names_;
  std::vector<Slice> slices_;
  std::vector<Counter> counters_;
  std::vector<Flow> flows_;
  std::uint64_t refused_ = 0, overlapping_ = 0;
};

}  // namespace tpjitter
