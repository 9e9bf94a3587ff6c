#include "harness/noise.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "harness/contract/error.h"
#include "harness/spawn.h"

namespace tpjitter {
namespace {

constexpr std::uint32_t kRest = 0, kBusyThreads = 1, kMemoryBandwidth = 2;

constexpr std::int64_t kPollNs = 1'000'000;

std::uint32_t kind_of(const CaseConfig& config) {
  return config.noise_kind == "memory_bandwidth" ? kMemoryBandwidth : kBusyThreads;
}

void keep_busy(NoiseControl& noise) {
  std::uint64_t x = 1;
  while (noise.request.load(std::memory_order_relaxed) == kBusyThreads) {
    for (int i = 0; i < 20'000; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
    // The sum depends on x, so that the loop is not left out.
    noise.work.fetch_add(1 + (x == 0 ? 1 : 0), std::memory_order_relaxed);
  }
}

// Copies between two halves of a buffer; of all threads together they are larger than any cache.
void move_memory(NoiseControl& noise, std::uint32_t threads) {
  constexpr std::size_t kPiece = 1u << 20;
  const std::size_t half = std::clamp<std::size_t>((512u << 20) / threads, kPiece, 32u << 20);
  std::vector<char> memory(2 * half, 1);
  for (std::size_t at = 0; noise.request.load(std::memory_order_relaxed) == kMemoryBandwidth;
       at = at + kPiece >= half ? 0 : at + kPiece) {
    std::memcpy(memory.data() + half + at, memory.data() + at, std::min(kPiece, half - at));
    noise.work.fetch_add(1, std::memory_order_relaxed);
  }
}

void wait_for_threads(ControlSegment& control, std::uint32_t threads, std::int64_t deadline_ns) {
  NoiseControl& noise = control.header().noise;
  const std::int64_t give_up = now_ns() + deadline_ns;
  for (;;) {
    const std::uint32_t running = noise.running.load(std::memory_order_acquire);
    if (running == threads) return;
    if (control.aborted())
      throw RunError(fmt::format("{} another rank or the launcher ended the run", kStoppedPrefix));
    if (now_ns() > give_up) {
      throw TimeoutError(
          fmt::format("{} of {} noise threads run; lower noise.threads", running, threads));
    }
    futex_wait(noise.running, running, kPollNs);
  }
}

}  // namespace

NoiseProcess::NoiseProcess(const ControlSegment& control)
    : pid_(spawn_self({"noise", "--control-fd", std::to_string(control.fd())}, control.fd())) {}

NoiseProcess::~NoiseProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void NoiseProcess::check() {
  int status = 0;
  if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) != pid_) return;
  pid_ = -1;
  throw RunError(WIFSIGNALED(status)
                     ? fmt::format("the noise process was killed by signal {}", WTERMSIG(status))
                     : std::string("the noise process could not make its threads; lower "
                                   "noise.threads"));
}

void start_noise(ControlSegment& control, const CaseConfig& config, std::int64_t deadline_ns) {
  NoiseControl& noise = control.header().noise;
  noise.work.store(0, std::memory_order_relaxed);
  noise.begin_ns.store(now_ns(), std::memory_order_relaxed);
  noise.threads.store(static_cast<std::uint32_t>(config.noise_threads), std::memory_order_relaxed);
  noise.request.store(kind_of(config), std::memory_order_release);
  futex_wake_all(noise.request);
  wait_for_threads(control, static_cast<std::uint32_t>(config.noise_threads), deadline_ns);
}

Json stop_noise(ControlSegment& control, const CaseConfig& config, std::int64_t deadline_ns) {
  NoiseControl& noise = control.header().noise;
  noise.request.store(kRest, std::memory_order_release);
  wait_for_threads(control, 0, deadline_ns);
  return {{"kind", config.noise_kind},
          {"threads", config.noise_threads},
          {"work", noise.work.load(std::memory_order_relaxed)},
          {"duration_ns", now_ns() - noise.begin_ns.load(std::memory_order_relaxed)}};
}

int noise_main(int control_fd, pid_t parent) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_IGN);
  if (!die_with_parent(parent)) return kExitRunFailed;
  ControlSegment control = ControlSegment::open(control_fd);
  NoiseControl& noise = control.header().noise;
  for (;;) {  // until the launcher ends it
    const std::uint32_t kind = noise.request.load(std::memory_order_acquire);
    if (kind == kRest) {
      futex_wait(noise.request, kRest, 100 * kPollNs);
      continue;
    }
    const std::uint32_t count = noise.threads.load(std::memory_order_relaxed);
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < count; ++i) {
      try {
        threads.emplace_back([&noise, kind, count] {
          noise.running.fetch_add(1, std::memory_order_release);
          futex_wake_all(noise.running);
          kind == kMemoryBandwidth ? move_memory(noise, count) : keep_busy(noise);
          noise.running.fetch_sub(1, std::memory_order_release);
          futex_wake_all(noise.running);
        });
      } catch (const std::system_error&) {  // those that run are joined: they must see an end
        noise.request.store(kRest, std::memory_order_release);
        return kExitRunFailed;
      }
    }
  }
}

}  // namespace tpjitter
