#include "harness/contract/scenario_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace tpjitter {
namespace {

constexpr std::int64_t kMaxContextTokens = 4'194'304;
constexpr std::int64_t kMaxBatchSize = 4096;
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
    {"step.path", "", "", &C::path, Choices{{"aten", "page_table_kernel", "glue_graph", "fused", "fused_in_graph", "fused_multi", "torch"}},
     "How the attention metadata is rebuilt: op by op, few operations and a page-table kernel, the op-by-op form in a small graph of its own, one kernel, that kernel as the graph's first node, one kernel for all phases of a speculative step whose inputs are there when it begins, or op by op with PyTorch's own operations (optional build)."},
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
     "Programmatic dependent launch of the body's kernels, but for the all-reduces."},

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

template <class Owner, class Value>
Value value_type_of(Value Owner::*);

// The alternative of FieldValue that a member holds.
template <class Member>
using ValueOf =
    std::conditional_t<std::is_same_v<decltype(value_type_of(std::declval<Member>())), int>,
                       std::int64_t, decltype(value_type_of(std::declval<Member>()))>;

template <class Member>
constexpr bool kInCase =
    std::is_member_object_pointer_v<Member>&& std::is_invocable_v<Member, const CaseConfig&>;

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

template <class Limits>
const Limits* limits_of(const ScenarioField& field) {
  return std::get_if<Limits>(&field.limits);
}

const IntegerLimits& integer_limits(const ScenarioField& field) {
  const auto* either = limits_of<IntegerOrName>(field);
  return either != nullptr ? either->integer : std::get<IntegerLimits>(field.limits);
}

const Choices* choices_of(const ScenarioField& field) {
  const auto* either = limits_of<IntegerOrName>(field);
  return either != nullptr ? &either->names : limits_of<Choices>(field);
}

std::optional<std::string> integer_problem(const IntegerLimits& limits, std::int64_t value) {
  if (value < limits.min || value > limits.max) return fmt::format("{} is out of range", value);
  if (limits.power_of_two && !std::has_single_bit(static_cast<std::uint64_t>(value))) {
    return fmt::format("{} is not a power of two", value);
  }
  if (value % limits.multiple_of != 0) {
    return fmt::format("{} is not a multiple of {}", value, limits.multiple_of);
  }
  return std::nullopt;
}

std::optional<std::string> list_problem(const IntegerLimits& limits,
                                        const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto problem = integer_problem(limits, values[i])) return problem;
    if (i > 0 && values[i] <= values[i - 1]) {
      return fmt::format("{} comes after {}", values[i], values[i - 1]);
    }
  }
  return std::nullopt;
}

std::vector<std::string> choice_names(const Choices& choices) {
  const auto end = std::find(choices.values.begin(), choices.values.end(), nullptr);
  return {choices.values.begin(), end};
}

std::optional<std::string> text_problem(const ScenarioField& field, const std::string& text) {
  if (const auto* choices = choices_of(field)) {
    const std::vector<std::string> names = choice_names(*choices);
    if (std::find(names.begin(), names.end(), text) != names.end()) return std::nullopt;
    const std::string near = nearest_word(text, names);
    if (near.empty()) return fmt::format("{} is not one of them", in_quotes(text));
    return fmt::format("{} is not one of them (did you mean \"{}\"?)", in_quotes(text), near);
  }
  if (text.find_first_not_of(" \t") == std::string::npos) return "the text is empty";
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == '\x7f'; })) {
    return "the text has a line break or a control character";
  }
  return std::nullopt;
}

}  // namespace

std::span<const ScenarioField> scenario_fields() { return kFields; }

const ScenarioField* find_scenario_field(std::string_view key) {
  const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const ScenarioField& row) { return row.key == key; });
  return field == std::end(kFields) ? nullptr : field;
}

bool field_in_case(const ScenarioField& field) {
  return std::visit([](auto member) { return kInCase<decltype(member)>; }, field.member);
}

bool field_is_axis(const ScenarioField& field) {
  return field_in_case(field) &&
         !std::holds_alternative<std::vector<std::int64_t> CaseConfig::*>(field.member);
}

const char* field_type(const ScenarioField& field) {
  return std::visit(
      [](auto member) -> const char* {
        using Value = ValueOf<decltype(member)>;
        if constexpr (std::is_same_v<Value, std::int64_t>) return "integer";
        if constexpr (std::is_same_v<Value, double>) return "number";
        if constexpr (std::is_same_v<Value, bool>) return "boolean";
        if constexpr (std::is_same_v<Value, std::string>) return "string";
        if constexpr (std::is_same_v<Value, OpOverhead>) return "integer or name";
        return "integer list";
      },
      field.member);
}

std::string field_allowed(const ScenarioField& field) {
  const std::string unit = *field.unit == '\0' ? "" : fmt::format(" {}", field.unit);
  if (const auto* limits = limits_of<IntegerLimits>(field)) {
    std::string text = fmt::format("{}..{}{}", limits->min, limits->max, unit);
    if (limits->power_of_two) text = "a power of two, " + text;
    if (limits->multiple_of > 1)
      text = fmt::format("a multiple of {}, ", limits->multiple_of) + text;
    return field_type(field) == std::string_view("integer list") ? "increasing integers, " + text
                                                                 : text;
  }
  if (const auto* limits = limits_of<NumberLimits>(field)) {
    return fmt::format("{}..{}{}", limits->min, limits->max, unit);
  }
  if (const auto* choices = limits_of<Choices>(field)) {
    return fmt::format("{}", fmt::join(choice_names(*choices), ", "));
  }
  if (const auto* either = limits_of<IntegerOrName>(field)) {
    return fmt::format("{}..{}{}, {}", either->integer.min, either->integer.max, unit,
                       fmt::join(choice_names(either->names), ", "));
  }
  return limits_of<OneLine>(field) != nullptr ? "one line of text" : "true, false";
}

std::string field_text(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using Value = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<Value, std::string>) return in_quotes(v);
        if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          return fmt::format("[{}]", fmt::join(v, ", "));
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

std::string field_default(const ScenarioField& field) {
  if (field.required) return "required";
  if (field_in_case(field)) return field_text(get_field(field, CaseConfig{}));
  const Scenario scenario;
  if (const auto* member = std::get_if<int Scenario::*>(&field.member)) {
    return field_text(std::int64_t{scenario.**member});
  }
  return field_text(scenario.*std::get<std::string Scenario::*>(field.member));
}

std::string field_label(const ScenarioField& field, const FieldValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    return fmt::format("{}{}", *flag ? "" : "no_", field.short_name);
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return limits_of<IntegerOrName>(field) != nullptr
               ? *text
               : fmt::format("{}{}", field.short_name, *text);
  }
  return fmt::format("{}{}", field.short_name, field_text(value));
}

std::optional<std::string> field_problem(const ScenarioField& field, const FieldValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    return integer_problem(integer_limits(field), *integer);
  }
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    return list_problem(std::get<IntegerLimits>(field.limits), *list);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    const auto& limits = std::get<NumberLimits>(field.limits);
    if (!std::isfinite(*number)) return fmt::format("{} is not a finite number", *number);
    if (*number < limits.min || *number > limits.max) {
      return fmt::format("{} is out of range", *number);
    }
    return std::nullopt;
  }
  if (const auto* text = std::get_if<std::string>(&value)) return text_problem(field, *text);
  return std::nullopt;
}

FieldValue get_field(const ScenarioField& field, const CaseConfig& config) {
  return std::visit(
      [&](auto member) -> FieldValue {
        if constexpr (std::is_same_v<decltype(member), OpOverhead CaseConfig::*>) {
          return std::visit([](const auto& held) { return FieldValue(held); }, config.*member);
        } else if constexpr (kInCase<decltype(member)>) {
          return config.*member;
        }
        throw std::logic_error(fmt::format("{} is no key of a case", field.key));
      },
      field.member);
}

void set_field(const ScenarioField& field, const FieldValue& value, CaseConfig& config) {
  std::visit(
      [&](auto member) {
        using Member = decltype(member);
        if constexpr (std::is_same_v<Member, OpOverhead CaseConfig::*>) {
          if (const auto* name = std::get_if<std::string>(&value)) {
            config.*member = *name;
          } else {
            config.*member = std::get<std::int64_t>(value);
          }
        } else if constexpr (kInCase<Member>) {
          config.*member = std::get<ValueOf<Member>>(value);
        }
      },
      field.member);
}

void set_field(const ScenarioField& field, const FieldValue& value, Scenario& scenario) {
  if (const auto* member = std::get_if<int Scenario::*>(&field.member)) {
    scenario.** member = static_cast<int>(std::get<std::int64_t>(value));
  } else if (const auto* text = std::get_if<std::string Scenario::*>(&field.member)) {
    scenario.** text = std::get<std::string>(value);
  }
}

ConfigError scenario_error(std::string_view place, std::string_view key, std::string_view problem,
                           std::string_view allowed) {
  const auto shortened = [](std::string_view part) {
    constexpr std::size_t kMost = 200;
    if (part.size() <= kMost) return std::string(part);
    return fmt::format("{}...", part.substr(0, kMost));
  };
  std::string text(place);
  if (!key.empty()) text += fmt::format(": key `{}`", shortened(key));
  text += fmt::format(": {}", shortened(problem));
  if (!allowed.empty()) text += fmt::format("; allowed: {}", allowed);
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return ConfigError(line);
}

std::string nearest_word(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > 64) return {};
  // More than half of a short word changed is another word.
  const std::size_t limit = std::min(std::max<std::size_t>(2, word.size() / 3), word.size() / 2);
  std::string best;
  std::size_t best_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    // Levenshtein distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replace = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replace});
      }
    }
    if (row.back() < best_distance) {
      best = candidate;
      best_distance = row.back();
    }
  }
  return best;
}

}  // namespace tpjitter
