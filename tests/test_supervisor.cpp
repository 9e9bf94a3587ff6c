// What a launch's reason says when several ranks fail: real child processes of this program, over a
// real segment, that fail as the scene says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "harness/clock.h"
#include "harness/control.h"
#include "harness/recorder.h"
#include "harness/spawn.h"
#include "harness/supervisor.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::int64_t kGiveUpNs = 60'000'000'000;

// Rank 0 reports that it waited for rank 1. The launcher then ends rank 1, beginning with SIGCONT;
// only now, and so never before the launcher has its reason, rank 1 does what the scene says.
int act(int fd, int rank, pid_t parent) {
  if (!die_with_parent(parent)) return 3;
  ControlSegment control = ControlSegment::open(fd);
  const std::string scene(control.plan());
  sigset_t told_to_leave;
  sigemptyset(&told_to_leave);
  sigaddset(&told_to_leave, SIGCONT);
  sigprocmask(SIG_BLOCK, &told_to_leave, nullptr);
  control.rank(rank).stage.store(static_cast<std::int32_t>(Stage::kPreparing));
  const std::int64_t give_up = now_ns() + kGiveUpNs;
  const auto ready = [&] {
    return control.rank(1).stage.load() == static_cast<std::int32_t>(Stage::kPreparing);
  };
  while (!ready() && now_ns() < give_up) sched_yield();
  if (scene == "both") {
    control.fail(rank, rank == 0 ? "a bad checksum" : "no memory left on the device");
    return 3;
  }
  if (rank == 0) {
    control.fail(0, "the first all-reduce waited 800 ms for rank 1", 1);
    return 3;
  }
  const timespec limit{kGiveUpNs / 1'000'000'000, 0};
  if (sigtimedwait(&told_to_leave, nullptr, &limit) < 0) return 3;
  if (scene == "is killed") raise(SIGKILL);
  if (scene == "hangs") pause();
  if (scene == "fails") control.fail(1, "no memory left on the device");
  if (scene == "stops") control.fail(1, std::string(kStoppedPrefix) + " another ended the run");
  return 3;
}

class SupervisorTest : public ::testing::Test {
 protected:
  LaunchOutcome run(const std::string& scene) {
    std::string name = (std::filesystem::temp_directory_path() / "tpjitter_supervisor_XXXXXX");
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    ControlSegment control = ControlSegment::create(2, 0, 1, scene, 10.0);
    LaunchOutcome outcome;
    {
      Recorder recorder(name, 2, 1);
      outcome = Supervisor(
                    control, recorder, {"fused"}, [](std::int64_t) {}, -1)
                    .run();
    }
    std::filesystem::remove_all(name);
    return outcome;
  }
};

TEST_F(SupervisorTest, ARealErrorOfTheRankThatWasWaitedForStandsBesideTheLateness) {
  const LaunchOutcome outcome = run("fails");
  const std::string reason = outcome.failure.value_or("");
  EXPECT_THAT(reason, StartsWith("rank 1 was waited for in vain at launch 0"));
  EXPECT_THAT(reason, HasSubstr("rank 0 failed at launch 0"));
  EXPECT_THAT(reason, HasSubstr("waited 800 ms for rank 1; also rank 1 failed at launch 0"));
  EXPECT_THAT(reason, HasSubstr("no memory left on the device"));
  EXPECT_EQ(outcome.ranks[0].status, "stopped");
  EXPECT_EQ(outcome.ranks[1].status, "failed");
}

TEST_F(SupervisorTest, ARankThatIsKilledWhileItLeavesIsNamed) {
  const LaunchOutcome outcome = run("is killed");
  EXPECT_THAT(outcome.failure.value_or(""), HasSubstr("; also rank 1 was killed by signal 9"));
  EXPECT_EQ(outcome.ranks[1].status, "died");
}

TEST_F(SupervisorTest, ARankThatOnlyLeavesOrThatWeKillIsNoFurtherReason) {
  for (const char* scene : {"stops", "hangs"}) {
    const LaunchOutcome outcome = run(scene);
    EXPECT_THAT(outcome.failure.value_or(""), HasSubstr("rank 1 was waited for in vain")) << scene;
    EXPECT_THAT(outcome.failure.value_or(""), Not(HasSubstr("also"))) << scene;
    EXPECT_EQ(outcome.ranks[1].status, "hung") << scene;
  }
}

TEST_F(SupervisorTest, TwoRanksThatFailAtOnceAreBothNamed) {
  const std::string reason = run("both").failure.value_or("");
  EXPECT_THAT(reason, HasSubstr("a bad checksum"));
  EXPECT_THAT(reason, HasSubstr("no memory left on the device"));
  EXPECT_THAT(reason, HasSubstr("; also rank "));
}

}  // namespace
}  // namespace tpjitter

// Started by the supervisor, this program is a rank: tpjitter rank --control-fd F --rank K --parent P
int main(int argc, char** argv) {
  if (argc == 8 && std::string_view(argv[1]) == "rank") {
    return tpjitter::act(std::atoi(argv[3]), std::atoi(argv[5]), std::atoi(argv[7]));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
