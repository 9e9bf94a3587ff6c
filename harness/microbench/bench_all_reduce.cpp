// bench_all_reduce: GPU time of one all-reduce in a CUDA graph of 100, by size and kernel, beside
// NCCL and beside the same bytes sent without a wait (`floor_us`), in turn in the same run. A row
// times the kernel with stamps (its time, and `us`) and without (`us_unstamped`, `stamp_ns`), each a
// median over the replays.
//   --ranks=N            default: all GPUs; on one GPU two ranks that share it as streams
//   --blocks=A,B --threads=A,B   launch shapes in place of the kernels' tables, one row each
//   --pdl=0,1            without and with programmatic launch (default: both), one row each
//   --replays=N          of each graph (the library's own choice of counts is not used)
// Without a GPU it lists its benchmarks and exits 77 instead of running them.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/cuda/cuda_environment.h"
#include "harness/cuda/nccl_communicator.h"
#include "harness/microbench/bench_all_reduce_ranks.h"
#include "harness/microbench/bench_gpu.h"
#include "harness/microbench/beside_floor.h"
#include "harness/microbench/manual_time.h"
#include "kernels/all_reduce.h"

namespace tpjitter::bench {
namespace {

constexpr std::int64_t kSizes[] = {512,       5'760,     8'192,     16'384,   23'040,
                                   46'080,    65'536,    131'072,   262'144,  524'288,
                                   1'048'576, 2'097'152, 4'194'304, 8'388'608};

struct Options {
  int ranks = 0;  // 0: all GPUs
  int replays = 50;
  std::vector<int> blocks = {0}, threads = {0}, pdl = {0, 1};
  int follow_fd = -1, follow_rank = 0;
  bool list_only = false;
};

std::vector<int> integers(const std::string& flag, const std::string& text, int least, int most) {
  std::vector<int> values;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    char* end = nullptr;
    const long value = std::strtol(word.c_str(), &end, 10);
    if (word.empty() || *end != '\0' || value < least || value > most) {
      throw std::invalid_argument(flag + "=" + text + ": takes numbers from " +
                                  std::to_string(least) + " to " + std::to_string(most));
    }
    values.push_back(static_cast<int>(value));
  }
  if (values.empty()) throw std::invalid_argument(flag + ": a number is missing");
  return values;
}

// Takes our flags out of argv, as --flag=value or --flag value; the rest is the library's.
Options take_options(int* argc, char** argv) {
  Options options;
  struct Flag {
    const char* name;
    int least, most;
    std::vector<int> values;
  };
  Flag flags[] = {{"--ranks", 1, kernels::kMaxAllReduceRanks, {}},
                  {"--replays", 1, 1'000'000, {}},
                  {"--blocks", 1, kernels::kMaxAllReduceBlocks, {}},
                  {"--threads", 1, kernels::kMaxAllReduceThreads, {}},
                  {"--follow", 1, 1 << 20, {}},
                  {"--rank", 1, kernels::kMaxAllReduceRanks, {}},
                  {"--pdl", 0, 1, {}}};
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    Flag* flag = std::find_if(std::begin(flags), std::end(flags),
                              [&](const Flag& f) { return name == f.name; });
    if (flag == std::end(flags)) {
      if (name == "--benchmark_list_tests") options.list_only = word.find("false") == word.npos;
      argv[kept++] = argv[i];
    } else if (equals != word.npos) {
      flag->values = integers(name, word.substr(equals + 1), flag->least, flag->most);
    } else {
      flag->values = integers(name, i + 1 < *argc ? argv[++i] : "", flag->least, flag->most);
    }
  }
  argv[*argc = kept] = nullptr;
  const auto set = [](const Flag& flag, int* to) {
    if (!flag.values.empty()) *to = flag.values[0];
  };
  set(flags[0], &options.ranks);
  set(flags[1], &options.replays);
  if (!flags[2].values.empty()) options.blocks = flags[2].values;
  if (!flags[3].values.empty()) options.threads = flags[3].values;
  if (!flags[6].values.empty()) options.pdl = flags[6].values;
  set(flags[4], &options.follow_fd);
  set(flags[5], &options.follow_rank);
  return options;
}

void bench_job(benchmark::State& state, Session& session, const Job& job) {
  if (!session.has(job.kind)) {
    state.SkipWithError("not here: ranks share a GPU, or this build's NCCL has none");
    return;
  }
  Job unstamped = job;
  unstamped.stamped = 0;
  const Job floor{.kind = kFloor, .bytes = job.bytes};
  const Job nccl{.kind = kNccl, .bytes = job.bytes};
  const bool beside = session.has(kNccl) && job.kind != kNccl;
  const auto warm_up = [&](const Job& which) {
    for (int i = 0; i < 3; ++i) session.run(which);
  };
  warm_up(job);
  warm_up(floor);
  if (job.stamped != 0) warm_up(unstamped);
  if (beside) warm_up(nccl);
  std::vector<double> own_s, floor_s, unstamped_s, nccl_s;
  for (auto _ : state) {
    own_s.push_back(session.run(job));
    state.SetIterationTime(own_s.back());
    floor_s.push_back(session.run(floor));
    if (job.stamped != 0) unstamped_s.push_back(session.run(unstamped));
    if (beside) nccl_s.push_back(session.run(nccl));
  }
  const double own = median(own_s);
  state.SetLabel(session.label());
  state.counters["bytes"] = static_cast<double>(job.bytes);
  state.counters["us"] = own * 1e6;
  const double floor_seconds = median(floor_s);
  state.counters["floor_us"] = floor_seconds * 1e6;
  state.counters["ratio_to_floor"] = own / floor_seconds;
  state.counters["algo_GB_per_s"] = static_cast<double>(job.bytes) / own * 1e-9;
  if (!unstamped_s.empty()) {
    const double bare = median(unstamped_s);
    state.counters["us_unstamped"] = bare * 1e6;
    state.counters["stamp_ns"] = (own - bare) * 1e9;
  }
  if (!nccl_s.empty()) {
    const double peer = median(nccl_s);
    state.counters["nccl_us"] = peer * 1e6;
    state.counters["ratio_to_nccl"] = own / peer;
  }
}

void register_job(std::unique_ptr<Session>& session, const Job& job, int replays) {
  std::string name = std::string(kKinds[job.kind]) + "/bytes:" + std::to_string(job.bytes);
  if (job.blocks != 0) name += "/blocks:" + std::to_string(job.blocks);
  if (job.threads != 0) name += "/threads:" + std::to_string(job.threads);
  if (job.pdl != 0) name += "/pdl";
  register_manual_time(
      name, replays, [&session, job](benchmark::State& state) { bench_job(state, *session, job); });
}

void register_benchmarks(std::unique_ptr<Session>& session, const Options& options) {
  for (const std::int64_t bytes : kSizes) {
    for (int kind = 0; kind < kFloor; ++kind) {
      if (kind >= kOurKinds) {
        if (NcclCommunicator::available()) {
          register_job(session, {.kind = kind, .bytes = bytes}, options.replays);
        }
        continue;
      }
      for (const int blocks : options.blocks) {
        for (const int threads : options.threads) {
          for (const int pdl : options.pdl) {
            register_job(session, {kind, 1, blocks, threads, bytes, pdl}, options.replays);
          }
        }
      }
    }
  }
}

std::unique_ptr<Session> start(const Options& options, int gpus) {
  if (gpus == 1) return start_streams(options.ranks == 0 ? 2 : options.ranks);
  const int ranks =
      options.ranks == 0 ? std::min(gpus, kernels::kMaxAllReduceRanks) : options.ranks;
  if (ranks > gpus) {
    throw std::invalid_argument("--ranks=" + std::to_string(ranks) + ": there are " +
                                std::to_string(gpus) + " GPUs");
  }
  return start_processes(ranks);
}

int run(int argc, char** argv) {
  const Options options = take_options(&argc, argv);
  load_modules_eagerly();
  if (options.follow_fd >= 0) return follow(options.follow_fd, options.follow_rank);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;

  std::unique_ptr<Session> session;
  const int gpus = count_gpus("bench_all_reduce");
  if (gpus == 0) {
    if (!options.list_only) return 77;
  } else if (!options.list_only) {
    session = start(options, gpus);
    benchmark::AddCustomContext("gpu", gpu_name(0));
    benchmark::AddCustomContext("nccl", NcclCommunicator::version());
    benchmark::AddCustomContext("ranks", session->label());
  }
  register_benchmarks(session, options);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace tpjitter::bench

int main(int argc, char** argv) {
  // NVLink multicast stays off unless the user has asked for it.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // Streams that share a hardware queue would wait for each other's waiting kernels.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    return tpjitter::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", error.what());
    return 2;
  }
}
