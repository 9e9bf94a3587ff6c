// Host times of single `aten` rebuilds with a dispatch profile, on a GPU: the other side of
// scripts/calibrate_dispatch.py, which takes turns with it in one run. Reads commands
//   PHASE SWA PROFILE COUNT
// from stdin (PROFILE a name given by --profile NAME=FILE, or - for none) and answers each by one
// line, a JSON list of ns. The GPU is idle before each rebuild.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "harness/clock.h"
#include "harness/contract/error.h"
#include "harness/contract/phase_row.h"
#include "harness/cuda/costed_tensor_ops.h"
#include "harness/microbench/bench_metadata_inputs.h"
#include "kernels/metadata_aten.h"

namespace tpjitter::bench {
namespace {

// The calibration's shape; scripts/calibrate_dispatch.py uses the same for PyTorch.
constexpr int kBatchSize = 32;
constexpr int kContextTokens = 32768;
constexpr int kPageSize = 64;
constexpr std::int32_t kDraftTokens = 4;
constexpr int kWarmups = 10;

using kernels::DecodePhase;

DecodePhase phase_of(const std::string& name) {
  for (int i = 0; i < kNumPhases; ++i) {
    if (name == phase_name(static_cast<Phase>(i))) return static_cast<DecodePhase>(i);
  }
  throw ConfigError("dispatch_samples: no phase " + name);
}

kernels::QueryMode query_mode(DecodePhase phase) {
  if (phase == DecodePhase::kDraftExtendCumsum) return kernels::QueryMode::kCumsum;
  if (phase == DecodePhase::kDraftExtendStrided) return kernels::QueryMode::kStrided;
  return kernels::QueryMode::kPreset;
}

// Inputs whose longest request leaves room for the draft tokens.
kernels::AtenMetadataArgs rebuild_args(const MetadataInputs& inputs, DecodePhase phase) {
  kernels::AtenMetadataArgs args;
  for (int set = 0; set < kRebuilds; ++set) {
    args = inputs.aten_args(set);
    const std::int64_t* tokens = args.seq_lens_cpu;
    if (*std::max_element(tokens, tokens + kBatchSize) <= kContextTokens - kDraftTokens) break;
  }
  if (phase == DecodePhase::kDraftDecode) args.metadata.seqlen_offset = 1;
  if (phase == DecodePhase::kTargetVerify) args.metadata.seqlen_offset = kDraftTokens;
  return args;
}

class Samples {
 public:
  explicit Samples(std::map<std::string, DispatchProfile> profiles)
      : profiles_(std::move(profiles)), allocator_(device_block_source()) {}

  std::vector<std::int64_t> take(DecodePhase phase, bool swa, const std::string& profile,
                                 int count) {
    CallOverhead overhead;
    if (profile != "-") overhead = CallOverhead(profiles_.at(profile), seed_++, 0);
    CostedTensorOps ops(allocator_, stream_.get(), scalar_.data(), std::move(overhead));
    const kernels::AtenMetadataArgs args = rebuild_args(inputs(phase, swa), phase);
    std::vector<std::int64_t> samples;
    for (int i = -kWarmups; i < count; ++i) {
      ops.begin_rebuild();
      const std::int64_t begin = now_ns();
      const int status = kernels::rebuild_metadata_aten(ops, phase, args);
      const std::int64_t end = now_ns();
      check_cuda(status);
      check_cuda(cudaStreamSynchronize(stream_.get()));
      if (i >= 0) samples.push_back(end - begin);
    }
    return samples;
  }

 private:
  const MetadataInputs& inputs(DecodePhase phase, bool swa) {
    const auto key = std::pair(query_mode(phase), swa);
    const auto found = inputs_.find(key);
    if (found != inputs_.end()) return found->second;
    return inputs_
        .try_emplace(key, MetadataShape{kBatchSize, kContextTokens, kPageSize, swa, key.first})
        .first->second;
  }

  std::map<std::string, DispatchProfile> profiles_;
  std::map<std::pair<kernels::QueryMode, bool>, MetadataInputs> inputs_;
  Stream stream_ = make_stream();
  PinnedBuffer<std::int64_t> scalar_{1};
  kernels::TensorAllocator allocator_;
  std::uint64_t seed_ = 1;
};

void answer(Samples& samples, std::istream& commands) {
  std::string phase, profile;
  int swa = 0;
  int count = 0;
  while (commands >> phase >> swa >> profile >> count) {
    const char* separator = "[";
    for (const std::int64_t ns : samples.take(phase_of(phase), swa != 0, profile, count)) {
      std::printf("%s%lld", separator, static_cast<long long>(ns));
      separator = ", ";
    }
    std::printf("]\n");
    std::fflush(stdout);
  }
}

std::map<std::string, DispatchProfile> read_profiles(int argc, char** argv) {
  std::map<std::string, DispatchProfile> profiles;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string value = argv[i + 1];
    const std::size_t equals = value.find('=');
    if (argv[i] != std::string("--profile") || equals == std::string::npos) {
      throw ConfigError("usage: dispatch_samples [--profile NAME=FILE]...");
    }
    const std::string file = value.substr(equals + 1);
    std::ifstream stream(file);
    profiles[value.substr(0, equals)] =
        dispatch_profile_from_json(Json::parse(stream, nullptr, false), file);
  }
  return profiles;
}

}  // namespace
}  // namespace tpjitter::bench

int main(int argc, char** argv) {
  try {
    tpjitter::bench::Samples samples(tpjitter::bench::read_profiles(argc, argv));
    tpjitter::bench::answer(samples, std::cin);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dispatch_samples: %s\n", error.what());
    return 2;
  }
}
