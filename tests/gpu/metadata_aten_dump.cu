// Runs the op-by-op path on the GPU over the tests' seeded cases and writes inputs and outputs as
// .npy files, one folder a case and phase: what scripts/verify_with_pytorch.py compares with
// PyTorch's own operations. Usage: metadata_aten_dump DIRECTORY
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/gpu/device_ops.h"
#include "tests/gpu/metadata_device_case.h"

namespace {

using namespace tpjitter;
using namespace tpjitter::kernels;
using namespace tpjitter::test;

constexpr const char* kPhases[] = {"normal_decode", "draft_decode", "target_verify",
                                   "draft_extend_cumsum", "draft_extend_strided"};

// NumPy format 1.0: magic, header length, a Python dict padded to 64 bytes, then the values.
void write_npy(const std::filesystem::path& file, const void* data, std::size_t count, int width) {
  std::string header = std::string("{'descr': '<i") + std::to_string(width) +
                       "', 'fortran_order': False, 'shape': (" + std::to_string(count) + ",), }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::ofstream out(file, std::ios::binary);
  const char size[2] = {static_cast<char>(header.size() & 255),
                        static_cast<char>(header.size() >> 8)};
  out.write("\x93NUMPY\x01\x00", 8).write(size, 2);
  out << header;
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(count * width));
  if (!out) throw std::runtime_error(file.string() + ": cannot be written");
}

template <class T>
void write_npy(const std::filesystem::path& file, const std::vector<T>& values) {
  write_npy(file, values.data(), values.size(), sizeof(T));
}

void write_npy(const std::filesystem::path& file, const std::vector<std::byte>& bytes,
               IntType type) {
  const int width = static_cast<int>(type);
  write_npy(file, bytes.data(), bytes.size() / width, width);
}

void write_inputs(const std::filesystem::path& folder, const MetadataCase& c, DecodePhase phase) {
  const DecodeMetadataArgs& s = c.scalars;
  const nlohmann::json json{{"name", c.name},
                            {"phase", kPhases[static_cast<int>(phase)]},
                            {"batch_size", s.batch_size},
                            {"page_size", s.page_size},
                            {"max_seq_pages", s.max_seq_pages},
                            {"seqlen_offset", s.seqlen_offset},
                            {"q_stride", s.q_stride},
                            {"pool_rows", c.pool_rows},
                            {"req_to_token_stride", s.req_to_token_stride},
                            {"page_table_stride", s.page_table_stride},
                            {"swa_page_table_stride", s.swa_page_table_stride},
                            {"swa_out_len", s.swa_out_len},
                            {"num_out_tokens", s.num_out_tokens},
                            {"swa", c.has_swa()},
                            {"has_out_cache_loc", c.has_out_cache_loc}};
  std::ofstream(folder / "case.json") << json.dump(1) << "\n";
  write_npy(folder / "req_pool_indices.npy", c.req_pool_indices, s.req_pool_indices_type);
  write_npy(folder / "seq_lens.npy", c.seq_lens, s.seq_lens_type);
  write_npy(folder / "q_lens.npy", c.q_lens, s.q_lens_type);
  write_npy(folder / "req_to_token.npy", c.req_to_token);
  write_npy(folder / "full_to_swa.npy", c.full_to_swa);
  write_npy(folder / "out_cache_loc.npy", c.out_cache_loc);
  write_npy(folder / "seq_lens_cpu.npy", c.seq_lens_cpu);
}

void write_outputs(const std::filesystem::path& folder, const std::string& prefix,
                   const MetadataOutputs& out) {
  const auto file = [&](const char* name) { return folder / (prefix + name + ".npy"); };
  write_npy(file("cache_seqlens"), out.cache_seqlens);
  write_npy(file("cu_seqlens_k"), out.cu_seqlens_k);
  write_npy(file("cu_seqlens_q"), out.cu_seqlens_q);
  write_npy(file("page_table"), out.page_table);
  write_npy(file("swa_page_table"), out.swa_page_table);
  write_npy(file("swa_out_cache_loc"), out.swa_out_cache_loc);
}

int dump(const std::filesystem::path& directory) {
  const TestStream stream;
  int folders = 0;
  for (const MetadataCase& random : random_cases()) {
    const MetadataCase c = fit_for_aten(random);
    if (c.scalars.batch_size == 0) continue;
    for (const DecodePhase phase : aten_phases(c)) {
      DeviceCase device(c);
      DeviceOps ops(stream.get());
      check_cuda(rebuild_metadata_aten(*ops, phase, device.aten_args()));
      check_cuda(cudaStreamSynchronize(stream.get()));
      char name[32];
      std::snprintf(name, sizeof name, "%04d", folders++);
      std::filesystem::create_directories(directory / name);
      write_inputs(directory / name, c, phase);
      write_outputs(directory / name, "before_", poisoned_outputs(c));
      write_outputs(directory / name, "after_", device.outputs());
    }
  }
  return folders;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: metadata_aten_dump DIRECTORY\n");
    return 2;
  }
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "metadata_aten_dump: no GPU\n");
    return 77;
  }
  try {
    std::printf("%d cases\n", dump(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "metadata_aten_dump: %s\n", error.what());
    return 3;
  }
  return 0;
}
