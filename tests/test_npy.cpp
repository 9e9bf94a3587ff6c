#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "harness/contract/error.h"
#include "harness/contract/npy.h"

namespace tpjitter {
namespace {

class Npy : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "tpjitter_npy_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ / "rank0.phases.npy";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  static std::string row_bytes(std::int64_t sequence) {
    PhaseRow row{};
    row.sequence = sequence;
    row.step = static_cast<std::int32_t>(sequence) * 10;
    row.injected_ns = (std::int64_t{1} << 62) + 1;
    row.faults_major = -7;
    return {reinterpret_cast<const char*>(&row), sizeof row};
  }
  static std::string header(std::uint64_t rows) {
    return npy_header(phase_row_fields(), sizeof(PhaseRow), rows);
  }
  std::string error_of(const std::string& bytes) {
    write(bytes);
    try {
      NpyFile file(path_);
    } catch (const RecordError& error) {
      EXPECT_EQ(error.exit_code(), kExitRunFailed);
      EXPECT_NE(std::string(error.what()).find("rank0.phases.npy"), std::string::npos);
      return error.what();
    }
    return "";
  }

  std::filesystem::path directory_, path_;
};

TEST_F(Npy, HeaderHasTheSameLengthForEveryRowCount) {
  EXPECT_EQ(header(0).size(), header(UINT64_MAX).size());
  EXPECT_EQ(header(7).size() % 64, 0u);
}

TEST_F(Npy, RowsComeBackAsWritten) {
  write(header(2) + row_bytes(1) + row_bytes(2));
  const NpyFile file(path_);
  EXPECT_EQ(file.rows(), 2u);
  EXPECT_EQ(file.row_size(), sizeof(PhaseRow));
  ASSERT_EQ(file.fields().size(), phase_row_fields().size());
  for (std::size_t i = 0; i < file.fields().size(); ++i) {
    EXPECT_EQ(file.fields()[i].name, phase_row_fields()[i].name);
    EXPECT_EQ(file.fields()[i].offset, phase_row_fields()[i].offset);
  }
  PhaseRow row;
  std::memcpy(&row, file.row(1), sizeof row);
  EXPECT_EQ(row.sequence, 2);
  EXPECT_EQ(row.injected_ns, 4611686018427387905);
  EXPECT_EQ(row.faults_major, -7);
}

TEST_F(Npy, NumPyMapsTheFileAndReadsEachFieldByName) {
  write(header(2) + row_bytes(1) + row_bytes(2) + std::string(4096, '\0'));
  const std::string script =
      "import numpy,sys; a=numpy.load(sys.argv[1],mmap_mode='r'); "
      "ok=len(a)==2 and a['step'].tolist()==[10,20] and a['faults_major'][1]==-7 and "
      "int(a['injected_ns'][0])==2**62+1 and a.dtype.itemsize==" +
      std::to_string(sizeof(PhaseRow)) + "; sys.exit(0 if ok else 1)";
  if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "no numpy";
  const std::string command = "/usr/bin/python3 -c \"" + script + "\" " + path_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(Npy, GapsBetweenFieldsBecomePaddingThatNumPyUnderstands) {
  const NpyField fields[] = {{"a", "<i4", 0}, {"b_ns", "<i8", 8}};
  const std::int64_t values[] = {5, -6, 0};
  write(npy_header(fields, 24, 1) + std::string(reinterpret_cast<const char*>(values), 24));
  const NpyFile file(path_);
  EXPECT_EQ(file.row_size(), 24u);
  ASSERT_EQ(file.fields().size(), 2u);
  EXPECT_EQ(file.fields()[1].offset, 8u);
  if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "no numpy";
  const std::string command =
      "/usr/bin/python3 -c \"import numpy,sys; a=numpy.load(sys.argv[1],mmap_mode='r'); "
      "sys.exit(0 if a['a'][0]==5 and a['b_ns'][0]==-6 else 1)\" " +
      path_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(Npy, FileShorterThanDeclaredGivesTheWholeRowsThatAreThere) {
  write(header(1000) + row_bytes(1) + row_bytes(2).substr(0, 100));
  const NpyFile file(path_);
  EXPECT_EQ(file.rows(), 1u);
  EXPECT_EQ(file.declared_rows(), 1000u);
  EXPECT_EQ(file.capacity_rows(), 1u);
}

TEST_F(Npy, ReservedFileLongerThanDeclaredGivesOnlyDeclaredRows) {
  write(header(1) + row_bytes(1) + row_bytes(2) + std::string(100 * sizeof(PhaseRow), '\0'));
  const NpyFile file(path_);
  EXPECT_EQ(file.rows(), 1u);
  EXPECT_EQ(file.capacity_rows(), 102u);
}

TEST_F(Npy, RowCountIsRewrittenInPlace) {
  write(header(0) + row_bytes(1));
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file << header(1);
  file.close();
  EXPECT_EQ(NpyFile(path_).rows(), 1u);
}

TEST_F(Npy, FilesOfNumPyItselfAreRead) {
  if (std::system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0)
    GTEST_SKIP() << "no numpy";
  const std::string command =
      "/usr/bin/python3 -c \"import numpy,sys; "
      "numpy.save(sys.argv[1], numpy.array([(3,4)],dtype=[('step','<i4'),('sequence','<i8')]))\" " +
      path_.string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  const NpyFile file(path_);
  EXPECT_EQ(file.rows(), 1u);
  ASSERT_EQ(file.fields().size(), 2u);
  EXPECT_EQ(file.fields()[1].name, "sequence");
  EXPECT_EQ(file.fields()[1].offset, 4u);
}

TEST_F(Npy, DamageIsNamed) {
  EXPECT_NE(error_of("").find("too short"), std::string::npos);
  EXPECT_NE(error_of("something else entirely").find("no .npy magic"), std::string::npos);
  EXPECT_NE(error_of(header(1).substr(0, 200)).find("cut off"), std::string::npos);
  std::string twisted = header(1);
  twisted[twisted.find("<i8")] = 'x';
  EXPECT_NE(error_of(twisted).find("type"), std::string::npos);
  std::string unknown = header(1);
  unknown[6] = 9;
  EXPECT_NE(error_of(unknown).find("version"), std::string::npos);
}

TEST_F(Npy, EveryTruncationOfTheHeaderIsAnErrorAndNeverACrash) {
  const std::string whole = header(1);
  for (std::size_t n = 0; n < whole.size(); n += 3) EXPECT_NE(error_of(whole.substr(0, n)), "");
}

TEST_F(Npy, MissingFileIsNamed) {
  EXPECT_THROW(NpyFile(directory_ / "rank9.phases.npy"), RecordError);
  EXPECT_THROW(NpyFile file(directory_), RecordError);
}

}  // namespace
}  // namespace tpjitter
