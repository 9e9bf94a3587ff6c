// The ranks behind bench_all_reduce: a process and a GPU each, or, where there is one GPU, streams
// that share it. Every rank runs the same jobs in the same order: rank 0 runs Google Benchmark, and
// the others follow it job by job through the shared segment, whatever counts the library chooses.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/all_reduce.h"

namespace tpjitter::bench {

// The first three as body.all_reduce has them; nccl_window: NCCL with registered windows; floor: the
// same bytes sent without a wait, timed beside the others.
inline constexpr std::string_view kKinds[] = {"one_shot_pull", "one_shot_push", "two_shot",
                                              "nccl",          "nccl_window",   "floor"};
inline constexpr int kOurKinds = 3;
inline constexpr int kNccl = 3;
inline constexpr int kNcclWindow = 4;
inline constexpr int kFloor = 5;

inline constexpr int kAllReduces = 100;  // timed, in one graph
inline constexpr int kAligning = 8;      // before them: line the ranks up after their launches

// One replay of a graph of all-reduces. Travels through the segment as bytes.
struct Job {
  std::int32_t kind = 0;     // of kKinds
  std::int32_t stamped = 0;  // our kinds only
  std::int32_t blocks = 0;   // 0: by the kernel's table
  std::int32_t threads = 0;
  std::int64_t bytes = 0;
  std::int32_t pdl = 0;  // our kinds: launched programmatically
  auto operator<=>(const Job&) const = default;
};

class Session {
 public:
  virtual ~Session() = default;
  // Seconds an all-reduce on rank 0's GPU, by events inside the graph. The first run of a job
  // captures it and checks its sums. Throws RunError.
  virtual double run(const Job& job) = 0;
  virtual bool has(int kind) const = 0;
  virtual std::string label() const = 0;  // "2 ranks on 2 GPUs"
};

std::unique_ptr<Session> start_processes(int ranks);  // one a GPU
std::unique_ptr<Session> start_streams(int ranks);    // all on GPU 0; without NCCL
int launch_all_reduce_floor(const kernels::AllReduceArgs& args, CUstream_st* stream);
int follow(int control_fd, int rank);  // a process of start_processes; exit code

}  // namespace tpjitter::bench
