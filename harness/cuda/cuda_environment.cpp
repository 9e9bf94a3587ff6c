#include "harness/cuda/cuda_environment.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "harness/contract/error.h"
#include "harness/cuda/cuda_backend.h"
#include "harness/cuda/cuda_check.h"
#include "harness/cuda/nccl_communicator.h"
#include "harness/cuda/nvml.h"

namespace tpjitter {
namespace {

// Around the launcher's calls into the driver: threads that it starts take no signals, else one of
// them would end the program at Ctrl-C before the launcher could say what was recorded.
class NoSignalsForNewThreads {
 public:
  NoSignalsForNewThreads() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignalsForNewThreads() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignalsForNewThreads(const NoSignalsForNewThreads&) = delete;
  NoSignalsForNewThreads& operator=(const NoSignalsForNewThreads&) = delete;

 private:
  sigset_t before_{};
};

std::string version_text(int code) {  // 13000 is 13.0
  return fmt::format("{}.{}", code / 1000, code % 1000 / 10);
}

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device));
  return properties;
}

std::optional<std::string> pci_bus_id(int device) {
  char id[32] = {};
  if (cudaDeviceGetPCIBusId(id, sizeof id, device) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  std::string text = id;
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, what, device));
  return value;
}

Json describe_gpu(int device, const Nvml& nvml) {
  const cudaDeviceProp properties = properties_of(device);
  Json gpu;
  gpu["index"] = device;
  gpu["name"] = properties.name;
  gpu["uuid"] = gpu_uuid(device);
  gpu["compute_capability"] = fmt::format("{}.{}", properties.major, properties.minor);
  gpu["sms"] = properties.multiProcessorCount;
  gpu["memory_bytes"] = static_cast<std::int64_t>(properties.totalGlobalMem);
  gpu["l2_bytes"] = properties.l2CacheSize;
  gpu["ecc"] = properties.ECCEnabled != 0;
  const int mode = attribute(cudaDevAttrComputeMode, device);
  gpu["compute_mode"] = mode == cudaComputeModeDefault      ? "default"
                        : mode == cudaComputeModeProhibited ? "prohibited"
                                                            : "exclusive";
  gpu["mps"] = attribute(cudaDevAttrMpsEnabled, device) != 0;
  if (const auto id = pci_bus_id(device)) {
    gpu["pci_bus_id"] = *id;
    nvml.describe(*id, gpu);
  }
  const auto node = cuda_numa_node(device);
  gpu["numa_node"] = node ? Json(*node) : Json(nullptr);
  return gpu;
}

}  // namespace

void load_modules_eagerly() { setenv("CUDA_MODULE_LOADING", "EAGER", 1); }

std::string gpu_name(int device) { return properties_of(device).name; }

std::string gpu_uuid(int device) {
  const cudaDeviceProp properties = properties_of(device);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

std::vector<int> devices_of_ranks(const RankContext& context) {
  std::string reason;
  const int visible = cuda_capacity(&reason);
  std::vector<std::string> uuids;
  for (int device = 0; device < visible; ++device) uuids.push_back(gpu_uuid(device));
  std::vector<int> devices;
  for (int rank = 0; rank < context.world_size; ++rank) {
    const std::string uuid = context.control->rank(rank).uuid;
    if (uuid.empty() && rank < visible) {
      devices.push_back(rank);
      continue;
    }
    const auto at = std::find(uuids.begin(), uuids.end(), uuid);
    if (at == uuids.end()) {
      throw RunError(
          fmt::format("rank {}: {} GPUs are visible to {} ranks{}{}; lower --world-size, check "
                      "CUDA_VISIBLE_DEVICES, or use --backend host",
                      rank, visible, context.world_size, visible == 0 ? " (" + reason + ")" : "",
                      uuid.empty() ? "" : ", and " + uuid + " is none of them"));
    }
    devices.push_back(static_cast<int>(at - uuids.begin()));
  }
  return devices;
}

int usable_device(const RankContext& context) {
  const int device = devices_of_ranks(context)[context.rank];
  const int mode = attribute(cudaDevAttrComputeMode, device);
  if (mode != cudaComputeModeDefault) {
    throw RunError(fmt::format(
        "rank {}: GPU {} is in {} compute mode, in which peers cannot open its memory; set it to "
        "default with `nvidia-smi -c 0`",
        context.rank, device, mode == cudaComputeModeProhibited ? "prohibited" : "exclusive"));
  }
  if (attribute(cudaDevAttrMpsEnabled, device) != 0) {
    throw RunError(fmt::format(
        "rank {}: GPU {} is shared through MPS, which would be measured too; stop the MPS daemon",
        context.rank, device));
  }
  if (gpu_name(device).find("MIG") != std::string::npos) {
    throw RunError(
        fmt::format("rank {}: device {} is a MIG slice, which has no peers; run on whole GPUs",
                    context.rank, device));
  }
  return device;
}

int cuda_capacity(std::string* reason) {
  const NoSignalsForNewThreads guard;
  load_modules_eagerly();
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) {
    cudaGetLastError();  // so that a later check does not see it
    int driver = 0;
    cudaDriverGetVersion(&driver);
    *reason = fmt::format("no GPU: {}",
                          driver == 0 ? "no NVIDIA driver is loaded" : cudaGetErrorString(status));
    return 0;
  }
  *reason = devices == 0 ? "no GPU: no device is visible"
                         : fmt::format("{} GPU{} visible", devices, devices == 1 ? "" : "s");
  return devices;
}

std::optional<int> cuda_numa_node(int rank) {
  const NoSignalsForNewThreads guard;
  load_modules_eagerly();
  const auto id = pci_bus_id(rank);
  if (!id) return std::nullopt;
  std::ifstream file(fmt::format("/sys/bus/pci/devices/{}/numa_node", *id));
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

std::vector<std::pair<int, int>> gpus_without_peer_access(int world_size) {
  const NoSignalsForNewThreads guard;
  std::vector<std::pair<int, int>> pairs;
  for (int a = 0; a < world_size; ++a) {
    for (int b = 0; b < world_size; ++b) {
      int reachable = 0;
      if (a == b || cudaDeviceCanAccessPeer(&reachable, a, b) != cudaSuccess) continue;
      if (reachable == 0) pairs.emplace_back(a, b);
    }
  }
  cudaGetLastError();
  return pairs;
}

void describe_cuda(Json& environment, Json& versions) {
  const NoSignalsForNewThreads guard;
  std::string reason;
  const int devices = cuda_capacity(&reason);
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  versions["cuda_runtime"] = version_text(runtime);
  versions["cuda_driver"] = driver == 0 ? Json(nullptr) : Json(version_text(driver));
  const std::string nccl = NcclCommunicator::version();
  versions["nccl"] = nccl.empty() ? Json(nullptr) : Json(nccl);

  const Nvml nvml;
  const auto nvidia_driver = nvml.driver_version();
  versions["nvidia_driver"] = nvidia_driver ? Json(*nvidia_driver) : Json(nullptr);
  environment["gpus"] = Json::array();
  for (int device = 0; device < devices; ++device) {
    environment["gpus"].push_back(describe_gpu(device, nvml));
  }
  environment["gpus_without_peer_access"] = Json::array();
  for (const auto& [a, b] : gpus_without_peer_access(devices)) {
    environment["gpus_without_peer_access"].push_back({a, b});
  }
}

}  // namespace tpjitter
