// A path's operations by its form. The sizes are those of the measured runs: the batch's longest
// request shorter than the static width, and out_cache_loc shorter than its buffer.
#include "harness/list_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "harness/contract/error.h"
#include "harness/contract/metadata_paths.h"
#include "harness/contract/phase_row.h"
#include "kernels/metadata_aten.h"
#include "kernels/metadata_page_table.h"
#include "kernels/tensor_ops_recording.h"

namespace tpjitter {
namespace {

using kernels::AtenMetadataArgs;
using kernels::DecodePhase;
using kernels::IntType;
using kernels::QueryMode;
using kernels::RecordedOperation;
using kernels::RecordingTensorOps;

constexpr std::int64_t kLongestTokens = 4000;  // 63 of the 128 pages

// Sizes only: what is behind the pointers is never read, but null and not null differ.
template <typename T>
T* some_address(std::uintptr_t number) {
  return reinterpret_cast<T*>(number << 20);
}

AtenMetadataArgs recorded_args(DecodePhase phase, bool swa) {
  AtenMetadataArgs args;
  auto& m = args.metadata;
  m.batch_size = 8;
  m.page_size = 64;
  m.max_seq_pages = 128;
  m.req_to_token_stride = 8192;
  m.page_table_stride = 128;
  m.req_pool_indices = some_address<void>(1);
  m.seq_lens = some_address<void>(2);
  m.req_to_token = some_address<std::int32_t>(3);
  m.cache_seqlens = some_address<std::int32_t>(4);
  m.cu_seqlens_k = some_address<std::int32_t>(5);
  m.page_table = some_address<std::int32_t>(6);
  args.pool_rows = 10;
  if (phase == DecodePhase::kDraftDecode) m.seqlen_offset = 1;
  if (phase == DecodePhase::kTargetVerify) m.seqlen_offset = 4;
  if (phase == DecodePhase::kDraftExtendCumsum || phase == DecodePhase::kDraftExtendStrided) {
    m.seq_lens_type = IntType::kInt64;
    m.q_lens = some_address<void>(7);
    m.cu_seqlens_q = some_address<std::int32_t>(8);
    m.q_stride = 4;
    m.q_mode = phase == DecodePhase::kDraftExtendCumsum ? QueryMode::kCumsum : QueryMode::kStrided;
  }
  if (swa) {
    m.full_to_swa = some_address<std::int64_t>(9);
    m.out_cache_loc = some_address<std::int64_t>(10);
    m.swa_page_table = some_address<std::int32_t>(11);
    m.swa_out_cache_loc = some_address<std::int64_t>(12);
    m.swa_page_table_stride = 128;
    m.num_out_tokens = 8;
    m.swa_out_len = 16;
    args.full_to_swa_len = 100000;
  }
  return args;
}

// Of a form that issues tensor operations. `rebuild(ops)`.
template <class Rebuild>
std::vector<RecordedOperation> record_operations(Rebuild rebuild) {
  kernels::AddressSource addresses;
  kernels::TensorAllocator allocator(addresses.block_source());
  RecordingTensorOps ops(allocator, kLongestTokens);
  rebuild(ops);
  return ops.operations();
}

RecordedOperation one_launch(const char* name, kernels::OperationKind kind,
                             const AtenMetadataArgs& args) {
  RecordedOperation launch;
  launch.name = name;
  launch.kind = kind;
  launch.shape = {args.metadata.batch_size, args.metadata.max_seq_pages};
  launch.kernel_launches = 1;
  return launch;
}

// What the host does for a rebuild.
std::vector<RecordedOperation> record(const MetadataPath& path, DecodePhase phase, bool swa) {
  using kernels::OperationKind;
  if (path.in_graph) return {};
  const AtenMetadataArgs args = recorded_args(phase, swa);
  switch (path.form) {
    case RebuildForm::kOperations:
    case RebuildForm::kTorch:  // the same calls
      return record_operations(
          [&](RecordingTensorOps& ops) { kernels::rebuild_metadata_aten(ops, phase, args); });
    case RebuildForm::kPageTable:
      return record_operations([&](RecordingTensorOps& ops) {
        kernels::PageTableMetadataArgs page_table;
        page_table.metadata = args.metadata;
        page_table.full_to_swa_len = args.full_to_swa_len;
        kernels::rebuild_metadata_page_table(ops, phase, page_table);
      });
    case RebuildForm::kGlueGraph:
      return {one_launch("cudaGraphLaunch", OperationKind::kGraph, args)};
    case RebuildForm::kOneKernel:
      return {one_launch("fused_metadata_kernel", OperationKind::kKernel, args)};
    case RebuildForm::kMergedKernel:
      // The launch at the step's first draft pass has rebuilt it.
      if (phase == DecodePhase::kTargetVerify) return {};
      return {one_launch("fused_multi_kernel", OperationKind::kKernel, args)};
  }
  return {};
}

std::string joined(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

ConfigError none_of(const char* flag, const std::string& name, std::span<const std::string> names) {
  const std::string problem =
      name.empty() ? "is required" : fmt::format("\"{}\" is not known", name);
  return ConfigError(fmt::format("list ops: {} {}; allowed: {}", flag, problem, joined(names)));
}

const MetadataPath& find_path(const std::string& name) {
  if (const MetadataPath* path = find_metadata_path(name)) return *path;
  std::vector<std::string> names;
  for (const MetadataPath& path : kMetadataPaths) names.emplace_back(path.name);
  throw none_of("--path", name, names);
}

DecodePhase find_phase(const std::string& name) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumPhases; ++i) {
    names.emplace_back(phase_name(static_cast<Phase>(i)));
    // Both enumerations number the phases alike.
    if (names.back() == name) return static_cast<DecodePhase>(i);
  }
  throw none_of("--phase", name, names);
}
static_assert(static_cast<int>(DecodePhase::kDraftExtendStrided) ==
                  static_cast<int>(Phase::kDraftExtendStrided) &&
              static_cast<int>(DecodePhase::kTargetVerify) ==
                  static_cast<int>(Phase::kTargetVerify));

std::string shape_text(const Json& shape) {
  std::string text;
  for (const Json& size : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", size.dump());
  return "[" + text + "]";
}

}  // namespace

Json list_ops(const std::string& path, const std::string& phase, bool swa) {
  const MetadataPath& recorded = find_path(path);
  Json ops = Json::array();
  kernels::OperationCounts totals;
  for (const RecordedOperation& operation : record(recorded, find_phase(phase), swa)) {
    ops.push_back({{"name", operation.name},
                   {"kind", operation_kind_name(operation.kind)},
                   {"dtype", operation.dtype == IntType::kInt64 ? "int64" : "int32"},
                   {"shape", operation.shape},
                   {"kernel_launches", operation.kernel_launches},
                   {"copies", operation.copies},
                   {"syncs", operation.syncs}});
    ++totals.calls;
    totals.kernel_launches += operation.kernel_launches;
    totals.copies += operation.copies;
    totals.syncs += operation.syncs;
  }
  return {{"path", path},
          {"phase", phase},
          {"swa", swa},
          {"ops", std::move(ops)},
          {"totals",
           {{"calls", totals.calls},
            {"kernel_launches", totals.kernel_launches},
            {"copies", totals.copies},
            {"syncs", totals.syncs}}}};
}

int print_ops(const Json& list, bool json) {
  if (json) {
    fmt::print("{}\n", list.dump(2));
    return kExitPass;
  }
  fmt::print("{:<22} {:<7} {:<6} {:<10} {:>8} {:>7} {:>6}\n", "name", "kind", "dtype", "shape",
             "launches", "copies", "syncs");
  for (const Json& op : list.at("ops")) {
    fmt::print("{:<22} {:<7} {:<6} {:<10} {:>8} {:>7} {:>6}\n", op.at("name").get<std::string>(),
               op.at("kind").get<std::string>(), op.at("dtype").get<std::string>(),
               shape_text(op.at("shape")), op.at("kernel_launches").get<int>(),
               op.at("copies").get<int>(), op.at("syncs").get<int>());
  }
  const Json& totals = list.at("totals");
  const int calls = totals.at("calls").get<int>();
  fmt::print("{:<22} {:<7} {:<6} {:<10} {:>8} {:>7} {:>6}\n",
             fmt::format("total, {} call{}", calls, calls == 1 ? "" : "s"), "", "", "",
             totals.at("kernel_launches").get<int>(), totals.at("copies").get<int>(),
             totals.at("syncs").get<int>());
  return kExitPass;
}

}  // namespace tpjitter
