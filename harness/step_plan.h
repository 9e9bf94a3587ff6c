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
  kDraftExtend,  // the runner's own lengths, the draft tokens already counted; slots as verify
  kFrozenDraft,  // the runner's own lengths, the target's; no slots: nothing is written
};

// What a draft runner's own input buffers hold. Its seq_lens are the step's plus `counted`; padded
// rows have length 1 whatever is counted.
struct RunnerRules {
  kernels::IntType seq_lens_type = kernels::IntType::kInt64;
  std::int32_t counted = 0;        // tokens
  std::int32_t padded_accept = 0;  // accept length of a padded row
  bool stale_padded_rows = false;  // padded req_pool_indices keep what an earlier batch left there
};

struct PlannedPhase {
  Phase phase = Phase::kNormalDecode;
  kernels::DecodePhase rebuild = kernels::DecodePhase::kNormalDecode;
  PhaseInputs inputs = PhaseInputs::kDecode;
  int draft_pass = 0;    // kDraft: 0, 1, ...
  int graph = 0;         // ordinal of the graph that this phase's forward is in
  bool launches = true;  // false: the graph is launched after a later rebuild
  std::int32_t seqlen_offset = 0;
  std::int32_t query_len = 1;  // tokens a row; of a draft pass the branches
  kernels::QueryMode q_mode = kernels::QueryMode::kPreset;
  bool swa = false;
  bool draft_model = false;   // the forward is the draft model's
  std::int32_t layers = 1;    // of one of this phase's forwards
  std::int32_t forwards = 1;  // that one rebuild serves
  bool replays_hook = true;   // false: the runner never calls out_graph at replay
  bool rotates = false;       // its inputs are those of the phase before, moved on by one launch
  RunnerRules runner;         // kDraftExtend, kFrozenDraft

  bool has_own_inputs() const {
    return inputs == PhaseInputs::kDraftExtend || inputs == PhaseInputs::kFrozenDraft;
  }
  bool writes_slots() const { return inputs != PhaseInputs::kFrozenDraft; }
  std::int32_t all_layers() const { return layers * forwards; }
};

struct StepPlan {
  std::vector<PlannedPhase> phases;
  int graphs = 1;
  std::int32_t query_len = 1;  // draft tokens in speculative mode, else 1
  int draft_passes = 0;
  std::int32_t topk = 1;  // above 1: draft trees

  // Its inputs have a tree's mask, which one kernel makes.
  bool masks_tree(int phase) const {
    return topk > 1 && phases[phase].inputs == PhaseInputs::kVerify;
  }
  // Phases whose forwards are in graph `g`, in order: [first, last).
  int first_phase(int g) const;
  int last_phase(int g) const;
};

StepPlan step_plan(const CaseConfig& config);
// The captured batch sizes of a case, ascending; {batch_size} when none are given.
std::vector<std::int32_t> captured_batch_sizes(const CaseConfig& config);

// Whether the forwards themselves read what the scheduler writes: their metadata is rebuilt by
// their first kernels.
bool reads_in_forward(const CaseConfig& config);
// Phases that `fused_multi` rebuilds in one launch, in order; the launch is at the first of them. What
// draft passes and target-verify read is there when the step begins; draft-extend reads the runner's
// lengths and what verify accepted.
std::vector<int> phases_ready_at_begin(const StepPlan& plan);
// Whether the scheduler's writes have a stream of their own. Without it (post_replay) everything is
// on one stream, whose order does what an event after the replay would: no events, no cost.
bool has_schedule_stream(const CaseConfig& config);

// Parts of a speculative step, for the runners in harness/compositions. Each appended phase begins a
// graph of its own.
StepPlan empty_speculative_plan(const CaseConfig& config);
void append_draft_passes(const CaseConfig& config, StepPlan& plan);  // graphs by graph_layout
PlannedPhase verify_phase(const CaseConfig& config);
PlannedPhase draft_extend_phase(const CaseConfig& config);
void append_phase(PlannedPhase phase, StepPlan& plan);
// The EAGLE runner's: draft passes, target-verify, draft-extend.
StepPlan eagle_plan(const CaseConfig& config);

}  // namespace tpjitter
