#include "harness/microbench/bench_all_reduce_rank.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter::bench {
namespace {

using kernels::kMaxAllReduceBytes;

constexpr std::size_t kCachedGraphs = 32;

// Small integers of period 7: exact sums.
std::uint16_t input_bits(int rank, std::size_t i) {
  const auto value = static_cast<float>(static_cast<int>((i + 3 * rank) % 7) - 3);
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

float to_float(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

Event make_timed_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event));
  return Event(event);
}

bool is_nccl(const Job& job) { return job.kind == kNccl || job.kind == kNcclWindow; }

}  // namespace

RankBench::RankBench(const RankContext& context, const kernels::AllReduceArgs& base,
                     NcclCommunicator* nccl)
    : context_(context),
      base_(base),
      nccl_(nccl),
      begin_(make_timed_event()),
      end_(make_timed_event()) {
  const auto bytes = static_cast<std::size_t>(kMaxAllReduceBytes);
  output_ = DeviceBuffer<std::byte>(bytes);
  check_cuda(cudaMemset(stamps_.data(), 0, stamps_.size_bytes()));
  check_cuda(cudaMemset(entry_.data(), 0, entry_.size_bytes()));
  std::vector<std::uint16_t> input(bytes / 2);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = input_bits(base.rank, i);
  std::vector<void*> inputs;
  for (const int parity : {0, 1}) {
    inputs.push_back(base.arenas[base.rank] + base.arena.input(parity));
  }
  if (nccl != nullptr) {
    nccl_memory_[0] = DeviceBuffer<std::byte>(bytes);
    nccl_memory_[1] = DeviceBuffer<std::byte>(bytes);
    plain_ = {nccl_memory_[0].data(), nccl_memory_[1].data()};
    window_ = {nccl->registered_buffer(kMaxAllReduceBytes),
               nccl->registered_buffer(kMaxAllReduceBytes)};
    inputs.push_back(plain_.input);
    if (window_.output != nullptr) inputs.push_back(window_.input);
  }
  for (void* to : inputs) check_cuda(cudaMemcpy(to, input.data(), bytes, cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());
}

bool RankBench::has(int kind) const {
  if (kind == kNcclWindow) return window_.output != nullptr;
  return kind < kOurKinds || kind == kFloor || nccl_ != nullptr;
}

void RankBench::prepare(const Job& job) {
  // The same on every rank: they run the same jobs.
  if (graphs_.size() >= kCachedGraphs) graphs_.clear();
  if (is_nccl(job)) {  // connects, which a capture cannot
    enqueue(job, 0);
    wait();
  }
  graphs_[job] = capture_graph(stream_.get(), [&] {
    for (int n = 0; n < kAligning; ++n) enqueue(job, n);
    record(begin_);
    for (int n = kAligning; n < kNodes; ++n) enqueue(job, n);
    record(end_);
  });
  wait();  // the upload
}

void RankBench::launch(const Job& job) {
  check_cuda(cudaGraphLaunch(graphs_.at(job).get(), stream_.get()));
}

void RankBench::wait() {
  wait_for_stream(context_, stream_.get(), context_.control->deadlines().launcher_ns,
                  "all-reduces");
}

double RankBench::seconds() const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
  return static_cast<double>(milliseconds) * 1e-3 / kAllReduces;
}

void RankBench::check_sums(const Job& job) {
  if (job.kind == kFloor) return;
  std::vector<std::uint16_t> output(static_cast<std::size_t>(job.bytes / 2));
  check_cuda(cudaMemcpy(output.data(), output_of(job), output.size() * 2, cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < output.size(); ++i) {
    float sum = 0;
    for (int p = 0; p < context_.world_size; ++p) sum += to_float(input_bits(p, i));
    if (to_float(output[i]) == sum) continue;
    throw RunError(fmt::format("rank {}: {} of {} bytes: element {} is {} instead of {}",
                               base_.rank, kKinds[job.kind], job.bytes, i, to_float(output[i]),
                               sum));
  }
}

void RankBench::record(const Event& event) {
  check_cuda(cudaEventRecordWithFlags(event.get(), stream_.get(), cudaEventRecordExternal));
}

void* RankBench::output_of(const Job& job) const {
  if (job.kind == kNcclWindow) return window_.output;
  return job.kind == kNccl ? plain_.output : output_.data();
}

void RankBench::enqueue(const Job& job, int ordinal) {
  if (is_nccl(job)) {
    const void* input = job.kind == kNcclWindow ? window_.input : plain_.input;
    nccl_->all_reduce(input, output_of(job), job.bytes / 2, stream_.get());
    return;
  }
  kernels::AllReduceArgs args = base_;
  args.bytes = job.bytes;
  args.output = output_.data();
  args.ordinal = ordinal;
  args.blocks = job.blocks;
  args.threads = job.threads;
  args.pdl = job.pdl != 0;
  if (job.stamped != 0) {
    args.ring.all_reduces = stamps_.data();
    args.ring.entry = entry_.data();
    args.ring.all_reduces_per_replay = kNodes;
  }
  check_cuda(job.kind == kFloor ? launch_all_reduce_floor(args, stream_.get())
                                : kernels::kAllReduceKernels[job.kind].launch(args, stream_.get()));
}

}  // namespace tpjitter::bench
