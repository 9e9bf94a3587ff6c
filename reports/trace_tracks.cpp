#include "reports/trace_tracks.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <tuple>

#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kLargestNs = std::int64_t{1} << 53;  // a double holds it

std::string json_string(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Microseconds, exact.
std::string us(std::int64_t ns) {
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", (ns < 0 ? -ns : ns) / 1000,
                     (ns < 0 ? -ns : ns) % 1000);
}

}  // namespace

void TraceTracks::name_process(std::int64_t pid, const std::string& name, std::int64_t sort_index) {
  names_.push_back(
      fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", pid,
                  json_string(name)));
  names_.push_back(
      fmt::format(R"({{"ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}}}})",
                  pid, sort_index));
}

void TraceTracks::name_track(std::int64_t pid, std::int64_t tid, const std::string& name,
                             std::int64_t sort_index) {
  names_.push_back(
      fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                  pid, tid, json_string(name)));
  names_.push_back(fmt::format(
      R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
      pid, tid, sort_index));
}

bool TraceTracks::add_slice(std::int64_t pid, std::int64_t tid, const std::string& name,
                            std::int64_t begin_ns, std::int64_t end_ns, Json args) {
  if (end_ns < begin_ns) {
    ++refused_;
    return false;
  }
  slices_.push_back({pid, tid, begin_ns, end_ns, name, std::move(args), slices_.size()});
  return true;
}

void TraceTracks::add_counter(std::int64_t pid, const std::string& name, std::int64_t at_ns,
                              std::int64_t value_ns) {
  counters_.push_back({pid, at_ns, value_ns, name});
}

void TraceTracks::add_flow(const std::string& name, const std::vector<FlowPoint>& points) {
  if (points.size() > 1) flows_.push_back({name, points});
}

// In time order; of two that begin together the longer is the outer one.
void TraceTracks::keep_nested() {
  std::sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
    if (a.pid != b.pid) return a.pid < b.pid;
    if (a.tid != b.tid) return a.tid < b.tid;
    if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
    if (a.end_ns != b.end_ns) return a.end_ns > b.end_ns;
    return a.order < b.order;
  });
  std::vector<Slice> kept;
  std::vector<std::int64_t> open;  // ends of the slices around the current one
  for (Slice& slice : slices_) {
    if (kept.empty() || kept.back().pid != slice.pid || kept.back().tid != slice.tid) open.clear();
    while (!open.empty() && open.back() <= slice.begin_ns) open.pop_back();
    if (!open.empty() && slice.end_ns > open.back()) {
      ++overlapping_;
      continue;
    }
    open.push_back(slice.end_ns);
    kept.push_back(std::move(slice));
  }
  slices_ = std::move(kept);
}

// Of slices that nest the last that begins no later is the innermost.
bool TraceTracks::in_a_slice(const FlowPoint& point) const {
  const auto after = std::upper_bound(
      slices_.begin(), slices_.end(), point, [](const FlowPoint& p, const Slice& s) {
        return std::tuple(p.pid, p.tid, p.at_ns) < std::tuple(s.pid, s.tid, s.begin_ns);
      });
  if (after == slices_.begin()) return false;
  const Slice& slice = *std::prev(after);
  return slice.pid == point.pid && slice.tid == point.tid && slice.end_ns >= point.at_ns;
}

void TraceTracks::write(Json other, std::ostream& out) {
  keep_nested();
  std::int64_t base = INT64_MAX;
  for (const Slice& slice : slices_) base = std::min(base, slice.begin_ns);
  for (const Counter& counter : counters_) base = std::min(base, counter.at_ns);
  if (base == INT64_MAX) base = 0;
  std::uint64_t too_far = 0;
  const auto at = [&](std::int64_t ns) { return difference_ns(ns, base); };
  const auto far = [&](std::int64_t ns) { return at(ns) < 0 || at(ns) > kLargestNs; };

  out << "{\"displayTimeUnit\":\"ns\",\n\"traceEvents\":[";
  const char* separator = "\n";
  const auto event = [&](const std::string& text) {
    out << separator << text;
    separator = ",\n";
  };
  for (const std::string& name : names_) event(name);
  for (const Slice& slice : slices_) {
    if (far(slice.end_ns)) {
      ++too_far;
      continue;
    }
    event(fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"name":{},"cat":"tpjitter","ts":{},"dur":{}{}}})",
        slice.pid, slice.tid, json_string(slice.name), us(at(slice.begin_ns)),
        us(difference_ns(slice.end_ns, slice.begin_ns)),
        slice.args.is_null() ? "" : ",\"args\":" + slice.args.dump()));
  }
  for (const Counter& counter : counters_) {
    if (far(counter.at_ns)) continue;
    event(fmt::format(R"({{"ph":"C","pid":{},"name":{},"ts":{},"args":{{"us":{}}}}})", counter.pid,
                      json_string(counter.name), us(at(counter.at_ns)), us(counter.value_ns)));
  }
  std::int64_t id = 0;
  for (const Flow& flow : flows_) {
    // An arrow to a slice that was left out would point at another one.
    if (!std::all_of(flow.points.begin(), flow.points.end(), [&](const FlowPoint& point) {
          return !far(point.at_ns) && in_a_slice(point);
        })) {
      continue;
    }
    ++id;
    for (std::size_t i = 0; i < flow.points.size(); ++i) {
      const FlowPoint& point = flow.points[i];
      const bool last = i + 1 == flow.points.size();
      event(
          fmt::format(R"({{"ph":"{}","pid":{},"tid":{},"name":{},"cat":"flow","id":{},"ts":{}{}}})",
                      i == 0 ? 's'
                      : last ? 'f'
                             : 't',
                      point.pid, point.tid, json_string(flow.name), id, us(at(point.at_ns)),
                      last ? ",\"bp\":\"e\"" : ""));
    }
  }
  other["base_ns"] = base;
  other["slices_left_out"] = Json{{"end_before_begin", refused_},
                                  {"overlapping", overlapping_},
                                  {"too_far_from_the_base", too_far}};
  out << "\n],\n\"otherData\":" << other.dump() << "}\n";
}

}  // namespace tpjitter
