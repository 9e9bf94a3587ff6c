#!/usr/bin/env bash
# Installs the packages that tpjitter is built, tested and read with, on Debian 12 and Ubuntu 24.04,
# and nothing else. CUDA and NCCL are taken as the machine has them: without them only the host
# backend is built.
set -euo pipefail

packages=(
  # build
  build-essential cmake ninja-build pkg-config git
  libfmt-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libboost-math-dev libsqlite3-dev libbenchmark-dev
  libjs-chart.js
  # tests
  libgtest-dev libgmock-dev python3 python3-numpy python3-jsonschema python3-pandas
  python3-selenium chromium chromium-driver
  clang-format
)

system="unknown"
if [[ -r /etc/os-release ]]; then
  # shellcheck disable=SC1091
  system="$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")"
fi
case "$system" in
  "debian 12") packages+=(libtorch-dev) ;;  # tests of real ATen
  "ubuntu 24.04") ;;
  *)
    echo "setup.sh: this is '$system'; packages are known for Debian 12 and Ubuntu 24.04 only." >&2
    echo "Install what corresponds to these yourself: ${packages[*]}" >&2
    exit 2
    ;;
esac

as_root=()
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo > /dev/null; then
    echo "setup.sh: packages are installed as root: run it as root or install sudo." >&2
    exit 2
  fi
  as_root=(sudo)
fi

echo "setup.sh: installing on $system: ${packages[*]}"
"${as_root[@]}" apt-get update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install --yes --no-install-recommends "${packages[@]}"

nvcc="$(command -v nvcc || true)"
if [[ -z $nvcc && -x /usr/local/cuda/bin/nvcc ]]; then nvcc=/usr/local/cuda/bin/nvcc; fi
if [[ -n $nvcc ]]; then
  echo "setup.sh: done; CUDA is taken as it is: $nvcc"
else
  echo "setup.sh: done; no nvcc found: the host backend will be built, the GPU backend will not"
fi
