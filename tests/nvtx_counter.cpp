// An NVTX injection library, as profilers use: counts pushed ranges by name and leaves the counts,
// one "NAME COUNT" a line, in a file per process when it ends. Loaded through
// NVTX_INJECTION64_PATH; TPJITTER_NVTX_COUNTS names the folder.
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace {

std::map<std::string, long>& counts() {
  static std::map<std::string, long> map;  // a library has no main to own it
  return map;
}

int range_push(const char* name) {
  ++counts()[name];
  return 0;
}

void write_counts() {
  const char* folder = std::getenv("TPJITTER_NVTX_COUNTS");
  if (folder == nullptr) return;
  std::ofstream file(std::string(folder) + "/" + std::to_string(getpid()));
  for (const auto& [name, count] : counts()) file << name << ' ' << count << '\n';
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr) return 0;
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  if (size <= NVTX_CBID_CORE_RangePushA) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(range_push);
  counts();  // made before the handler is registered, so destroyed after it has run
  std::atexit(write_counts);
  return 1;
}
