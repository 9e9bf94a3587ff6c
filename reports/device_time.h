// Where a rank's device stamps stand on the host clock, for drawing only: no figure is made from
// it. The modelled device runs on the host clock; a GPU's clock is taken there by the run's
// calibration. Where that does not hold, the GPU is placed so that the first drawn graph of its rank
// and launch begins with its host launch, and that is said wherever it is drawn: what lies between
// the host and the GPU of one rank, or between two ranks' GPUs, is then not known.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "harness/contract/phase_row.h"
#include "reports/run_clocks.h"

namespace tpjitter {

class DeviceTime {
 public:
  explicit DeviceTime(const RunClocks& clocks) : clocks_(clocks) {}

  // Host clock minus device clock for this row; nullopt: no device stamps or nothing to place by.
  std::optional<std::int64_t> offset_ns(std::size_t rank, const PhaseRow& row);

  // Of all rows asked for so far.
  bool aligned() const { return aligned_; }
  std::int64_t bound_ns() const { return bound_ns_; }  // the largest; 0 for the modelled device

 private:
  std::optional<AlignedOffset> calibrated(std::size_t rank, const PhaseRow& row) const;

  const RunClocks& clocks_;
  std::map<std::pair<std::size_t, std::int32_t>, std::int64_t> placed_;
  bool aligned_ = true;
  std::int64_t bound_ns_ = 0;
};

}  // namespace tpjitter
