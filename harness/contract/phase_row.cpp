#include "harness/contract/phase_row.h"

#include <array>

namespace tpjitter {

const char* phase_name(Phase phase) {
  constexpr std::array<const char*, kNumPhases> kNames = {"normal_decode", "draft_decode",
                                                          "target_verify", "draft_extend_cumsum",
                                                          "draft_extend_strided"};
  const auto i = static_cast<std::size_t>(phase);
  return i < kNames.size() ? kNames[i] : "unknown_phase";
}

#define TPJITTER_FIELD(name, type) \
  NpyField { #name, type, offsetof(PhaseRow, name) }
std::span<const NpyField> phase_row_fields() {
  static constexpr NpyField kFields[] = {
      TPJITTER_FIELD(sequence, "<i8"),
      TPJITTER_FIELD(launch, "<i4"),
      TPJITTER_FIELD(case_index, "<i4"),
      TPJITTER_FIELD(repetition, "<i4"),
      TPJITTER_FIELD(step, "<i4"),
      TPJITTER_FIELD(phase, "<i4"),
      TPJITTER_FIELD(graph, "<i4"),
      TPJITTER_FIELD(flags, "<u4"),
      TPJITTER_FIELD(first_all_reduce_last_peer, "<i4"),
      TPJITTER_FIELD(coupling_begin_ns, "<i8"),
      TPJITTER_FIELD(accept_seen_ns, "<i8"),
      TPJITTER_FIELD(inputs_begin_ns, "<i8"),
      TPJITTER_FIELD(inputs_end_ns, "<i8"),
      TPJITTER_FIELD(dispatch_begin_ns, "<i8"),
      TPJITTER_FIELD(dispatch_end_ns, "<i8"),
      TPJITTER_FIELD(launch_begin_ns, "<i8"),
      TPJITTER_FIELD(launch_end_ns, "<i8"),
      TPJITTER_FIELD(gpu_begin_ns, "<i8"),
      TPJITTER_FIELD(gpu_end_ns, "<i8"),
      TPJITTER_FIELD(first_all_reduce_own_ns, "<i8"),
      TPJITTER_FIELD(first_all_reduce_last_seen_ns, "<i8"),
      TPJITTER_FIELD(first_all_reduce_end_ns, "<i8"),
      TPJITTER_FIELD(all_reduce_wait_sum_ns, "<i8"),
      TPJITTER_FIELD(all_reduce_wait_max_ns, "<i8"),
      TPJITTER_FIELD(injected_ns, "<i8"),
      TPJITTER_FIELD(all_reduce_count, "<i4"),
      TPJITTER_FIELD(cpu, "<i4"),
      TPJITTER_FIELD(context_switches_voluntary, "<i4"),
      TPJITTER_FIELD(context_switches_involuntary, "<i4"),
      TPJITTER_FIELD(faults_minor, "<i4"),
      TPJITTER_FIELD(faults_major, "<i4"),
  };
  return kFields;
}
#undef TPJITTER_FIELD

}  // namespace tpjitter
