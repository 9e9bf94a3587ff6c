"""Loops on the host backend: what running ahead hides, and which replays are left out of figures.

Figures are compared with each other and with the injected delay, never with a clock."""
import pathlib
import shutil
import tempfile
import unittest

import numpy

from program import ProgramTest, main, strict_json

# Long against what the scheduler of a machine that others use takes away: three replays of the
# device, 96 ms, are the most that a host may come late and still be ahead.
DELAY_US, LAYER_US = 8000, 4000
FIRST_AFTER_WARMUP, FIRST_OF_BLOCK = 2, 4
BLOCKS, BLOCK_STEPS = 3, 20


class RunAhead(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="tpjitter-test-"))
        cls.run_directory = cls.place / "D"
        helper = cls()
        # A step of the device is four times the delay, so that running ahead can hide it.
        done = helper.tpjitter(
            "run", helper.scenario(), "--out", cls.run_directory, "--set", 'step.path="fused"',
            "--set", 'step.loop=["coupled","run_ahead"]', "--set", "step.run_ahead_depth=3",
            "--set", "inject.where=before_dispatch", "--set", "inject.victim=1",
            "--set", f"inject.delay_us={DELAY_US}", "--set", "inject.every_steps=1",
            "--set", f"sampling.steps={BLOCKS * BLOCK_STEPS}", "--set", "sampling.warmup_steps=10",
            "--set", f"sampling.block_steps={BLOCK_STEPS}", "--set", f"body.layer_us={LAYER_US}")
        helper.assertEqual(done.returncode, 0, done.stderr)
        report = helper.tpjitter("report", cls.run_directory, "--format", "json")
        cls.summary = strict_json(report.stdout)
        cls.rows = [numpy.load(cls.run_directory / f"rank{k}.phases.npy") for k in (0, 1)]

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.place, ignore_errors=True)

    def case(self, loop):
        index, found = next((i, c) for i, c in enumerate(self.summary["cases"])
                            if c["name"].endswith(loop))
        return found, [rows[rows["case_index"] == index] for rows in self.rows]

    def test_skew_costs_a_coupled_loop_and_is_hidden_by_running_ahead(self):
        coupled, _ = self.case("coupled")
        ahead, _ = self.case("run_ahead")
        for case in (coupled, ahead):  # both launch late by what was injected
            self.assertGreater(case["metrics"]["launch_skew_ns"]["p50"], DELAY_US * 500)
        skew = coupled["metrics"]["launch_skew_ns"]["p50"]
        self.assertGreater(coupled["attribution"]["exposed_ns"], 0.75 * skew)
        skew = ahead["metrics"]["launch_skew_ns"]["p50"]
        self.assertLess(ahead["attribution"]["exposed_ns"], 0.25 * skew)
        self.assertGreater(ahead["attribution"]["hidden_ns"], 0.75 * skew)
        self.assertLess(ahead["metrics"]["step_ns"]["p50"], coupled["metrics"]["step_ns"]["p50"])
        self.assertEqual(coupled["attribution"]["class"], "arrival_skew")
        self.assertNotEqual(ahead["attribution"]["class"], "arrival_skew")

    def test_launches_of_a_loop_that_runs_ahead_stand_behind_the_replay_before(self):
        idle, hidden = {}, {}
        for loop in ("coupled", "run_ahead"):
            _, rows = self.case(loop)
            late = rows[1]
            before = late["gpu_end_ns"][:-1]
            same_block = (late["flags"][1:] & FIRST_OF_BLOCK) == 0
            launched = late["launch_end_ns"][1:]
            hidden[loop] = (launched[same_block] < before[same_block]).mean()
            idle[loop] = numpy.median((late["gpu_begin_ns"][1:] - before)[same_block])
        self.assertGreater(hidden["run_ahead"], 0.9)
        self.assertEqual(hidden["coupled"], 0)  # its accept comes with the end of the replay
        self.assertLess(idle["run_ahead"], idle["coupled"])

    def test_first_replays_are_flagged_kept_and_left_out(self):
        for loop in ("coupled", "run_ahead"):
            case, rows = self.case(loop)
            for of_rank in rows:
                self.assertEqual(len(of_rank), BLOCKS * BLOCK_STEPS)  # kept in the file
                first = numpy.flatnonzero(of_rank["flags"] & FIRST_OF_BLOCK)
                self.assertEqual(list(first), [b * BLOCK_STEPS for b in range(BLOCKS)])
                warm = numpy.flatnonzero(of_rank["flags"] & FIRST_AFTER_WARMUP)
                self.assertEqual(list(warm), [0])
            self.assertEqual(case["left_out"], BLOCKS)
            self.assertEqual(case["rebuilds"], BLOCKS * BLOCK_STEPS)
            self.assertEqual(case["attribution"]["replays"], BLOCKS * (BLOCK_STEPS - 1))
            self.assertEqual(case["metrics"]["launch_skew_ns"]["n"], BLOCKS * (BLOCK_STEPS - 1))
            skew = rows[1]["launch_begin_ns"] - rows[0]["launch_begin_ns"]
            kept = (rows[0]["flags"] & FIRST_OF_BLOCK) == 0
            self.assertEqual(case["metrics"]["launch_skew_ns"]["max"], abs(skew[kept]).max())

    def test_the_host_backend_has_one_clock_and_says_so(self):
        clock = strict_json((self.run_directory / "run.json").read_text())["clock"]
        self.assertEqual(clock["points"], [])
        self.assertEqual((clock["host_gpu_bound_ns"], clock["gpu_gpu_bound_ns"]), (0, 0))
        self.assertIn("host's clock", clock["reason"])
        for case in self.summary["cases"]:
            self.assertEqual(case["attribution"]["arrival_bound_ns"], 0)
            self.assertIsNotNone(case["attribution"]["arrival_gap_ns"]["p50"])


if __name__ == "__main__":
    main()
