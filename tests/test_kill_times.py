"""A rank killed at 200 random moments of a run: each time the run ends with its name, and nothing
that was recorded is lost beyond the bound (no host row, at most one block of device stamps)."""
import fcntl
import os
import random
import signal
import subprocess
import time
import unittest

import numpy

from program import DEADLINE_SCALE, ProgramTest, main, strict_json
from test_run_faults import LIMIT_S

BLOCK = 40
SCALE = max(1.0, float(DEADLINE_SCALE))
KILLS = 200 if SCALE == 1 else 40  # sanitizers take their time
# No end of its own: a kill always finds the run.
TINY = ["--set", "sampling.steps=50000", "--set", f"sampling.block_steps={BLOCK}",
        "--set", "sampling.warmup_steps=2", "--set", "body.layer_us=1", "--set", "shape.layers=1",
        "--set", "shape.context_tokens=1024", "--case", "fused", "--quiet"]
NO_DEVICE_STAMPS = 1 << 5


class KillTimes(ProgramTest):
    def kill_at(self, run, moment_s, rank):
        """Starts a run, kills the rank after the moment or as soon as it is there, and waits."""
        launcher = self.start("run", self.scenario(), *TINY, "--out", run)
        try:
            launcher.wait(timeout=moment_s)
            self.fail(f"the run ended before it was killed: {launcher.communicate()}")
        except subprocess.TimeoutExpired:
            pass
        pids = {}
        while rank not in pids and launcher.poll() is None:
            pids = self.ranks_of(launcher)
        os.kill(pids[rank], signal.SIGKILL)
        begin = time.monotonic()
        _, err = launcher.communicate(timeout=4 * LIMIT_S)
        self.assertLess(time.monotonic() - begin, LIMIT_S)
        return launcher, pids, err

    def check(self, run, launcher, pids, rank, err):
        self.assertEqual(launcher.returncode, 3, err)
        info = self.run_info(run)
        self.assertEqual(info["status"], "incomplete")
        self.assertRegex(info["status_reason"], f"rank {rank} was killed by signal 9 .* stage ")
        self.assertIn(info["status_reason"], err)
        self.assertEqual(info["ranks"][rank]["status"], "died")
        for pid in pids.values():
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "a rank outlived the run")
        self.assertEqual(self.children(launcher.pid), {})
        directory = os.open(run, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it is still held
        os.close(directory)
        counts = [self.check_rows(run, k, info) for k in range(2)]
        report = self.tpjitter("report", run, "--format", "json")
        self.assertEqual(report.returncode, 3 if sum(counts) else 6, report.stderr)
        summary = strict_json(report.stdout)
        self.assertEqual(summary["rows"], sum(counts))
        return counts

    def check_rows(self, run, rank, info):
        rows = numpy.load(run / f"rank{rank}.phases.npy")
        self.assertTrue((rows["sequence"] == numpy.arange(1, len(rows) + 1)).all())
        lost = numpy.flatnonzero(rows["flags"] & NO_DEVICE_STAMPS)
        self.assertLessEqual(len(lost), BLOCK)
        if len(lost):  # the last ones, without a gap
            self.assertEqual(lost[0], len(rows) - len(lost))
        self.assertEqual(info["ranks"][rank]["rows"], len(rows))
        # Steps before the one that it died in have their rows: one rebuild a step, no repetition.
        ended_at = info["ranks"][rank]["ended_at"] or ""
        if ", step " in ended_at:
            step = int(ended_at.split(", step ")[1].split(",")[0])
            self.assertGreaterEqual(len(rows), step)
            self.assertLessEqual(len(rows), step + 1)
        return len(rows)

    def test_every_moment_ends_in_a_named_and_readable_record(self):
        random.seed(2026)
        rows = []
        stages = set()
        for kill in range(KILLS):
            run = self.directory / f"D{kill}"
            rank = random.randrange(2)
            launcher, pids, err = self.kill_at(run, random.uniform(0, 0.25) * SCALE, rank)
            with self.subTest(kill=kill, rank=rank):
                rows.append(sum(self.check(run, launcher, pids, rank, err)))
                stages.add(err.rsplit("stage ", 1)[1].split(";")[0].strip())
            for path in run.iterdir():
                path.unlink()
        # The moments reach from before the first row to many blocks.
        self.assertGreater(sum(1 for n in rows if n == 0), 0)
        self.assertGreater(sum(1 for n in rows if n > 2 * BLOCK), KILLS // 10)
        # Fewer kills, at the pace of a sanitizer, meet fewer stages.
        self.assertGreater(len(stages), 3 if SCALE == 1 else 1, stages)


if __name__ == "__main__":
    main()
