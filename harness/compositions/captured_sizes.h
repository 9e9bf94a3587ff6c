// What a leaf keeps for each phase and captured batch size, as engines do in a dictionary by batch
// size. A replay of a size that was never captured is an error that names it: an engine's wrapper
// whose capture took the replay path fails just so.
#pragma once

#include <deque>
#include <string>

#include "harness/compositions/metadata_backend.h"
#include "harness/contract/error.h"

namespace tpjitter {

template <class Bound>
class CapturedSizes {
 public:
  // Makes the entry or finds it: capture may come twice.
  Bound& bind(const BatchView& view) {
    for (Entry& entry : entries_) {
      if (entry.is(view)) return entry.bound;
    }
    entries_.push_back({view, {}});
    return entries_.back().bound;
  }

  // Allocates nothing but for the error.
  Bound& find(const BatchView& view) {
    for (Entry& entry : entries_) {
      if (entry.is(view)) return entry.bound;
    }
    std::string captured;
    for (const Entry& entry : entries_) {
      if (entry.view.phase != view.phase) continue;
      captured += (captured.empty() ? "" : ", ") + std::to_string(entry.view.batch_size);
    }
    throw RunError("phase " + std::to_string(view.phase) +
                   ": no metadata was captured for a batch of " + std::to_string(view.batch_size) +
                   " rows from row " + std::to_string(view.first_row) +
                   "; captured: " + (captured.empty() ? "none" : captured));
  }

 private:
  struct Entry {
    BatchView view;
    Bound bound;
    bool is(const BatchView& other) const {
      return view.phase == other.phase && view.first_row == other.first_row &&
             view.batch_size == other.batch_size;
    }
  };
  std::deque<Entry> entries_;  // addresses stay
};

}  // namespace tpjitter
