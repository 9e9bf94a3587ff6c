// What a step of a case consists of: its metadata rebuilds in the engine's order, and which of them
// share a graph launch. One table for both backends, the record and the checker.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/contract/phase_row.h"
#include "harness/contract/scenario.h"
#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"

namespace tpjitter {

// Which lengths and locations a rebuild reads.
enum class PhaseInputs {
  kDecode,       // seq_lens int32; out_cache_loc of the token being decoded
  kDraft,        // seq_lens int32; draft_cache_loc of its draft pass
  kVerify,       // seq_lens int32; out_cache_loc of all draft tokens
  kDraftExtend,  // seq_lens int64, the draft tokens already counted; out_cache_loc as verify
};

struct PlannedPhase {
  Phase phase = Phase::kNormalDecode;
  kernels::DecodePhase rebuild = kernels::DecodePhase::kNormalDecode;
  PhaseInputs inputs = PhaseInputs::kDecode;
  int draft_pass = 0;    // kDraft: 0, 1, ...
  int graph = 0;         // ordinal of the graph that this phase's forward is in
  bool launches = true;  // false: the graph is launched after a later rebuild
  std::int32_t seqlen_offset = 0;
  std::int32_t query_len = 1;  // tokens a row
  kernels::QueryMode q_mode = kernels::QueryMode::kPreset;
  bool swa = false;
  std::int32_t layers = 1;  // of this phase's forward
};

struct StepPlan {
  std::vector<PlannedPhase> phases;
  int graphs = 1;
  std::int32_t query_len = 1;  // draft tokens in speculative mode, else 1
  int draft_passes = 0;

  // Phases whose forwards are in graph `g`, in order: [first, last).
  int first_phase(int g) const;
  int last_phase(int g) const;
};

StepPlan step_plan(const CaseConfig& config);

}  // namespace tpjitter
