#include "harness/cuda/controls.h"

#include <algorithm>
#include <vector>

#include "harness/clock.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/drain.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"
#include "harness/leaf_tables.h"
#include "kernels/decode_body.h"

namespace tpjitter {
namespace {

constexpr int kEmptyLaunches = 256;
// All-reduces in a chain: each one lines the ranks up for the next. Even, so that replays go on
// alternating between the two input buffers.
constexpr int kChain = 64;
constexpr int kUnaligned = 8;  // first of a chain, left out: the ranks' launches differ
constexpr int kChains = 8;

void measure_empty_launches(const RankContext& context, cudaStream_t stream,
                            std::int64_t deadline_ns, RunControl& control) {
  const GraphExec empty =
      capture_graph(stream, [&] { check_cuda(kernels::launch_empty_node(stream)); });
  for (int i = 0; i < kEmptyLaunches; ++i) {
    const std::int64_t begin_ns = now_ns();
    const cudaError_t status = cudaGraphLaunch(empty.get(), stream);
    const std::int64_t end_ns = now_ns();
    check_cuda(status);
    control.empty_graph_launch_ns.push_back(end_ns - begin_ns);
    wait_for_stream(context, stream, deadline_ns, "an empty graph");
  }
}

}  // namespace

RunControl measure_controls(const RankContext& context, Communicator& communicator,
                            const CaseConfig& config, cudaStream_t stream) {
  RunControl control;
  control.all_reduce = config.all_reduce;
  // Of the step's last graph: decode's only one, in speculative mode target-verify's size too.
  control.all_reduce_bytes =
      body_shape(config, step_plan(config).phases.back(), context.world_size).all_reduce_elements *
      2;
  const std::int64_t deadline_ns = 2 * context.control->deadlines().device_ns;
  measure_empty_launches(context, stream, deadline_ns, control);

  const bool nccl = config.all_reduce == "nccl";
  const auto bytes = static_cast<std::size_t>(control.all_reduce_bytes);
  const DeviceBuffer<std::byte> output(bytes);
  const DeviceBuffer<std::byte> nccl_input(nccl ? bytes : 0);
  if (nccl) check_cuda(cudaMemset(nccl_input.data(), 0, bytes));
  DeviceBuffer<kernels::AllReduceStamp> stamps(kChain);
  DeviceBuffer<std::int64_t> entry(1);
  check_cuda(cudaMemset(entry.data(), 0, entry.size_bytes()));
  check_cuda(cudaMemset(stamps.data(), 0, stamps.size_bytes()));
  check_cuda(cudaDeviceSynchronize());  // memsets go before what other streams do
  kernels::StampRing ring;
  ring.all_reduces = stamps.data();
  ring.entry = entry.data();
  ring.all_reduces_per_replay = kChain;

  const auto enqueue = [&](int ordinal) {
    enqueue_all_reduce(config.all_reduce, communicator, ordinal, control.all_reduce_bytes,
                       nccl_input.data(), output.data(), ring, /*bracket=*/true,
                       /*pdl=*/false, stream);
  };
  const auto barrier = [&](const char* what) {
    context.control->barrier(context.rank, context.control->deadlines().prepare_ns, what);
  };
  if (nccl) {  // connects; would fail in a capture
    enqueue(0);
    wait_for_stream(context, stream, context.control->deadlines().prepare_ns, "NCCL's first call");
  }
  const GraphExec chain = capture_graph(stream, [&] {
    for (int n = 0; n < kChain; ++n) enqueue(n);
  });
  wait_for_stream(context, stream, deadline_ns, "graph upload");
  std::vector<kernels::AllReduceStamp> host(kChain);
  for (int i = 0; i < kChains; ++i) {
    barrier("zero-skew all-reduces");
    check_cuda(cudaGraphLaunch(chain.get(), stream));
    wait_for_stream(context, stream, deadline_ns, "zero-skew all-reduces");
    communicator.check_fault(-1, "zero-skew all-reduces");
    check_cuda(cudaMemcpy(host.data(), stamps.data(), stamps.size_bytes(), cudaMemcpyDeviceToHost));
    if (i == 0) continue;  // warm-up
    for (int n = kUnaligned; n < kChain; ++n) {
      const LastSeen last = last_seen(host[n], context.rank, context.world_size);
      control.zero_skew_all_reduce_ns.push_back(host[n].end_ns - host[n].own_ns);
      // nccl has no stamp of its own inside; alone there is nobody to wait for.
      if (!nccl && last.peer >= 0) {
        control.zero_skew_wait_ns.push_back(last.seen_ns - host[n].own_ns);
      }
    }
  }
  barrier("controls done");
  return control;
}

}  // namespace tpjitter
