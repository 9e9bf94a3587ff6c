// The metadata of a case on a GPU: its composition over leaves whose tables are device memory. A
// leaf's hooks launch on the stream given last; while that stream captures, they record.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/cuda/handles.h"
#include "harness/leaf_tables.h"
#include "kernels/tensor_ops.h"

namespace tpjitter {

class DeviceTableMemory final : public TableMemory {
 public:
  void* allocate(std::size_t bytes) override;
  void fill(void* to, unsigned char value, std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from, std::size_t bytes) override;

 private:
  std::vector<DeviceBuffer<std::byte>> blocks_;
};

class CudaMetadata {
 public:
  // `arrays` by phase. `accept_lens_cpu`: the host's list of accepted lengths. All outlive it.
  CudaMetadata(const CaseConfig& config, const StepPlan& plan, const ServingShape& shape,
               const std::vector<PhaseArrays>& arrays, const std::int32_t* accept_lens_cpu);
  ~CudaMetadata();

  MetadataBackend& composition() { return *composition_; }
  // Where hooks launch, and the operations of the paths that have several; null: only binds at
  // capture.
  void launch_on(cudaStream_t stream, kernels::TensorOps* ops);
  cudaStream_t stream() const { return stream_; }
  kernels::TensorOps* ops() const { return ops_; }
  // As if the case had this path. Of a glue graph, out_graph is what the graph holds.
  void set_path(const MetadataPath& path) { path_ = &path; }
  const MetadataPath& path() const { return *path_; }

  // The forwards of a run of layers, as captured for its batch size.
  kernels::GraphForward forward(const LayerRun& run);
  LeafTables& tables(const TableRows& rows);
  DeviceTableMemory& memory() { return memory_; }
  void poison();  // the device idle
  // First bad status of a launch since the last call; cudaSuccess: none.
  int take_status();

 private:
  class Leaf;
  struct Leaves;

  const StepPlan& plan_;
  const MetadataPath* path_;
  bool has_torch_;  // the case has a path that needs PyTorch, in this build
  cudaStream_t stream_ = nullptr;
  kernels::TensorOps* ops_ = nullptr;
  int status_ = cudaSuccess;
  DeviceTableMemory memory_;
  std::unique_ptr<Leaves> leaves_;
  std::unique_ptr<MetadataBackend> composition_;
};

}  // namespace tpjitter
