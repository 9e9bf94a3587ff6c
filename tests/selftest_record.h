// Records of a selftest with known truth, and with the ways in which a recorder could lie.
#pragma once

#include <cstdint>

#include "reports/run_reader.h"
#include "tests/record_generator.h"

namespace tpjitter {

enum class RecordLie {
  kNone,
  kDeviceStampsSwapped,  // ranks 0 and 1 have each other's device stamps
  kRowsSwapped,          // and each other's rows altogether
  kWaitsLonger,          // every wait is written down a tenth longer
  kDelayLost,            // now and then a delay does not happen, its row says that it does
  kDelayNotRecorded,     // it happens, and the row says nothing of it
  kDelayElsewhere,       // it stands at the other place of the host, or before the gate
  kDelayShared,          // every rank is delayed
  kOwnShifted,           // rank 1's own arrival is written down 2 ms early, every ninth delay
};

struct SelftestRecord {
  std::string backend = "host";
  int world_size = 2;
  int cpus = 2;
  int delays = 210;
  std::int64_t natural_ns = 3'000;  // each host stage takes up to this longer, by rank and step
  // With a delay, every eleventh step: the GPU of every rank but the victim starts that much later,
  // which no stamp of the host shows.
  std::int64_t slow_start_ns = 0;
  bool clocks = false;  // of the GPUs, calibrated: for two ranks
  RecordLie lie = RecordLie::kNone;
  std::uint64_t seed = 1;
};

GeneratedRun generate_selftest(const SelftestRecord& truth);

}  // namespace tpjitter
