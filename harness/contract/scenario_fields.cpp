// The table, and nothing else: a new key is one row here and one member in scenario.h.
#include "harness/contract/scenario_fields.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

#include "harness/contract/metadata_paths.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kMaxContextTokens = 4'194'304;
constexpr std::int64_t kMaxBatchSize = 4096;

constexpr Choices path_names() {
  Choices names{};
  for (std::size_t i = 0; i < std::size(kMetadataPaths); ++i) {
    names.values[i] = kMetadataPaths[i].name;
  }
  return names;
}
static_assert(std::size(kMetadataPaths) < std::tuple_size_v<decltype(Choices::values)>);

using C = CaseConfig;
using S = Scenario;

// clang-format off
const ScenarioField kFields[] = {
    {"summary", "", "", &S::summary, OneLine{},
     "What the scenario stands for.", true},
    {"source", "", "", &S::source, OneLine{},
     "Where the sizes come from.", true},
    {"world_size", "", "ranks", &S::world_size, IntegerLimits{1, kMaxWorldSize},
     "Rank processes, one GPU each."},

    {"step.mode", "", "", &C::mode, Choices{{"decode", "speculative"}},
     "What a step does: `decode` is one rebuild and one graph launch; `speculative` is draft passes, target-verify and draft-extend."},
    {"step.path", "", "", &C::path, path_names(),
     "How the attention metadata is rebuilt; `tpjitter list paths` explains each."},
    {"step.composition", "", "", &C::composition, Choices{{"single", "pattern_b", "hybrid", "hybrid_linear", "two_batch", "multi_layer", "multi_layer_one_graph", "frozen_kv", "tree"}},
     "Which attention backends and speculative runner rebuild the metadata; `tpjitter list compositions` explains each."},
    {"step.execution", "", "", &C::execution, Choices{{"graph", "eager"}},
     "Forwards replayed from captured graphs, or launched kernel by kernel; then `fused_in_graph` has its kernel in the launch stage."},
    {"step.read_done", "read_done_", "", &C::read_done, Choices{{"post_replay", "pre_replay", "in_replay"}},
     "Where a step's reads of the scheduler's tables end: after its last replay, in stream order and without an event; or at an event before or inside that replay, for which the scheduler's writes of the next step wait on a stream of their own."},
    {"step.draft_steps", "steps_", "", &C::draft_steps, IntegerLimits{2, 8},
     "Speculative steps of the engine: one draft pass fewer, each with its own rebuild."},
    {"step.topk", "topk", "", &C::topk, IntegerLimits{1, 8},
     "Branches of the draft tree that each draft step keeps; more than one with step.composition = \"tree\" only."},
    {"step.draft_tokens", "draft", "tokens", &C::draft_tokens, IntegerLimits{4, 16},
     "Draft tokens of a request that target-verify and draft-extend take."},
    {"step.draft_swa", "draft_swa", "", &C::draft_swa, {},
     "Sliding-window attention in the draft model too."},
    {"step.draft_extend", "extend_", "", &C::draft_extend, Choices{{"strided", "cumsum"}},
     "How draft-extend's cu_seqlens_q is made: a static stride, or prefix sums of the accepted lengths."},
    {"step.graph_layout", "", "", &C::graph_layout, Choices{{"merged", "per_pass"}},
     "All draft passes in one graph, or a graph each."},
    {"step.loop", "", "", &C::loop, Choices{{"coupled", "run_ahead"}},
     "`coupled`: the host waits for the previous step's result before it starts the next; `run_ahead`: for an earlier one."},
    {"step.run_ahead_depth", "ahead", "steps", &C::run_ahead_depth, IntegerLimits{1, 16},
     "Steps that the host is ahead of the results it has seen, with loop = \"run_ahead\"."},
    {"step.coupling", "coupling_", "", &C::coupling, Choices{{"own", "rank0"}},
     "Who waits for the step's result: every rank for its `own`, or `rank0`, which tells the others."},
    {"step.coupling_wait", "", "", &C::coupling_wait, Choices{{"d2h_event", "mapped_flag"}},
     "How the host sees that result: an event after a copy, as engines do, or a flag in mapped memory."},
    {"step.seq_lens_sync", "sync", "", &C::seq_lens_sync, {},
     "The legacy copy of seq_lens to the host, with a wait, before each step's first rebuild."},
    {"step.op_overhead_ns", "op_ns", "ns", &C::op_overhead_ns, IntegerOrName{{0, 1'000'000}, {{"libtorch", "python"}}},
     "Host time of the dispatcher calls of `aten` and `page_table_kernel`: ns added to each, or a profile, of which each call's whole time is drawn: PyTorch's own, from C++ or from Python, measured by `scripts/calibrate_dispatch.py`. Skew that comes from it is modelled."},
    {"step.page_columns", "columns_", "", &C::page_columns, Choices{{"all", "live"}},
     "Page-table columns the fused kernel writes: the static width, or those in use."},

    {"shape.swa", "swa", "", &C::swa, {},
     "Sliding-window attention: a second page table and out_cache_loc."},
    {"shape.batch_size", "bs", "requests", &C::batch_size, IntegerLimits{1, kMaxBatchSize},
     "Requests decoded together."},
    {"shape.capture_batch_sizes", "", "requests", &C::capture_batch_sizes, IntegerLimits{1, kMaxBatchSize},
     "Batch sizes that graphs are captured for, increasing; a batch is padded to the next one. Left out: batch_size alone."},
    {"shape.context_tokens", "ctx", "tokens", &C::context_tokens, IntegerLimits{1, kMaxContextTokens},
     "Longest prefix that a request joins with; the shortest is a quarter of it."},
    {"shape.max_context_tokens", "max_ctx", "tokens", &C::max_context_tokens, IntegerLimits{0, kMaxContextTokens},
     "Context limit of the engine, which gives page tables their static width. 0: context_tokens + 1024."},
    {"shape.page_size", "page", "tokens", &C::page_size, IntegerLimits{1, 4096, 1, true},
     "Tokens of a KV-cache page, at most context_tokens."},
    {"shape.hidden_size", "hidden", "elements", &C::hidden_size, IntegerLimits{8, 65'536, 8},
     "Width of the model: an all-reduce carries batch_size * hidden_size * 2 bytes."},
    {"shape.layers", "layers", "layers", &C::layers, IntegerLimits{1, 1024},
     "Decoder layers, two all-reduces each."},
    {"shape.draft_layers", "draft_layers", "layers", &C::draft_layers, IntegerLimits{1, 64},
     "Layers of the draft model, in speculative mode."},

    {"body.layer_us", "layer_us", "us", &C::layer_us, NumberLimits{0, 100'000},
     "GPU time of a layer's load kernel."},
    {"body.nodes_per_layer", "nodes", "nodes", &C::nodes_per_layer, IntegerLimits{4, 256},
     "Graph nodes of a layer: attention, load, two all-reduces, and small kernels for the rest."},
    {"body.all_reduce", "", "", &C::all_reduce, Choices{{"one_shot_pull", "one_shot_push", "two_shot", "auto", "nccl"}},
     "All-reduce kernel of the body. `auto`: `one_shot_push`, from a size threshold on `two_shot`, as engines choose. The model of the host backend does not tell our kernels apart."},
    {"body.fills", "fills_", "", &C::fills, Choices{{"persistent", "baked"}},
     "Counters and scales of the full-attention layers: `persistent` buffers, set up once, or three fill kernels a layer `baked` into every graph."},
    {"body.pdl", "pdl", "", &C::pdl, {},
     "Programmatic dependent launch of the body's kernels and of our all-reduces, as engines chain theirs. The floor of their flight is measured without it."},

    {"inject.where", "inject_", "", &C::inject_where, Choices{{"none", "before_dispatch", "before_launch", "gpu"}},
     "Where the victim is delayed, to test that the report finds it: its host before a step's first rebuild or first launch, or its GPU behind a gate where all ranks have met, as the first node of the step's first graph."},
    {"inject.pattern", "", "", &C::inject_pattern, Choices{{"fixed", "rotating", "random"}},
     "Which rank is delayed: always `inject.victim`, all ranks in turn from that one on, or one drawn anew each time."},
    {"inject.victim", "victim", "", &C::inject_victim, IntegerLimits{0, kMaxWorldSize - 1},
     "Rank that is delayed, below world_size."},
    {"inject.delay_us", "delay_us", "us", &C::inject_delay_us, NumberLimits{0, 1'000'000},
     "Length of each delay."},
    {"inject.every_steps", "every", "steps", &C::inject_every_steps, IntegerLimits{1, 1'000'000},
     "Every how many steps one is delayed."},
    {"inject.seed", "seed", "", &C::inject_seed, IntegerLimits{0, std::numeric_limits<std::int64_t>::max()},
     "Seed of everything drawn at random in a case."},

    {"noise.kind", "noise_", "", &C::noise_kind, Choices{{"none", "busy_threads", "memory_bandwidth"}},
     "What else the machine does meanwhile: busy threads, or threads that load its memory bandwidth."},
    {"noise.threads", "threads", "threads", &C::noise_threads, IntegerLimits{1, 1024},
     "Threads of the noise, in all."},

    {"sampling.warmup_steps", "warmup", "steps", &C::warmup_steps, IntegerLimits{0, 1'000'000},
     "Steps before the first timed one of each repetition."},
    {"sampling.steps", "steps", "steps", &C::steps, IntegerLimits{1, 10'000'000},
     "Timed steps of a repetition."},
    {"sampling.block_steps", "block", "steps", &C::block_steps, IntegerLimits{1, 10'000},
     "Steps between two drains of the device buffers."},
    {"sampling.repetitions", "reps", "", &C::repetitions, IntegerLimits{1, 10'000},
     "Repetitions of each case in a launch, in random order with the other cases."},
    {"sampling.launches", "", "", &S::launches, IntegerLimits{1, 1000},
     "Times that all rank processes are started anew."},
    {"sampling.record.all_reduces", "", "", &S::record_all_reduces, Choices{{"first"}},
     "All-reduces of a graph that get stamps of their own; of the others count, sum and maximum are kept."},
};
// clang-format on

}  // namespace

std::span<const ScenarioField> scenario_fields() { return kFields; }

const ScenarioField* find_scenario_field(std::string_view key) {
  const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const ScenarioField& row) { return row.key == key; });
  return field == std::end(kFields) ? nullptr : field;
}

}  // namespace tpjitter
