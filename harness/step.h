// The measured region: one decode step, in time order, the same source for both backends.
//
// Device is a backend's device side. It provides, none of which allocates, locks, logs or throws
// (but when the run fails):
//   wait_accept(step)        blocks until the host has seen the accept result of `step`;
//                            -1: nothing
//   check_device(step)       where another rank waits for the result of `step`: throws what an
//                            earlier launch failed with; a modelled device works off its timeline
//   copy_inputs(phase)       grouped copies into the persistent input buffers, and padding
//   rebuild_metadata(phase)  the path's host work; nothing for a path inside the graph; before the
//                            first phase also the legacy sync of seq_lens, where a case asks for it
//   launch_graph(graph)      cudaGraphLaunch, or with eager execution each kernel of the graph
//   stage_inputs(step)       computes the next step's inputs into a staging buffer, while the
//                            device runs; never inside a stamped part
#pragma once

#include <sched.h>
#include <sys/resource.h>

#include <cstdint>
#include <span>

#include "harness/clock.h"
#include "harness/contract/phase_row.h"
#include "harness/control.h"
#include "harness/coupling.h"
#include "harness/injection.h"
#include "harness/nvtx.h"
#include "harness/step_plan.h"

namespace tpjitter {

// What the host did to the timed thread since the last read. Read after the launches of a step,
// before waiting for its accept: it costs a system call.
class ThreadUsage {
 public:
  void read_into(PhaseRow& row) {
    rusage now{};
    getrusage(RUSAGE_THREAD, &now);
    row.context_switches_voluntary = static_cast<std::int32_t>(now.ru_nvcsw - last_.ru_nvcsw);
    row.context_switches_involuntary = static_cast<std::int32_t>(now.ru_nivcsw - last_.ru_nivcsw);
    row.faults_minor = static_cast<std::int32_t>(now.ru_minflt - last_.ru_minflt);
    row.faults_major = static_cast<std::int32_t>(now.ru_majflt - last_.ru_majflt);
    row.cpu = sched_getcpu();
    last_ = now;
  }

 private:
  rusage last_{};
};

struct StepContext {
  RankSlot* slot = nullptr;  // stage word, for the launcher's diagnosis
  StepPlan plan;
  Coupling coupling;
  std::int64_t run_ahead_depth = 0;  // steps whose results the host does not wait for; 0: coupled
  Injection injection;
  ThreadUsage usage;

  void at(Stage stage) {
    slot->stage.store(static_cast<std::int32_t>(stage), std::memory_order_relaxed);
  }
};

template <class Device>
void run_step(Device& device, StepContext& context, std::int64_t step, std::span<PhaseRow> rows) {
  const NvtxRange step_range("step");
  const std::int64_t delay_ns = context.injection.delay_ns(step);

  context.at(Stage::kCoupling);
  const std::int64_t coupling_begin_ns = now_ns();
  context.coupling.wait_accept(device, step - 1 - context.run_ahead_depth);
  const std::int64_t accept_seen_ns = now_ns();

  // Where nothing happens between two events they share a stamp.
  std::int64_t at_ns = accept_seen_ns;
  if (delay_ns > 0 && context.injection.where == InjectWhere::kBeforeDispatch) {
    at_ns = spin_until_ns(accept_seen_ns + delay_ns);
  }
  for (int phase = 0; phase < static_cast<int>(rows.size()); ++phase) {
    PhaseRow& row = rows[phase];
    const PlannedPhase& planned = context.plan.phases[phase];
    row.phase = static_cast<std::int32_t>(planned.phase);
    row.graph = planned.graph;
    row.coupling_begin_ns = coupling_begin_ns;
    row.accept_seen_ns = accept_seen_ns;
    row.injected_ns = delay_ns;

    context.at(Stage::kInputs);
    row.inputs_begin_ns = at_ns;
    {
      const NvtxRange range("inputs");
      device.copy_inputs(phase);
    }
    at_ns = now_ns();
    row.inputs_end_ns = row.dispatch_begin_ns = at_ns;

    context.at(Stage::kDispatch);
    {
      const NvtxRange range("rebuild");
      device.rebuild_metadata(phase);
    }
    at_ns = now_ns();
    row.dispatch_end_ns = at_ns;

    if (delay_ns > 0 && phase == 0 && context.injection.where == InjectWhere::kBeforeLaunch) {
      at_ns = spin_until_ns(at_ns + delay_ns);
    }

    if (!planned.launches) {  // its forward is in the graph of a later phase
      row.flags |= kFlagNoLaunch;
      continue;
    }
    context.at(Stage::kLaunch);
    row.launch_begin_ns = at_ns;
    {
      const NvtxRange range("launch");
      device.launch_graph(planned.graph);
    }
    at_ns = now_ns();
    row.launch_end_ns = at_ns;
  }

  device.stage_inputs(step + 1);
  context.usage.read_into(rows.front());
}

}  // namespace tpjitter
