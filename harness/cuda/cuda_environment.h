// What the GPUs of this machine are, and whether a rank may use its own.
#pragma once

#include <string>
#include <vector>

#include "harness/backend.h"

namespace tpjitter {

// Before the first CUDA call of the process: lazy loading of a kernel waits for the device, which
// may be busy with a kernel that waits for a peer.
void load_modules_eagerly();

// Visible device of each rank: the one whose UUID the launcher has put into the rank's slot; a rank
// without one, which no launcher has started, takes the device of its number. Makes no context.
// Throws RunError for a UUID that is not visible.
std::vector<int> devices_of_ranks(const RankContext& context);

std::string gpu_name(int device);
std::string gpu_uuid(int device);  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"

// Returns the rank's device. Throws RunError with advice: rank without a GPU, compute mode that
// forbids peers, MPS.
int usable_device(const RankContext& context);

}  // namespace tpjitter
