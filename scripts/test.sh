#!/usr/bin/env bash
# Everything that must hold before a change lands: build, tests, both sanitizer builds, format and
# layers. Needs no GPU; where there is one, the GPU tests run too, else ctest lists them as skipped.
#   ./scripts/test.sh            all of it
#   ./scripts/test.sh --quick    the release build and its tests only
set -euo pipefail
cd "$(dirname "$0")/.."
quick="${1:-}"

need_setup=0
for program in cmake ninja g++ clang-format; do
  command -v "$program" > /dev/null || need_setup=1
done
for header in fmt/core.h nlohmann/json.hpp CLI/CLI.hpp toml++/toml.h gtest/gtest.h benchmark/benchmark.h; do
  [[ -e /usr/include/$header || -e /usr/local/include/$header ]] || need_setup=1
done
/usr/bin/python3 -c 'import numpy, jsonschema' 2> /dev/null || need_setup=1
if [[ $need_setup -eq 1 ]]; then ./scripts/setup.sh; fi

# One GPU architecture here: the tests of a change, not the binaries that users get.
architecture="${TPJITTER_CUDA_ARCHITECTURES:-90-real}"
jobs="$(nproc)"

echo "== format and layers"
clang_format="$(command -v clang-format-14 || command -v clang-format)"
if "$clang_format" --version | grep -q 'version 14\.'; then
  git ls-files -z '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 "$clang_format" --dry-run -Werror
else
  echo "format not checked: other versions than clang-format 14 format differently"
fi
./scripts/check_layers.sh

if [[ $quick != --quick ]]; then
  for preset in host-asan host-tsan; do
    echo "== $preset"
    cmake --preset "$preset"
    cmake --build --preset "$preset" -j "$jobs"
    ctest --preset "$preset"
  done
fi

if [[ $quick != --quick && ! -e /usr/include/ATen/ATen.h ]]; then
  echo "real ATen not checked: libtorch-dev is not installed"
elif [[ $quick != --quick ]]; then
  echo "== host-torch"
  cmake --preset host-torch
  cmake --build build-host-torch -j "$jobs" --target test_torch_rebuild
  ctest --test-dir build-host-torch -R '^torch_rebuild$' --no-tests=error --output-on-failure
fi

echo "== release"
# quickstart.sh builds into the same folder without tests and, where there is no GPU, without CUDA.
cmake --preset release -DTPJITTER_TESTS=ON -DTPJITTER_CUDA=AUTO \
  -DCMAKE_CUDA_ARCHITECTURES="$architecture"
cmake --build --preset release -j "$jobs"
ctest --preset release
