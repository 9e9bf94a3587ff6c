#!/usr/bin/env bash
# Checks by their #include lines that the folders use only what their layer may use:
#   kernels/           std and CUDA (CUDA in *.cu and *.cuh only)
#   harness/contract/  std, POSIX, fmt, JSON, TOML
#   harness/           contract, kernels, NCCL, NVTX, fmt, JSON, CLI11; CUDA in harness/cuda and
#                      harness/microbench only, PyTorch in harness/torch only; reports/ in the
#                      program only (harness/main.cpp and its commands, harness/command_*.cpp)
#   reports/           contract, fmt, JSON, Boost, SQLite
#   tests/             everything; CUDA in tests/gpu only
# Prints each line that breaks a rule and exits 1. Usage: check_layers.sh [SOURCE_DIRECTORY]
set -euo pipefail
cd "${1:-"$(dirname "$0")/.."}"

folders=()
for folder in kernels harness reports tests; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
if [[ ${#folders[@]} -eq 0 ]]; then
  echo "check_layers.sh: no source folders in $PWD" >&2
  exit 2
fi

{ grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' "${folders[@]}" \
    --include='*.h' --include='*.cpp' --include='*.cuh' --include='*.cu' || true; } | awk '
function starts(text, prefix) { return substr(text, 1, length(prefix)) == prefix }

# The layer that an included header belongs to.
function layer_of(header, quoted) {
  if (starts(header, "harness/contract/")) return "contract"
  if (header ~ /^(kernels|harness|reports|tests|scenarios|scripts)\//) {
    return substr(header, 1, index(header, "/") - 1)
  }
  if (header ~ /^nccl/) return "NCCL"
  if (header ~ /^(cuda|cub|thrust|cooperative_groups|nv|cuda_[a-z0-9_]*)\// ||
      header ~ /^(cuda|cooperative_groups|cupti|nvml|nvrtc|nvJitLink|cublas|driver_types|vector_types)[A-Za-z0-9_]*\.(h|hpp|cuh)$/ ||
      header ~ /^(math_constants|mma|sm_[0-9_a-z]*|device_[a-z_]*)\.h$/) return "CUDA"
  if (header ~ /^(ATen|c10|torch)\//) return "PyTorch"
  if (starts(header, "nvtx3/")) return "NVTX"
  if (starts(header, "fmt/")) return "fmt"
  if (starts(header, "nlohmann/")) return "JSON"
  if (starts(header, "toml++/")) return "TOML"
  if (starts(header, "CLI/")) return "CLI11"
  if (starts(header, "boost/")) return "Boost"
  if (header ~ /^sqlite3/) return "SQLite"
  if (starts(header, "benchmark/")) return "benchmark"
  if (header ~ /^(gtest|gmock)\//) return "GoogleTest"
  if (quoted) return "unknown"
  if (header ~ /^[a-z0-9_]+$/) return "std"
  return "POSIX"
}

function allowed_in(file) {
  if (starts(file, "kernels/")) {
    return file ~ /\.cuh?$/ ? "std kernels CUDA" : "std kernels"
  }
  if (starts(file, "harness/contract/")) return "std POSIX contract fmt JSON TOML"
  if (starts(file, "harness/")) {
    any = "std POSIX contract kernels harness NVTX fmt JSON CLI11"
    if (file == "harness/main.cpp" || starts(file, "harness/command_")) return any " reports"
    if (starts(file, "harness/cuda/")) return any " CUDA NCCL"
    if (starts(file, "harness/microbench/")) return any " CUDA NCCL benchmark"
    if (starts(file, "harness/torch/")) return any " PyTorch"
    return any
  }
  if (starts(file, "reports/")) return "std POSIX contract reports fmt JSON Boost SQLite"
  any = "std POSIX contract kernels harness reports tests NVTX fmt JSON TOML CLI11 Boost SQLite GoogleTest"
  return starts(file, "tests/gpu/") ? any " CUDA NCCL" : any
}

{
  split($0, part, ":")
  file = part[1]
  place = file ":" part[2]
  text = substr($0, length(place) + 2)
  match(text, /[<"][^>"]*[>"]/)
  header = substr(text, RSTART + 1, RLENGTH - 2)
  quoted = substr(text, RSTART, 1) == "\""
  layer = layer_of(header, quoted)
  problem = ""
  if (layer == "unknown") {
    problem = "is not included by its path from the repository root"
  } else if (index(" " allowed_in(file) " ", " " layer " ") == 0) {
    problem = "(" layer ") is not for this layer; allowed: " allowed_in(file)
  } else if (layer == "fmt" && file !~ /\.cpp$/) {
    problem = "belongs in .cpp files only"
  }
  if (problem != "") {
    print place ": " header " " problem
    failed = 1
  }
}
END { exit failed }
'
