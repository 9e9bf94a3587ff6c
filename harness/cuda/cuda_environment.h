// What the GPUs of this machine are, and whether a rank may use its own.
#pragma once

#include <string>

#include "harness/backend.h"

namespace tpjitter {

// Before the first CUDA call of the process: lazy loading of a kernel waits for the device, which
// may be busy with a kernel that waits for a peer.
void load_modules_eagerly();

std::string gpu_name(int device);
std::string gpu_uuid(int device);  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"

// Throws RunError with advice: rank without a GPU, compute mode that forbids peers, MPS.
void check_device_usable(const RankContext& context);

}  // namespace tpjitter
