#include "harness/cuda/nccl_communicator.h"

#include <fmt/format.h>

#if TPJITTER_HAS_NCCL
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "harness/cuda/cuda_check.h"
#endif

namespace tpjitter {

#if TPJITTER_HAS_NCCL

namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(20);

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
struct Window {
  void* buffer = nullptr;
  ncclWindow_t window = nullptr;
};

void destroy(ncclComm_t communicator, const std::vector<Window>& windows) {
  for (const Window& w : windows) {
    if (w.window != nullptr) ncclCommWindowDeregister(communicator, w.window);
  }
  ncclCommDestroy(communicator);
  for (const Window& w : windows) ncclMemFree(w.buffer);
}
#else
struct Window {};
void destroy(ncclComm_t communicator, const std::vector<Window>&) { ncclCommDestroy(communicator); }
#endif

RunError aborted_error(const RankContext& context) {
  return RunError(fmt::format("{} rank {}: another rank or the launcher ended the run in NCCL",
                              kStoppedPrefix, context.rank));
}

void check_nccl(const RankContext& context, ncclResult_t status, const char* what) {
  if (status == ncclSuccess) return;
  if (context.control->aborted()) throw aborted_error(context);  // the watchdog's doing
  throw NcclError(
      fmt::format("rank {}: NCCL: {}: {}", context.rank, what, ncclGetErrorString(status)), status);
}

}  // namespace

struct NcclCommunicator::State {
  explicit State(const RankContext& c) : context(c) {}

  RankContext context;
  std::atomic<ncclComm_t> communicator{nullptr};
  std::mutex mutex;
  std::condition_variable stopping;
  bool stop = false;
  std::thread watchdog;
  std::vector<Window> windows;

  void watch() {
    std::unique_lock lock(mutex);
    while (!stopping.wait_for(lock, kWatchInterval, [this] { return stop; })) {
      if (!context.control->aborted()) continue;
      abort();
      return;
    }
  }
  // Whoever takes the communicator out ends it.
  void abort() {
    if (ncclComm_t c = communicator.exchange(nullptr)) ncclCommAbort(c);
  }
};

bool NcclCommunicator::available() { return true; }

std::string NcclCommunicator::version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return {};
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

NcclCommunicator::NcclCommunicator(const RankContext& context)
    : state_(std::make_unique<State>(context)) {
  // NVLink multicast stays off: one faulty program that uses it can take a host's GPUs down.
  // A user who has set it knows.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  ControlSegment& control = *context.control;
  const std::int64_t deadline_ns = control.deadlines().prepare_ns;
  ncclUniqueId id;
  static_assert(sizeof id <= kExchangeBytes);
  if (context.rank == 0) {
    check_nccl(context, ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::memcpy(control.rank(0).exchange, &id, sizeof id);
  }
  control.barrier(context.rank, deadline_ns, "NCCL id written");
  std::memcpy(&id, control.rank(0).exchange, sizeof id);
  control.barrier(context.rank, deadline_ns, "NCCL id read");
  ncclComm_t communicator = nullptr;
  check_nccl(context, ncclCommInitRank(&communicator, context.world_size, id, context.rank),
             "ncclCommInitRank");
  state_->communicator = communicator;
  state_->watchdog = std::thread([state = state_.get()] { state->watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->stopping.notify_all();
  if (state_->watchdog.joinable()) state_->watchdog.join();
  // A destroy may wait for a dead peer.
  if (std::uncaught_exceptions() > 0 || state_->context.control->aborted()) {
    state_->abort();
  } else if (ncclComm_t c = state_->communicator.exchange(nullptr)) {
    destroy(c, state_->windows);
  }
}

void NcclCommunicator::all_reduce(const void* input, void* output, std::int64_t elements,
                                  cudaStream_t stream) {
  ncclComm_t communicator = state_->communicator.load();
  if (communicator == nullptr) throw aborted_error(state_->context);
  check_nccl(state_->context,
             ncclAllReduce(input, output, static_cast<std::size_t>(elements), ncclBfloat16, ncclSum,
                           communicator, stream),
             "ncclAllReduce");
}

void* NcclCommunicator::registered_buffer(std::int64_t bytes) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  ncclComm_t communicator = state_->communicator.load();
  if (communicator == nullptr) throw aborted_error(state_->context);
  const auto size = static_cast<std::size_t>(bytes);
  Window& window = state_->windows.emplace_back();
  check_nccl(state_->context, ncclMemAlloc(&window.buffer, size), "ncclMemAlloc");
  check_nccl(state_->context,
             ncclCommWindowRegister(communicator, window.buffer, size, &window.window,
                                    NCCL_WIN_COLL_SYMMETRIC),
             "ncclCommWindowRegister");
  return window.buffer;
#else
  static_cast<void>(bytes);
  return nullptr;
#endif
}

void NcclCommunicator::abort() noexcept { state_->abort(); }

#else

struct NcclCommunicator::State {};
bool NcclCommunicator::available() { return false; }
std::string NcclCommunicator::version() { return {}; }
NcclCommunicator::NcclCommunicator(const RankContext&) {
  throw RunError("body.all_reduce = \"nccl\": this build has no NCCL; configure with it present");
}
NcclCommunicator::~NcclCommunicator() = default;
void NcclCommunicator::all_reduce(const void*, void*, std::int64_t, cudaStream_t) {}
void* NcclCommunicator::registered_buffer(std::int64_t) { return nullptr; }
void NcclCommunicator::abort() noexcept {}

#endif

}  // namespace tpjitter
