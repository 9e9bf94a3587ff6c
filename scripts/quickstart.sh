#!/usr/bin/env bash
# From a fresh machine to a first report: installs packages, builds into build/, runs the smoke
# scenario on GPUs where there are two, else on the host backend, and prints the report.
set -euo pipefail
cd "$(dirname "$0")/.."

./scripts/setup.sh

options=()
# Build for the GPUs at hand; where there are none, the default architectures would only cost time.
if command -v nvidia-smi > /dev/null && capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1)" && [[ $capability =~ ^[0-9]+\.[0-9]+$ ]]; then
  options+=("-DCMAKE_CUDA_ARCHITECTURES=${capability/./}-real")
  options+=("-DTPJITTER_CUDA=AUTO")
else
  options+=("-DTPJITTER_CUDA=OFF")
fi

cmake --preset release -DTPJITTER_TESTS=OFF "${options[@]}"
cmake --build --preset release -j "$(nproc)"

# The program knows whether its build and this machine can run the scenario's ranks on GPUs.
backend=host
if build/bin/tpjitter plan scenarios/smoke.toml --backend cuda > /dev/null 2>&1; then
  backend=cuda
fi
echo
echo "== tpjitter run scenarios/smoke.toml --backend $backend"
build/bin/tpjitter run scenarios/smoke.toml --backend "$backend"
