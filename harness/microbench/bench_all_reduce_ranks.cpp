#include "harness/microbench/bench_all_reduce_ranks.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "harness/backend.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter::bench {
namespace {

using kernels::kMaxAllReduceBytes;

constexpr int kNodes = kAligning + kAllReduces;
static_assert(kNodes % 2 == 0, "replays must go on alternating between the input buffers");
constexpr std::size_t kCachedGraphs = 32;
constexpr std::int32_t kQuit = -1;  // a job's kind: the session has ended

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

struct NcclBuffers {
  void* input = nullptr;
  void* output = nullptr;
};

// One rank's buffers and graphs on the current device.
class RankBench {
 public:
  // `base`: arenas, rank and guard. `nccl`: null without.
  RankBench(const RankContext& context, const kernels::AllReduceArgs& base, NcclCommunicator* nccl)
      : context_(context), base_(base), nccl_(nccl) {
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

  bool has(int kind) const {
    if (kind == kNcclWindow) return window_.output != nullptr;
    return kind < kOurKinds || kind == kFloor || nccl_ != nullptr;
  }

  bool is_prepared(const Job& job) const { return graphs_.count(job) != 0; }
  void prepare(const Job& job) {
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

  void launch(const Job& job) { check_cuda(cudaGraphLaunch(graphs_.at(job).get(), stream_.get())); }
  void wait() {
    wait_for_stream(context_, stream_.get(), context_.control->deadlines().launcher_ns,
                    "all-reduces");
  }
  double seconds() const {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e-3 / kAllReduces;
  }

  void check_sums(const Job& job) {
    if (job.kind == kFloor) return;
    std::vector<std::uint16_t> output(static_cast<std::size_t>(job.bytes / 2));
    check_cuda(
        cudaMemcpy(output.data(), output_of(job), output.size() * 2, cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < output.size(); ++i) {
      float sum = 0;
      for (int p = 0; p < context_.world_size; ++p) sum += to_float(input_bits(p, i));
      if (to_float(output[i]) == sum) continue;
      throw RunError(fmt::format("rank {}: {} of {} bytes: element {} is {} instead of {}",
                                 base_.rank, kKinds[job.kind], job.bytes, i, to_float(output[i]),
                                 sum));
    }
  }

 private:
  static bool is_nccl(const Job& job) { return job.kind == kNccl || job.kind == kNcclWindow; }
  void record(const Event& event) {
    check_cuda(cudaEventRecordWithFlags(event.get(), stream_.get(), cudaEventRecordExternal));
  }
  void* output_of(const Job& job) const {
    if (job.kind == kNcclWindow) return window_.output;
    return job.kind == kNccl ? plain_.output : output_.data();
  }
  void enqueue(const Job& job, int ordinal) {
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
    check_cuda(job.kind == kFloor
                   ? launch_all_reduce_floor(args, stream_.get())
                   : kernels::kAllReduceKernels[job.kind].launch(args, stream_.get()));
  }

  const RankContext& context_;
  kernels::AllReduceArgs base_;
  NcclCommunicator* nccl_;
  Stream stream_ = make_stream();
  Event begin_ = make_timed_event(), end_ = make_timed_event();
  DeviceBuffer<std::byte> output_, nccl_memory_[2];
  NcclBuffers plain_, window_;
  DeviceBuffer<kernels::AllReduceStamp> stamps_{kNodes};
  DeviceBuffer<std::int64_t> entry_{1};
  std::map<Job, GraphExec> graphs_;
};

// A process of the group: its GPU and its part of every job.
class Member {
 public:
  Member(ControlSegment& control, int rank) : context_{rank, control.world_size(), &control} {
    check_cuda(cudaSetDevice(rank));
    communicator_.emplace(context_);
    NcclCommunicator* nccl = NcclCommunicator::available() ? &communicator_->nccl() : nullptr;
    bench_.emplace(context_, communicator_->all_reduce_args(0, 0, nullptr, {}), nccl);
    barrier("ready");
  }

  const RankBench& bench() const { return *bench_; }

  double run(const Job& job) {
    const bool first = !bench_->is_prepared(job);
    if (first) bench_->prepare(job);
    barrier("captured");
    const double seconds = replay(job);
    if (first) bench_->check_sums(job);
    return seconds;
  }
  void barrier(const char* what) {
    context_.control->barrier(context_.rank, context_.control->deadlines().prepare_ns, what);
  }

 private:
  double replay(const Job& job) {
    bench_->launch(job);
    bench_->wait();
    communicator_->check_fault(-1, "all-reduces");
    return bench_->seconds();
  }

  RankContext context_;
  std::optional<Communicator> communicator_;
  std::optional<RankBench> bench_;
};

void send(ControlSegment& control, const Job& job) {
  std::memcpy(control.rank(0).exchange, &job, sizeof job);
}

class Processes : public Session {
 public:
  explicit Processes(int ranks) : control_(ControlSegment::create(ranks, 0, 1, "", 1.0)) {
    for (int r = 1; r < ranks; ++r) children_.push_back(start(r));
    try {
      member_.emplace(control_, 0);
    } catch (const std::exception& error) {
      end(error.what());
      throw;
    }
  }
  ~Processes() override { end(failed_ ? "rank 0 failed" : nullptr); }

  double run(const Job& job) override {
    if (failed_) throw RunError("an earlier job failed");
    try {
      send(control_, job);
      member_->barrier("next job");
      const double seconds = member_->run(job);
      member_->barrier("job done");
      return seconds;
    } catch (const std::exception& error) {
      failed_ = true;
      control_.fail(0, error.what());
      throw;
    }
  }
  bool has(int kind) const override { return member_->bench().has(kind); }
  std::string label() const override {
    const std::size_t ranks = children_.size() + 1;
    return fmt::format("{} ranks on {} GPUs", ranks, ranks);
  }

 private:
  pid_t start(int rank) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // dup2 onto itself clears close-on-exec in the child only.
    posix_spawn_file_actions_adddup2(&actions, control_.fd(), control_.fd());
    std::string words[] = {"bench_all_reduce", fmt::format("--follow={}", control_.fd()),
                           fmt::format("--rank={}", rank)};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    pid_t pid = 0;
    const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      end("a rank could not be started");
      throw RunError(fmt::format("rank {} could not be started: {}", rank, std::strerror(error)));
    }
    return pid;
  }

  // Ends the others: by the quit job, or by the abort word when something went wrong.
  void end(const char* failure) {
    try {
      if (failure == nullptr) {
        send(control_, Job{.kind = kQuit});
        member_->barrier("next job");
      }
    } catch (const std::exception& error) {
      failure = "a rank is gone";
    }
    if (failure != nullptr) control_.fail(0, failure);
    member_.reset();
    for (const pid_t pid : children_) {
      // One that waits inside NCCL's start would not see the abort word.
      if (failure != nullptr) kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    children_.clear();
  }

  ControlSegment control_;
  std::vector<pid_t> children_;
  std::optional<Member> member_;
  bool failed_ = false;
};

class Streams : public Session {
 public:
  explicit Streams(int ranks) : control_(ControlSegment::create(ranks, 0, 1, "", 1.0)) {
    const kernels::AllReduceArena layout{ranks, kMaxAllReduceBytes};
    kernels::AllReduceArgs base;
    base.arena = layout;
    base.max_blocks = kernels::kMaxAllReduceBlocks / ranks;  // all resident together
    base.guard.fault = fault_.data();
    for (int r = 0; r < ranks; ++r) {
      arenas_.emplace_back(layout.bytes());
      check_cuda(cudaMemset(arenas_[r].data(), 0, layout.bytes()));
      base.arenas[r] = arenas_[r].data();
      base.guard.peer_abort[r] = abort_word(r);
      contexts_.push_back({r, ranks, &control_});
    }
    for (int r = 0; r < ranks; ++r) {
      base.rank = r;
      base.guard.abort = abort_word(r);
      benches_.push_back(std::make_unique<RankBench>(contexts_[r], base, nullptr));
    }
  }

  double run(const Job& job) override {
    const bool first = !benches_[0]->is_prepared(job);
    const auto each = [&](auto what) {
      for (auto& bench : benches_) what(*bench);
    };
    if (first) each([&](RankBench& b) { b.prepare(job); });
    each([&](RankBench& b) { b.launch(job); });
    each([&](RankBench& b) { b.wait(); });
    if (fault_[0].written != 0) {
      throw RunError(fmt::format("rank {} waited in vain for rank {} in all-reduce {}",
                                 fault_[0].rank, fault_[0].peer, fault_[0].ordinal));
    }
    if (first) each([&](RankBench& b) { b.check_sums(job); });
    return benches_[0]->seconds();
  }
  bool has(int kind) const override { return benches_[0]->has(kind); }
  std::string label() const override {
    return fmt::format("{} ranks share one GPU: no link in it, compare nothing with it",
                       benches_.size());
  }

 private:
  std::uint32_t* abort_word(int rank) const {
    return reinterpret_cast<std::uint32_t*>(arenas_[rank].data() + kernels::AllReduceArena::kAbort);
  }

  ControlSegment control_;
  PinnedBuffer<kernels::DeviceFault> fault_{1};
  std::vector<DeviceBuffer<std::byte>> arenas_;
  std::deque<RankContext> contexts_;
  std::vector<std::unique_ptr<RankBench>> benches_;
};

}  // namespace

std::unique_ptr<Session> start_processes(int ranks) { return std::make_unique<Processes>(ranks); }

std::unique_ptr<Session> start_streams(int ranks) { return std::make_unique<Streams>(ranks); }

int follow(int control_fd, int rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ControlSegment control = ControlSegment::open(control_fd);
  try {
    Member member(control, rank);
    for (;;) {
      member.barrier("next job");
      Job job;
      std::memcpy(&job, control.rank(0).exchange, sizeof job);
      if (job.kind == kQuit) return kExitPass;
      member.run(job);
      member.barrier("job done");
    }
  } catch (const std::exception& error) {
    if (!control.aborted()) fmt::print(stderr, "bench_all_reduce: {}\n", error.what());
    control.fail(rank, error.what());
    return kExitRunFailed;
  }
}

}  // namespace tpjitter::bench
