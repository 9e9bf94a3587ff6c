// The recorder: a call opens an entry, the primitives under it add to its counts, its return fills
// in dtype and shape.
#include "kernels/tensor_ops_recording.h"

namespace tpjitter::kernels {

const char* operation_kind_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::kView:
      return "view";
    case OperationKind::kHost:
      return "host";
    case OperationKind::kKernel:
      return "kernel";
    case OperationKind::kCopy:
      return "copy";
    case OperationKind::kSync:
      return "sync";
    case OperationKind::kGraph:
      return "graph";
  }
  return "unknown";
}

BlockSource AddressSource::block_source() {
  return {.allocate =
              [](void* context, std::size_t bytes) {
                auto* self = static_cast<AddressSource*>(context);
                const std::uintptr_t address = self->next_;
                self->next_ += bytes;
                return reinterpret_cast<void*>(address);
              },
          .free = [](void*, void*) {},
          .context = this};
}

OperationCounts RecordingTensorOps::counts() const {
  OperationCounts counts;
  for (const RecordedOperation& operation : operations_) {
    ++counts.calls;
    counts.kernel_launches += operation.kernel_launches;
    counts.copies += operation.copies;
    counts.syncs += operation.syncs;
  }
  return counts;
}

void RecordingTensorOps::on_call(const char* name, CallKind) {
  operations_.emplace_back();
  operations_.back().name = name;
}

void RecordingTensorOps::on_return(const Tensor& result) {
  RecordedOperation& operation = operations_.back();
  operation.dtype = result.dtype;
  operation.shape.assign(result.sizes, result.sizes + result.dims);
}

void RecordingTensorOps::add_launches(int launches) {
  operations_.back().kind = OperationKind::kKernel;
  operations_.back().kernel_launches += launches;
}

void RecordingTensorOps::run_copy(const Tensor&, const Tensor&) {
  operations_.back().kind = OperationKind::kCopy;
  ++operations_.back().copies;
}

std::int64_t RecordingTensorOps::read_scalar(const Tensor&) {
  operations_.back().kind = OperationKind::kSync;
  ++operations_.back().copies;
  ++operations_.back().syncs;
  return scalar_;
}

void RecordingTensorOps::read_to_host(const Tensor& tensor) { read_scalar(tensor); }

std::int64_t RecordingTensorOps::host_sum(const Tensor& tensor) { return host_max(tensor); }

std::int64_t RecordingTensorOps::host_max(const Tensor&) {
  operations_.back().kind = OperationKind::kHost;
  return scalar_;
}

std::int64_t RecordingTensorOps::host_item(const Tensor&) {
  operations_.back().kind = OperationKind::kHost;
  return scalar_;
}

}  // namespace tpjitter::kernels
