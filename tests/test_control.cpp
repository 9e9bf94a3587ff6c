#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "harness/contract/error.h"
#include "harness/control.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kLong = 30'000'000'000;
constexpr std::int64_t kShort = 50'000'000;

TEST(ControlSegment, ARankMapsWhatTheLauncherMade) {
  ControlSegment made = ControlSegment::create(3, 7, 100, "the plan", 2.0);
  made.rows(2)[99].sequence = 5;
  ControlSegment opened = ControlSegment::open(dup(made.fd()));
  EXPECT_EQ(opened.world_size(), 3);
  EXPECT_EQ(opened.header().launch, 7);
  EXPECT_EQ(opened.plan(), "the plan");
  EXPECT_EQ(opened.rows(2).size(), 100u);
  EXPECT_EQ(opened.rows(2)[99].sequence, 5);
  EXPECT_EQ(opened.deadlines().device_ns, 4'000'000'000);
}

TEST(ControlSegment, RefusesADescriptorThatIsNotOne) {
  const int fd = memfd_create("other", 0);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  EXPECT_THROW(ControlSegment::open(fd), RunError);
  EXPECT_THROW(ControlSegment::open(-1), RunError);
}

TEST(Barrier, NoProcessPassesBeforeTheLastArrives) {
  constexpr int kRanks = 5, kRounds = 200;
  ControlSegment control = ControlSegment::create(kRanks, 0, 1, "", 1.0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      for (int round = 0; round < kRounds; ++round) {
        control.rank(rank).step.store(round);
        control.barrier(rank, kLong, "test");
        for (int peer = 0; peer < kRanks; ++peer) {
          if (control.rank(peer).step.load() < round) _exit(1);
        }
        control.barrier(rank, kLong, "test");
      }
      _exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Barrier, NamesWhoWaitedWhenTheDeadlinePasses) {
  ControlSegment control = ControlSegment::create(2, 0, 1, "", 1.0);
  try {
    control.barrier(1, kShort, "before a block");
    FAIL() << "rank 0 never came";
  } catch (const PeerTimeout& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("rank 1 waited "), 0u) << text;
    EXPECT_NE(text.find(" s for rank 0: before a block"), std::string::npos) << text;
    EXPECT_EQ(error.peer(), 0);
  }
}

TEST(Barrier, EndsForEverybodyWhenOneRankFails) {
  ControlSegment control = ControlSegment::create(3, 0, 1, "", 1.0);
  int stopped = 0;
  std::thread waiter([&] {
    try {
      control.barrier(0, kLong, "test");
    } catch (const RunError&) {
      ++stopped;
    }
  });
  while (control.header().barrier_arrived.load() == 0) std::this_thread::yield();
  control.fail(2, "CUDA error at step 4");
  waiter.join();
  EXPECT_EQ(stopped, 1);
  EXPECT_EQ(std::string(control.rank(2).error), "CUDA error at step 4");
  EXPECT_EQ(control.rank(2).failed.load(), 1u);
  EXPECT_EQ(control.rank(2).waited_for, -1);
  EXPECT_THROW(control.barrier(1, kLong, "test"), RunError);
}

TEST(ControlSegment, KeepsTheFirstErrorAndCutsLongOnes) {
  ControlSegment control = ControlSegment::create(1, 0, 1, "", 1.0);
  control.fail(0, std::string(5000, 'x'), 3);
  control.fail(0, "second");
  EXPECT_EQ(control.rank(0).waited_for, 3);
  EXPECT_EQ(std::string(control.rank(0).error), std::string(sizeof(RankSlot::error) - 1, 'x'));
}

}  // namespace
}  // namespace tpjitter
