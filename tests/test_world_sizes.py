"""Any world size on the host backend: the run is complete, every step's checksum is right, and an
injected laggard is found among 3 to 16 ranks, also where there are more ranks than cores."""
import unittest

from program import ProgramTest, main, strict_json


class WorldSizes(ProgramTest):
    def check(self, ranks):
        run = self.directory / f"ranks{ranks}"
        victim = ranks - 1
        done = self.tpjitter(
            "run", self.scenario(), "--out", run, "--quiet", "--world-size", ranks,
            "--set", "step.path=fused", "--set", "sampling.steps=60",
            "--set", "sampling.warmup_steps=3", "--set", "sampling.block_steps=30",
            "--set", "shape.layers=2", "--set", "inject.where=before_launch",
            "--set", f"inject.victim={victim}", "--set", "inject.delay_us=5000")
        self.assertEqual(done.returncode, 0, done.stderr)
        info = self.run_info(run)
        self.assertEqual(info["status"], "complete")
        self.assertEqual([rank["rank"] for rank in info["ranks"]], list(range(ranks)))
        self.assertEqual({rank["rows"] for rank in info["ranks"]}, {60})
        (case,) = info["cases"]
        self.assertTrue(case["bit_equal"])
        self.assertEqual(case["checksum_failures"], 0)
        self.assertGreaterEqual(case["steps_checked"], 60 * ranks)

        summary = strict_json(self.tpjitter("report", run, "--format", "json").stdout)
        self.assertEqual(summary["world_size"], ranks)
        per_rank = summary["cases"][0]["ranks"]
        self.assertEqual(len(per_rank), ranks)
        # 5 ms is far beyond what a scheduler does to most steps.
        self.assertGreater(per_rank[victim]["laggard_share"], 0.5)
        waits = [rank["metrics"]["first_all_reduce_excess_wait_ns"]["p50"] for rank in per_rank]
        self.assertEqual(min(waits), waits[victim])

    def test_3(self):
        self.check(3)

    def test_4(self):
        self.check(4)

    def test_5(self):
        self.check(5)

    def test_8(self):
        self.check(8)

    def test_16(self):
        self.check(16)


if __name__ == "__main__":
    main()
