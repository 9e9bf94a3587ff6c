// FlashInfer's form op by op and without a host sync: the same bits as the reference in every
// phase, the operations that the engine makes, and the syncs that the second form does not.
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/metadata_kv_indices_ops.h"
#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"
#include "tests/kv_indices_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using kernels::HostPlan;
using kernels::IntType;
using kernels::KvIndicesArgs;
using kernels::KvIndicesOpsArgs;
using kernels::OperationCounts;
using kernels::RecordingTensorOps;
using kernels::ReferenceTensorOps;
using kernels::TensorAllocator;
using kernels::TensorOps;
using test::KvIndicesCase;
using test::KvIndicesOutputs;

using Rebuild = int (*)(TensorOps&, DecodePhase, const KvIndicesOpsArgs&);
constexpr Rebuild kForms[] = {kernels::rebuild_kv_indices_aten, kernels::rebuild_kv_indices_device};

KvIndicesOutputs reference_outputs(const KvIndicesCase& c) {
  KvIndicesOutputs outputs = poisoned_outputs(c);
  reference_kv_indices(bind(c, outputs));
  return outputs;
}

class MetadataKvIndicesOps : public ::testing::Test {
 protected:
  KvIndicesOpsArgs args_of(const KvIndicesCase& c, std::span<const KvIndicesArgs> fills) {
    return {.fills = fills,
            .seq_lens_cpu = c.seq_lens.data(),
            .full_to_swa_len = static_cast<std::int64_t>(c.full_to_swa.size())};
  }
  void expect_refused(DecodePhase phase, const KvIndicesOpsArgs& args, const std::string& part) {
    try {
      rebuild_kv_indices_aten(ops_, phase, args);
      ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  TensorAllocator allocator_{kernels::host_block_source()};
  ReferenceTensorOps ops_{allocator_};
};

TEST_F(MetadataKvIndicesOps, BothFormsLeaveTheReferencesBitsInEveryPhase) {
  for (const KvIndicesCase& c : test::random_kv_cases()) {
    const KvIndicesOutputs expected = reference_outputs(c);
    for (const Rebuild rebuild : kForms) {
      KvIndicesOutputs outputs = poisoned_outputs(c);
      const KvIndicesArgs fill = bind(c, outputs);
      ASSERT_EQ(rebuild(ops_, phase_of(c), args_of(c, {&fill, 1})), 0);
      ASSERT_EQ(first_difference(outputs, expected), "") << c.name;
      ASSERT_EQ(allocator_.blocks_in_use(), 0);
    }
  }
}

TEST_F(MetadataKvIndicesOps, WithoutTheHostMirrorTheBitsAreTheSame) {
  for (const KvIndicesCase& c : test::random_kv_cases()) {
    if (phase_of(c) == DecodePhase::kTargetVerify) continue;  // which needs it
    if (c.scalars.batch_size > 300) continue;                 // the same code over more rows
    KvIndicesOutputs outputs = poisoned_outputs(c);
    const KvIndicesArgs fill = bind(c, outputs);
    KvIndicesOpsArgs args = args_of(c, {&fill, 1});
    args.seq_lens_cpu = nullptr;
    rebuild_kv_indices_aten(ops_, phase_of(c), args);
    ASSERT_EQ(first_difference(outputs, reference_outputs(c)), "") << c.name;
  }
}

TEST_F(MetadataKvIndicesOps, FillsTheWindowsAndTheFullWrapperInOneRebuild) {
  KvIndicesCase full = test::make_kv_case(
      {.batch_size = 9, .context = 500, .translated = true, .pool_rows = 30}, 21);
  KvIndicesCase window = full;
  full.full_to_swa.clear();
  window.scalars.sliding_window = 127;
  window.scalars.wrapper.capacity = needed_entries(window);
  for (const Rebuild rebuild : kForms) {
    KvIndicesOutputs full_outputs = poisoned_outputs(full);
    KvIndicesOutputs window_outputs = poisoned_outputs(window);
    const std::array fills = {bind(window, window_outputs), bind(full, full_outputs)};
    rebuild(ops_, DecodePhase::kNormalDecode, args_of(window, fills));
    EXPECT_EQ(first_difference(window_outputs, reference_outputs(window)), "");
    EXPECT_EQ(first_difference(full_outputs, reference_outputs(full)), "");
  }
}

TEST_F(MetadataKvIndicesOps, DraftStepsShareOneKernel) {
  const KvIndicesCase c = test::make_kv_case({.batch_size = 5, .context = 90}, 4);
  constexpr int kSteps = 3;
  for (const Rebuild rebuild : kForms) {
    std::vector<std::int32_t> indptr(kSteps * 8, 0), indices(kSteps * 600, test::kKvPoison);
    std::vector<std::int32_t> expected_indptr = indptr, expected_indices = indices;
    const auto steps = [&](std::vector<std::int32_t>& to_indptr, auto& to_indices) {
      KvIndicesOutputs none = poisoned_outputs(c);
      KvIndicesArgs first = bind(c, none);
      first.wrapper = {
          .kv_indptr = to_indptr.data(), .kv_indices = to_indices.data(), .capacity = kSteps * 600};
      std::array<KvIndicesArgs, kSteps> fills;
      draft_step_fills(first, 8, 600, fills);
      return fills;
    };
    for (const KvIndicesArgs& fill : steps(expected_indptr, expected_indices)) {
      reference_kv_indices(fill);
    }
    const std::array fills = steps(indptr, indices);
    KvIndicesOpsArgs args = args_of(c, fills);
    args.plan = HostPlan::kDevice;
    args.draft_indptr_stride = 8;
    rebuild(ops_, DecodePhase::kDraftDecode, args);
    EXPECT_EQ(indptr, expected_indptr);
    EXPECT_EQ(indices, expected_indices);
  }
}

TEST_F(MetadataKvIndicesOps, IsCutAtTheCapacityInDecodeAndRefusesItWherePyTorchRaises) {
  KvIndicesCase c = test::make_kv_case({.batch_size = 7, .context = 60, .capacity = 50}, 8);
  for (const Rebuild rebuild : kForms) {
    KvIndicesOutputs outputs = poisoned_outputs(c);
    const KvIndicesArgs fill = bind(c, outputs);
    rebuild(ops_, DecodePhase::kNormalDecode, args_of(c, {&fill, 1}));
    EXPECT_EQ(first_difference(outputs, reference_outputs(c)), "");
  }
  c.scalars.q_stride = c.scalars.seqlen_offset = 4;
  KvIndicesOutputs outputs = poisoned_outputs(c);
  const KvIndicesArgs fill = bind(c, outputs);
  expect_refused(DecodePhase::kTargetVerify, args_of(c, {&fill, 1}),
                 std::to_string(needed_entries(c)) + " entries, but kv_indices has 50");
}

TEST_F(MetadataKvIndicesOps, RefusesWhatDoesNotFitThePhase) {
  KvIndicesCase c = test::make_kv_case({.batch_size = 3, .seqlen_offset = 4, .q_stride = 4}, 2);
  KvIndicesOutputs outputs = poisoned_outputs(c);
  const KvIndicesArgs good = bind(c, outputs);
  KvIndicesOpsArgs args = args_of(c, {&good, 1});
  EXPECT_NO_THROW(rebuild_kv_indices_aten(ops_, DecodePhase::kTargetVerify, args));
  expect_refused(DecodePhase::kDraftExtendCumsum, args, "fixed query stride");
  expect_refused(DecodePhase::kDraftExtendStrided, args, "adds nothing to seq_lens");
  expect_refused(DecodePhase::kNormalDecode, args, "qo_indptr does not fit");
  args.plan = HostPlan::kDevice;
  expect_refused(DecodePhase::kTargetVerify, args, "kv_last_page_len");
  args.plan = HostPlan::kNone;
  args.seq_lens_cpu = nullptr;
  expect_refused(DecodePhase::kTargetVerify, args, "needs the host mirror");
  args = args_of(c, {&good, 1});
  const std::array three = {good, good, good};
  args.fills = three;
  expect_refused(DecodePhase::kTargetVerify, args, "one wrapper");
  KvIndicesArgs bad = good;
  bad.seqlen_offset = 3;
  args.fills = {&bad, 1};
  expect_refused(DecodePhase::kTargetVerify, args, "verify adds its query length");
  bad = good;
  bad.seq_lens = nullptr;
  expect_refused(DecodePhase::kTargetVerify, args, "not valid");
  args.fills = {};
  EXPECT_EQ(rebuild_kv_indices_aten(ops_, DecodePhase::kTargetVerify, args), 0);  // nothing to do
}

TEST_F(MetadataKvIndicesOps, MakesNoNewAllocationOnceWarm) {
  const KvIndicesCase c = test::make_kv_case(
      {.batch_size = 33, .seqlen_offset = 4, .sliding_window = 20, .q_stride = 4}, 6);
  KvIndicesOutputs outputs = poisoned_outputs(c);
  const KvIndicesArgs fill = bind(c, outputs);
  const KvIndicesOpsArgs args = args_of(c, {&fill, 1});
  rebuild_kv_indices_aten(ops_, DecodePhase::kTargetVerify, args);
  const std::int64_t after_first = allocator_.source_calls();
  for (int i = 0; i < 50; ++i) rebuild_kv_indices_aten(ops_, DecodePhase::kTargetVerify, args);
  EXPECT_EQ(allocator_.source_calls(), after_first);
}

// Sizes only: the recorder reads nothing behind the pointers.
struct Recorded {
  Recorded(DecodePhase phase, bool window, bool mirror, HostPlan plan, Rebuild rebuild) {
    KvIndicesCase c = test::make_kv_case({.batch_size = 8, .context = 600, .translated = true}, 1);
    const bool verify = phase == DecodePhase::kTargetVerify;
    if (verify) c.scalars.seqlen_offset = 4;
    if (verify || phase == DecodePhase::kDraftExtendStrided) c.scalars.q_stride = 4;
    KvIndicesOutputs outputs = poisoned_outputs(c);
    const std::vector<std::int32_t> ones(8, 1);
    KvIndicesArgs full = bind(c, outputs);
    full.full_to_swa = nullptr;
    full.wrapper.kv_last_page_len = ones.data();
    full.wrapper.capacity = 8 * 604;
    const std::array both = {with_sliding_window(full, 127, c.full_to_swa.data(), full.wrapper),
                             full};
    KvIndicesOpsArgs args = {.full_to_swa_len = 1000, .plan = plan};
    args.fills = std::span(both).subspan(window ? 0 : 1);
    if (mirror) args.seq_lens_cpu = c.seq_lens.data();
    rebuild(ops, phase, args);
  }
  std::string totals() const {
    const OperationCounts counts = ops.counts();
    return std::to_string(counts.calls) + " calls, " + std::to_string(counts.kernel_launches) +
           " launches, " + std::to_string(counts.copies) + " copies, " +
           std::to_string(counts.syncs) + " syncs";
  }
  std::string names() const {
    std::string text;
    for (const auto& operation : ops.operations()) {
      text += (text.empty() ? "" : " ") + operation.name;
      if (operation.syncs > 0) text += "!";
    }
    return text;
  }

  kernels::AddressSource addresses;
  TensorAllocator allocator{addresses.block_source()};
  RecordingTensorOps ops{allocator, 1000};  // entries of a wrapper
};

TEST(MetadataKvIndicesRecorded, DecodeIsTheEnginesSequenceAndTheWindowHidesTwoSyncs) {
  const auto aten = kernels::rebuild_kv_indices_aten;
  const Recorded full(DecodePhase::kNormalDecode, false, true, HostPlan::kMirror, aten);
  EXPECT_EQ(full.names(), "cumsum slice copy_ slice create_kv_indices");
  EXPECT_EQ(full.totals(), "5 calls, 4 launches, 0 copies, 0 syncs");
  const Recorded device(DecodePhase::kNormalDecode, false, true, HostPlan::kDevice, aten);
  EXPECT_EQ(device.names(), "cumsum slice copy_ slice create_kv_indices cpu!");
  const Recorded window(DecodePhase::kNormalDecode, true, true, HostPlan::kMirror, aten);
  EXPECT_EQ(window.names(),
            "clamp_max sub cumsum slice copy_ slice create_kv_indices select item! slice index to "
            "item! slice copy_ cumsum slice copy_ slice create_kv_indices");
  EXPECT_EQ(window.totals(), "20 calls, 13 launches, 3 copies, 2 syncs");
  const Recorded blind(DecodePhase::kNormalDecode, true, false, HostPlan::kDevice, aten);
  EXPECT_EQ(blind.totals(), "24 calls, 14 launches, 6 copies, 5 syncs");
}

TEST(MetadataKvIndicesRecorded, VerifyAndDraftExtendBuildFreshTensorsThatThePlanCopies) {
  const auto aten = kernels::rebuild_kv_indices_aten;
  const Recorded verify(DecodePhase::kTargetVerify, false, true, HostPlan::kMirror, aten);
  EXPECT_EQ(verify.names(),
            "arange zeros add cumsum slice copy_ sum item empty create_kv_indices copy_ copy_ "
            "slice copy_");
  EXPECT_EQ(verify.totals(), "14 calls, 7 launches, 3 copies, 0 syncs");
  const Recorded planned(DecodePhase::kTargetVerify, false, true, HostPlan::kDevice, aten);
  EXPECT_EQ(planned.totals(), "17 calls, 7 launches, 6 copies, 3 syncs");
  const Recorded extend(DecodePhase::kDraftExtendStrided, false, true, HostPlan::kMirror, aten);
  EXPECT_EQ(extend.totals(), "13 calls, 6 launches, 3 copies, 0 syncs");
  const Recorded blind(DecodePhase::kDraftExtendStrided, false, false, HostPlan::kMirror, aten);
  EXPECT_EQ(blind.totals(), "13 calls, 6 launches, 4 copies, 1 syncs");
}

TEST(MetadataKvIndicesRecorded, ADraftPhaseIsOneLaunchAndOneCopyToTheHost) {
  const Recorded draft(DecodePhase::kDraftDecode, false, true, HostPlan::kDevice,
                       kernels::rebuild_kv_indices_aten);
  EXPECT_EQ(draft.names(), "generate_draft_decode_kv_indices cpu!");
  EXPECT_EQ(draft.totals(), "2 calls, 1 launches, 1 copies, 1 syncs");
}

TEST(MetadataKvIndicesRecorded, TheDeviceFormNeverWaits) {
  for (const bool window : {false, true}) {
    for (const DecodePhase phase : {DecodePhase::kNormalDecode, DecodePhase::kDraftDecode,
                                    DecodePhase::kTargetVerify, DecodePhase::kDraftExtendStrided}) {
      const Recorded device(phase, window, false, HostPlan::kDevice,
                            kernels::rebuild_kv_indices_device);
      EXPECT_EQ(device.ops.counts().syncs, 0) << static_cast<int>(phase);
    }
  }
  const Recorded window(DecodePhase::kNormalDecode, true, false, HostPlan::kDevice,
                        kernels::rebuild_kv_indices_device);
  EXPECT_EQ(window.names(),
            "clamp_max sub cumsum slice copy_ create_kv_indices cumsum slice copy_ "
            "create_kv_indices");
}

}  // namespace
}  // namespace tpjitter
