// Making, binding and comparing metadata cases.
#include "tests/metadata_cases.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/array_difference.h"
#include "tests/npy_arrays.h"

namespace tpjitter::test {

using kernels::DecodeMetadataArgs;
using kernels::DecodePhase;
using kernels::IntType;
using kernels::PageColumns;
using kernels::QueryMode;

namespace {

constexpr std::int32_t kStridePadding = 3;  // columns; as in the golden cases

std::vector<std::byte> to_bytes(const std::vector<std::int64_t>& values, IntType type) {
  const std::size_t width = static_cast<std::size_t>(type);
  std::vector<std::byte> bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<std::int32_t>(values[i]);
    const void* source = type == IntType::kInt64 ? static_cast<const void*>(&values[i]) : &narrow;
    std::memcpy(bytes.data() + i * width, source, width);
  }
  return bytes;
}

std::vector<std::int64_t> to_values(const std::vector<std::byte>& bytes, IntType type) {
  const std::size_t width = static_cast<std::size_t>(type);
  std::vector<std::int64_t> values(bytes.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int32_t narrow = 0;
    if (type == IntType::kInt64) {
      std::memcpy(&values[i], bytes.data() + i * width, width);
    } else {
      std::memcpy(&narrow, bytes.data() + i * width, width);
      values[i] = narrow;
    }
  }
  return values;
}

// What follows from the sizes already set.
void complete(MetadataCase& c) {
  DecodeMetadataArgs& s = c.scalars;
  s.page_table_stride = s.max_seq_pages + kStridePadding;
  s.swa_page_table_stride = c.has_swa() ? s.max_seq_pages + kStridePadding + 2 : 0;
  for (std::int64_t i = 0; i < s.max_seq_pages; ++i) c.strided_indices.push_back(i * s.page_size);
}

std::int64_t floor_quotient(std::int64_t value, std::int64_t divisor) {
  return value >= 0 ? value / divisor : -((-value + divisor - 1) / divisor);
}

GoldenCase load_golden_case(const std::filesystem::path& folder) {
  std::ifstream stream(folder / "case.json");
  const nlohmann::json json = nlohmann::json::parse(stream);
  const auto read = [&](const char* array) {
    return read_npy(folder / (std::string(array) + ".npy"));
  };
  const auto type_of = [](const NpyArray& array) {
    return array.is_int64 ? IntType::kInt64 : IntType::kInt32;
  };
  GoldenCase golden;
  MetadataCase& c = golden.inputs;
  DecodeMetadataArgs& s = c.scalars;
  c.name = json.at("name");
  s.batch_size = json.at("batch_size");
  s.page_size = json.at("page_size");
  s.max_seq_pages = json.at("max_seq_pages");
  s.seqlen_offset = json.at("seqlen_offset");
  s.q_stride = json.at("q_stride");
  s.swa_out_len = json.at("swa_out_len");
  s.req_to_token_stride = json.at("max_context");
  golden.negative_slot = json.at("negative_slot");
  const NpyArray indices = read("req_pool_indices");
  c.req_pool_indices = indices.bytes;
  s.req_pool_indices_type = type_of(indices);
  const NpyArray seq_lens = read("seq_lens");
  c.seq_lens = seq_lens.bytes;
  s.seq_lens_type = type_of(seq_lens);
  c.seq_lens_cpu = seq_lens.as_int64();
  const NpyArray slots = read("req_to_token");
  c.req_to_token = slots.as_int32();
  c.pool_rows = slots.shape.at(0);
  const std::string q_mode = json.at("q_mode");
  if (q_mode == "cumsum") {
    s.q_mode = QueryMode::kCumsum;
    const NpyArray q_lens = read("qlens");
    c.q_lens = q_lens.bytes;
    s.q_lens_type = type_of(q_lens);
  } else if (q_mode == "strided") {
    s.q_mode = QueryMode::kStrided;
  }
  if (q_mode != "none") golden.cu_seqlens_q = read("expected_cu_seqlens_q").as_int32();
  if (json.at("swa")) {
    c.full_to_swa = read("full_to_swa_mapping").as_int64();
    golden.swa_page_table = read("expected_swa_page_table").as_int32();
    golden.swa_out_cache_loc = read("expected_swa_out_cache_loc").as_int64();
  }
  if (json.at("out_cache_loc") != "none") {
    c.has_out_cache_loc = true;
    c.out_cache_loc = read("out_cache_loc").as_int64();
    s.num_out_tokens = static_cast<std::int64_t>(c.out_cache_loc.size());
  }
  golden.cache_seqlens = read("expected_cache_seqlens").as_int32();
  golden.cu_seqlens_k = read("expected_cu_seqlens_k").as_int32();
  golden.page_table = read("expected_page_table").as_int32();
  complete(c);
  return golden;
}

}  // namespace

std::vector<GoldenCase> load_golden_cases() {
  std::vector<std::filesystem::path> folders;
  const std::filesystem::path root = TPJITTER_SOURCE_DIR "/tests/golden/metadata";
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  std::vector<GoldenCase> cases;
  for (const auto& folder : folders) cases.push_back(load_golden_case(folder));
  return cases;
}

MetadataCase make_random_case(const CaseSizes& sizes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  MetadataCase c;
  DecodeMetadataArgs& s = c.scalars;
  s.batch_size = sizes.batch_size;
  s.page_size = sizes.page_size;
  s.max_seq_pages = sizes.max_seq_pages;
  s.seqlen_offset = sizes.seqlen_offset;
  s.q_mode = sizes.q_mode;
  s.q_stride = sizes.q_mode == QueryMode::kStrided ? 4 : 0;
  s.req_pool_indices_type = below(2) == 0 ? IntType::kInt32 : IntType::kInt64;
  s.seq_lens_type = below(2) == 0 ? IntType::kInt32 : IntType::kInt64;
  s.q_lens_type = below(2) == 0 ? IntType::kInt32 : IntType::kInt64;
  const std::int64_t context = std::int64_t{sizes.max_seq_pages} * sizes.page_size;
  s.req_to_token_stride = context + below(3);
  c.pool_rows = sizes.pool_rows > 0 ? sizes.pool_rows : sizes.batch_size + 2;
  const std::int64_t num_slots = std::clamp<std::int64_t>(c.pool_rows * context, 256, 1 << 22);

  // Row 0 is the padding row: slot 0 throughout.
  c.req_to_token.resize(static_cast<std::size_t>(c.pool_rows * s.req_to_token_stride));
  for (std::size_t i = static_cast<std::size_t>(s.req_to_token_stride); i < c.req_to_token.size();
       ++i) {
    c.req_to_token[i] = static_cast<std::int32_t>(below(num_slots));
    if (sizes.negative_slots && below(5) == 0) {
      c.req_to_token[i] = static_cast<std::int32_t>(-1 - below(below(2) == 0 ? 1 : 200));
    }
  }
  const std::int64_t padded = below(3) == 0 ? below(s.batch_size + 1) : 0;
  std::vector<std::int64_t> indices, q_lens;
  for (std::int64_t row = 0; row < s.batch_size; ++row) {
    const bool is_padding = row >= s.batch_size - padded;
    indices.push_back(is_padding ? 0 : 1 + below(c.pool_rows - 1));
    std::int64_t tokens = is_padding ? 1 : below(context + 1);
    // A page boundary, one less, one more; now and then past the width.
    if (!is_padding && below(2) == 0) {
      tokens = (1 + below(s.max_seq_pages)) * s.page_size + below(3) - 1;
    }
    if (!is_padding && below(16) == 0) tokens = context + 1 + below(100);
    c.seq_lens_cpu.push_back(tokens);
    q_lens.push_back(below(9));
  }
  c.req_pool_indices = to_bytes(indices, s.req_pool_indices_type);
  c.seq_lens = to_bytes(c.seq_lens_cpu, s.seq_lens_type);
  if (s.q_mode == QueryMode::kCumsum) c.q_lens = to_bytes(q_lens, s.q_lens_type);
  if (sizes.swa) {
    c.full_to_swa.resize(static_cast<std::size_t>(num_slots + s.page_size + 1));
    for (std::int64_t& slot : c.full_to_swa) slot = below(8) == 0 ? -1 : below(num_slots);
    c.full_to_swa.back() = -1;
    s.swa_out_len = s.batch_size + below(1200);
    c.has_out_cache_loc = below(4) != 0;
    if (c.has_out_cache_loc) {
      s.num_out_tokens = std::max<std::int64_t>(1, s.swa_out_len + below(21) - 10);
      for (std::int64_t i = 0; i < s.num_out_tokens; ++i) {
        c.out_cache_loc.push_back(i == 0 || below(9) == 0 ? -1 : below(num_slots));
      }
    }
  }
  c.name = "seed" + std::to_string(seed) + "_bs" + std::to_string(s.batch_size) + "_page" +
           std::to_string(s.page_size) + "_width" + std::to_string(s.max_seq_pages) + "_offset" +
           std::to_string(s.seqlen_offset) + "_q" + std::to_string(static_cast<int>(s.q_mode)) +
           (sizes.swa ? "_swa" : "");
  complete(c);
  return c;
}

std::vector<MetadataCase> random_cases() {
  constexpr std::int32_t kBatches[] = {0, 1, 3, 8, 17, 33, 257, 1025};
  constexpr std::int32_t kPages[] = {1, 2, 16, 64, 128, 256};
  constexpr std::int32_t kOffsets[] = {0, 1, 4};
  constexpr std::int64_t kMaxPoolEntries = 1 << 20;  // keeps the whole list under a second or two
  std::mt19937_64 random(20261129);
  std::vector<MetadataCase> cases;
  for (const std::int32_t batch : kBatches) {
    for (const std::int32_t page : kPages) {
      for (const QueryMode q_mode : {QueryMode::kPreset, QueryMode::kCumsum, QueryMode::kStrided}) {
        for (const bool swa : {false, true}) {
          const std::int64_t widest =
              std::clamp<std::int64_t>(kMaxPoolEntries / ((batch + 2) * page), 1, 40);
          CaseSizes sizes;
          sizes.batch_size = batch;
          sizes.page_size = page;
          sizes.max_seq_pages =
              1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(widest));
          sizes.seqlen_offset = kOffsets[random() % 3];
          sizes.q_mode = q_mode;
          sizes.swa = swa;
          sizes.negative_slots = random() % 3 == 0;
          cases.push_back(make_random_case(sizes, random() % 1000000));
        }
      }
    }
  }
  return cases;
}

MetadataCase with_new_values(MetadataCase c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const DecodeMetadataArgs& s = c.scalars;
  const auto shuffle_bytes = [&](std::vector<std::byte>& bytes, IntType type) {
    std::vector<std::int64_t> values = to_values(bytes, type);
    std::shuffle(values.begin(), values.end(), random);
    bytes = to_bytes(values, type);
  };
  shuffle_bytes(c.req_pool_indices, s.req_pool_indices_type);
  shuffle_bytes(c.q_lens, s.q_lens_type);
  std::shuffle(c.seq_lens_cpu.begin(), c.seq_lens_cpu.end(), random);
  c.seq_lens = to_bytes(c.seq_lens_cpu, s.seq_lens_type);
  const auto padding_row = static_cast<std::ptrdiff_t>(s.req_to_token_stride);
  std::shuffle(c.req_to_token.begin() + padding_row, c.req_to_token.end(), random);
  if (c.has_swa()) std::shuffle(c.full_to_swa.begin(), c.full_to_swa.end() - 1, random);
  std::shuffle(c.out_cache_loc.begin(), c.out_cache_loc.end(), random);
  return c;
}

MetadataCase with_types(MetadataCase c, IntType seq_lens, IntType indices, IntType q_lens) {
  DecodeMetadataArgs& s = c.scalars;
  c.seq_lens = to_bytes(c.seq_lens_cpu, seq_lens);
  c.req_pool_indices = to_bytes(to_values(c.req_pool_indices, s.req_pool_indices_type), indices);
  c.q_lens = to_bytes(to_values(c.q_lens, s.q_lens_type), q_lens);
  s.seq_lens_type = seq_lens;
  s.req_pool_indices_type = indices;
  s.q_lens_type = q_lens;
  return c;
}

MetadataOutputs poisoned_outputs(const MetadataCase& c) {
  const DecodeMetadataArgs& s = c.scalars;
  const auto rows = static_cast<std::size_t>(s.batch_size);
  MetadataOutputs outputs;
  outputs.cache_seqlens.assign(rows, kPoison);
  outputs.cu_seqlens_k.assign(rows + 1, kPoison);
  outputs.cu_seqlens_k[0] = 0;
  if (s.q_mode != QueryMode::kPreset) {
    outputs.cu_seqlens_q.assign(rows + 1, kPoison);
    outputs.cu_seqlens_q[0] = 0;
  }
  outputs.page_table.assign(rows * static_cast<std::size_t>(s.page_table_stride), kPoison);
  if (c.has_swa()) {
    outputs.swa_page_table.assign(rows * static_cast<std::size_t>(s.swa_page_table_stride),
                                  kPoison);
    outputs.swa_out_cache_loc.assign(static_cast<std::size_t>(s.swa_out_len), kSwaOutPoison);
  }
  return outputs;
}

DecodeMetadataArgs bind(const MetadataCase& c, MetadataOutputs& outputs) {
  DecodeMetadataArgs args = c.scalars;
  args.req_pool_indices = c.req_pool_indices.data();
  args.seq_lens = c.seq_lens.data();
  args.req_to_token = c.req_to_token.data();
  args.q_lens = c.q_lens.empty() ? nullptr : c.q_lens.data();
  args.cache_seqlens = outputs.cache_seqlens.data();
  args.cu_seqlens_k = outputs.cu_seqlens_k.data();
  args.cu_seqlens_q = outputs.cu_seqlens_q.empty() ? nullptr : outputs.cu_seqlens_q.data();
  args.page_table = outputs.page_table.data();
  if (c.has_swa()) {
    args.full_to_swa = c.full_to_swa.data();
    args.out_cache_loc = c.has_out_cache_loc ? c.out_cache_loc.data() : nullptr;
    args.swa_page_table = outputs.swa_page_table.data();
    args.swa_out_cache_loc = outputs.swa_out_cache_loc.data();
  }
  return args;
}

kernels::AtenMetadataArgs bind_aten(const MetadataCase& c, MetadataOutputs& outputs) {
  kernels::AtenMetadataArgs args;
  args.metadata = bind(c, outputs);
  args.seq_lens_cpu = c.seq_lens_cpu.data();
  args.strided_indices = c.strided_indices.data();
  args.pool_rows = c.pool_rows;
  args.full_to_swa_len = static_cast<std::int64_t>(c.full_to_swa.size());
  return args;
}

MetadataOutputs reference_outputs(const MetadataCase& c, PageColumns columns) {
  MetadataOutputs outputs = poisoned_outputs(c);
  DecodeMetadataArgs args = bind(c, outputs);
  args.page_columns = columns;
  kernels::reference_decode_metadata(args);
  return outputs;
}

MetadataOutputs aten_outputs(const MetadataCase& c) {
  MetadataOutputs outputs = poisoned_outputs(c);
  const DecodeMetadataArgs& s = c.scalars;
  const MetadataOutputs reference = reference_outputs(c, PageColumns::kAll);
  outputs.cache_seqlens = reference.cache_seqlens;
  outputs.cu_seqlens_k = reference.cu_seqlens_k;
  outputs.cu_seqlens_q = reference.cu_seqlens_q;
  if (c.has_out_cache_loc) outputs.swa_out_cache_loc = reference.swa_out_cache_loc;
  const std::vector<std::int64_t> indices = to_values(c.req_pool_indices, s.req_pool_indices_type);
  std::int64_t longest = 0;
  for (const std::int32_t tokens : outputs.cache_seqlens)
    longest = std::max<std::int64_t>(longest, tokens);
  const std::int64_t pages = (longest + s.page_size - 1) / s.page_size;
  for (std::int64_t row = 0; row < s.batch_size; ++row) {
    for (std::int64_t column = 0; column < pages; ++column) {
      const std::int64_t at = indices[row] * s.req_to_token_stride + column * s.page_size;
      const std::int64_t slot = c.req_to_token[at];
      outputs.page_table[row * s.page_table_stride + column] =
          static_cast<std::int32_t>(floor_quotient(slot, s.page_size));
      if (!c.has_swa()) continue;
      const auto size = static_cast<std::int64_t>(c.full_to_swa.size());
      const std::int64_t swa_slot = c.full_to_swa[slot < 0 ? slot + size : slot];
      outputs.swa_page_table[row * s.swa_page_table_stride + column] =
          static_cast<std::int32_t>(floor_quotient(swa_slot, s.page_size));
    }
  }
  return outputs;
}

std::vector<DecodePhase> aten_phases(const MetadataCase& c) {
  switch (c.scalars.q_mode) {
    case QueryMode::kCumsum:
      return {DecodePhase::kDraftExtendCumsum};
    case QueryMode::kStrided:
      return {DecodePhase::kDraftExtendStrided};
    case QueryMode::kPreset:
      break;
  }
  if (c.scalars.seqlen_offset == 0) return {DecodePhase::kNormalDecode, DecodePhase::kTargetVerify};
  return {DecodePhase::kDraftDecode, DecodePhase::kTargetVerify};
}

MetadataCase fit_for_aten(MetadataCase c) {
  DecodeMetadataArgs& s = c.scalars;
  if (s.q_mode != QueryMode::kPreset) s.seqlen_offset = 0;
  const std::int64_t context = std::int64_t{s.max_seq_pages} * s.page_size;
  if (context < s.seqlen_offset) s.seqlen_offset = 0;
  const std::int64_t longest = context - s.seqlen_offset;
  for (std::int64_t& tokens : c.seq_lens_cpu) tokens = std::clamp<std::int64_t>(tokens, 0, longest);
  c.seq_lens = to_bytes(c.seq_lens_cpu, s.seq_lens_type);
  s.num_out_tokens = std::min(s.num_out_tokens, s.swa_out_len);
  return c;
}

std::string first_difference(const MetadataOutputs& actual, const MetadataOutputs& expected) {
  for (const std::string& text :
       {array_difference("cache_seqlens", actual.cache_seqlens, expected.cache_seqlens),
        array_difference("cu_seqlens_k", actual.cu_seqlens_k, expected.cu_seqlens_k),
        array_difference("cu_seqlens_q", actual.cu_seqlens_q, expected.cu_seqlens_q),
        array_difference("page_table", actual.page_table, expected.page_table),
        array_difference("swa_page_table", actual.swa_page_table, expected.swa_page_table),
        array_difference("swa_out_cache_loc", actual.swa_out_cache_loc,
                         expected.swa_out_cache_loc)}) {
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace tpjitter::test
