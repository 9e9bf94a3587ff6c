// One row of rank<K>.phases.npy: one metadata rebuild of one decode step on one rank.
// The struct is the file format: fixed layout, little-endian, integer nanoseconds. A new field is
// one member here and one line in kPhaseRowFields (phase_row.cpp); reports/RECORD.md explains each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tpjitter {

// Serving phases, in the order a speculative step visits them (SERVING: draft, verify, extend).
enum class Phase : std::int32_t {
  kNormalDecode = 0,
  kDraftDecode = 1,
  kTargetVerify = 2,
  kDraftExtendCumsum = 3,
  kDraftExtendStrided = 4,
};
inline constexpr int kNumPhases = 5;
const char* phase_name(Phase phase);  // "normal_decode", ...

// PhaseRow::flags
enum PhaseFlag : std::uint32_t {
  kFlagNoLaunch = 1u << 0,          // this rebuild shares the next row's graph launch
  kFlagFirstAfterWarmup = 1u << 1,  // first replay after warm-up, graph upload or calibration
  // first step after the block barrier: no step_ns, out of percentiles
  kFlagFirstOfBlock = 1u << 2,
  kFlagWaited = 1u << 3,          // the first all-reduce really polled for a late flag
  kFlagModelledDevice = 1u << 4,  // gpu_* and first_all_reduce_* come from the modelled device
  kFlagNoDeviceStamps = 1u << 5,  // device stamps of this row were lost (rank died) or not taken
  kFlagBracketed = 1u << 6,       // all-reduce stamps bracket the collective (nccl): no own wait
  kFlagChecksumFailed = 1u << 7,  // the body's checksum differed from the expected one
};

// All times: ns. Host fields: CLOCK_MONOTONIC_RAW. gpu_* and *_own/_seen/_end fields: the rank's
// own GPU globaltimer (host backend: the modelled device, on CLOCK_MONOTONIC_RAW). 0 = not taken.
struct PhaseRow {
  std::int64_t sequence;    // 1 + row number on this rank in this launch; 0 = never written
  std::int32_t launch;      // process launch, from 0
  std::int32_t case_index;  // index into run.json cases[]
  std::int32_t repetition;  // from 0
  std::int32_t step;        // timed step within the repetition, from 0
  std::int32_t phase;       // enum Phase
  std::int32_t graph;       // ordinal of the graph launch within the step
  std::uint32_t flags;      // PhaseFlag bits
  std::int32_t first_all_reduce_last_peer;  // rank whose flag was seen last; -1 = none
  std::int64_t coupling_begin_ns;           // host begins to wait for the previous step's accept
  std::int64_t accept_seen_ns;              // host has seen it: the step begins
  std::int64_t inputs_begin_ns;
  std::int64_t inputs_end_ns;
  std::int64_t dispatch_begin_ns;
  std::int64_t dispatch_end_ns;
  std::int64_t launch_begin_ns;  // entry into cudaGraphLaunch
  std::int64_t launch_end_ns;
  std::int64_t gpu_begin_ns;                   // first node of the graph
  std::int64_t gpu_end_ns;                     // last node of the graph
  std::int64_t first_all_reduce_own_ns;        // just before this rank's release
  std::int64_t first_all_reduce_last_seen_ns;  // just after the acquire of the latest peer's flag
  std::int64_t first_all_reduce_end_ns;        // reduction done
  std::int64_t all_reduce_wait_sum_ns;         // over every all-reduce of the graph
  std::int64_t all_reduce_wait_max_ns;
  std::int64_t injected_ns;  // delay asked for in this row; 0 = none
  std::int32_t all_reduce_count;
  std::int32_t cpu;                         // CPU the timed thread was on at accept
  std::int32_t context_switches_voluntary;  // during the step so far, this thread
  std::int32_t context_switches_involuntary;
  std::int32_t faults_minor;
  std::int32_t faults_major;
};
static_assert(sizeof(PhaseRow) % 8 == 0);

// A field of the NumPy structured dtype.
struct NpyField {
  const char* name;  // unit is part of the name
  const char* type;  // NumPy type string, "<i8", "<i4", "<u4"
  std::size_t offset;
};
std::span<const NpyField> phase_row_fields();

}  // namespace tpjitter
