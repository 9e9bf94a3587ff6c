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
#include <optional>
#include <vector>

#include "harness/backend.h"
#include "harness/cuda/communicator.h"
#include "harness/microbench/bench_all_reduce_rank.h"

namespace tpjitter::bench {
namespace {

constexpr std::int32_t kQuit = -1;  // a job's kind: the session has ended

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
    const kernels::AllReduceArena layout{ranks, kernels::kMaxAllReduceBytes};
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
