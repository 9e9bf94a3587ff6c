// What GPU tests share: a fixture that skips without a device, checked CUDA calls, device arrays.
// gpu_test_main.cu holds main: exit 77 when everything was skipped, so that ctest says "skipped".
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tpjitter::test {

// 0 without a driver, and without a device. `reason` then says which.
int gpu_count(std::string* reason = nullptr);

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (gpu_count(&reason) == 0) GTEST_SKIP() << "no GPU: " << reason;
  }
};

inline void check_cuda(int status, std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(where.file_name()) + ":" + std::to_string(where.line()) +
                           ": " + cudaGetErrorString(static_cast<cudaError_t>(status)));
}

// A device array of exactly the given size, so that compute-sanitizer sees one element too many.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t size) : size_(size) {
    if (size > 0) check_cuda(cudaMalloc(&data_, size * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  void write(const std::vector<T>& values) {
    if (values.size() != size_) throw std::invalid_argument("DeviceArray: sizes differ");
    if (size_ == 0) return;
    check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    // From pageable memory the call may return before the last chunk has arrived, and the tests'
    // streams do not wait for the default one.
    check_cuda(cudaDeviceSynchronize());
  }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    if (size_ > 0) {
      check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    }
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// A stream of its own; non-blocking, so that nothing hides behind the default stream.
class TestStream {
 public:
  TestStream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void sync() const { check_cuda(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// What `enqueue` puts on the stream, as a graph.
class CapturedGraph {
 public:
  template <typename Enqueue>
  CapturedGraph(const TestStream& stream, Enqueue enqueue) {
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    check_cuda(cudaStreamEndCapture(stream.get(), &graph_));
    check_cuda(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~CapturedGraph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void replay(const TestStream& stream) const {
    check_cuda(cudaGraphLaunch(executable_, stream.get()));
    stream.sync();
  }
  int count_nodes(cudaGraphNodeType type) const {
    int count = 0;
    for (cudaGraphNode_t node : nodes()) {
      cudaGraphNodeType node_type;
      check_cuda(cudaGraphNodeGetType(node, &node_type));
      if (node_type == type) ++count;
    }
    return count;
  }
  int count_nodes() const { return static_cast<int>(nodes().size()); }

 private:
  std::vector<cudaGraphNode_t> nodes() const {
    std::size_t count = 0;
    check_cuda(cudaGraphGetNodes(graph_, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    if (count > 0) check_cuda(cudaGraphGetNodes(graph_, nodes.data(), &count));
    return nodes;
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tpjitter::test
