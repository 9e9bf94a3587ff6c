"""noise.kind: other work beside the ranks runs during its cases, is recorded, and moves figures."""
import os
import signal
import time
import unittest

import numpy

from program import ProgramTest, main, strict_json
from test_run_faults import LIMIT_S

SHORT = ["--set", "sampling.steps=60", "--set", "sampling.block_steps=30",
         "--set", "sampling.warmup_steps=5", "--set", "shape.layers=2"]


class Noise(ProgramTest):
    def run_noise(self, *words):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario("noise"), *words, "--out", run)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.run_info(run), strict_json(
            self.tpjitter("report", run, "--format", "json").stdout)

    def test_each_case_has_its_noise_and_the_record_says_what_it_did(self):
        info, _ = self.run_noise(*SHORT, "--set", "noise.threads=3")
        by_case = {noise["case"]: noise for noise in info["environment"]["noise"]}
        kinds = {c["index"]: c["values"]["noise"]["kind"] for c in info["cases"]}
        self.assertEqual({by_case[c]["kind"] for c in by_case}, {"busy_threads", "memory_bandwidth"})
        for case, noise in by_case.items():
            self.assertEqual(kinds[case], noise["kind"])
            self.assertEqual(noise["threads"], 3)
            self.assertGreater(noise["work"], 3)
            self.assertGreater(noise["duration_ns"], 0)
        self.assertIn("noise", [w["code"] for w in info["warnings"]])

    def test_without_noise_there_is_no_process_and_no_entry(self):
        info, _ = self.run_noise(*SHORT, "--set", "noise.kind=none")
        self.assertNotIn("noise", info["environment"])
        self.assertNotIn("noise", [w["code"] for w in info["warnings"]])

    def test_more_busy_threads_than_cores_preempt_the_ranks(self):
        threads = 4 * (os.cpu_count() or 1)
        info, summary = self.run_noise("--set", 'noise.kind=["none", "busy_threads"]',
                                       "--set", f"noise.threads={threads}",
                                       "--set", "sampling.steps=100",
                                       "--set", "sampling.block_steps=50")
        case = next(c["index"] for c in info["cases"] if "busy" in c["name"])
        rows = [numpy.load(self.directory / "D" / f"rank{rank}.phases.npy") for rank in range(2)]
        switches = sum(r["context_switches_involuntary"][r["case_index"] == case].sum() for r in rows)
        self.assertGreater(switches, 0)
        for c in summary["cases"]:  # on a machine that others use the quiet case is not quiet
            offset = max(rank["metrics"]["launch_offset_ns"]["max"] for rank in c["ranks"])
            print(f"{c['name']}: largest launch offset {offset} ns")

    def test_a_killed_noise_process_ends_the_run_by_name(self):
        run = self.directory / "D"
        launcher = self.start("run", self.scenario("noise"), "--set", "noise.kind=busy_threads",
                              "--set", "sampling.steps=100000", "--out", run)
        noise = None
        while noise is None and launcher.poll() is None:
            noise = self.child(launcher.pid, b"noise")
            os.sched_yield()
        os.kill(noise, signal.SIGKILL)
        _, err = launcher.communicate(timeout=4 * LIMIT_S)
        self.assertEqual(launcher.returncode, 3, err)
        self.assertIn("noise process was killed by signal 9", err)
        self.assertEqual(self.run_info(run)["status"], "incomplete")

    def test_noise_ends_with_a_killed_launcher(self):
        launcher = self.start("run", self.scenario("noise"), "--set", "noise.kind=busy_threads",
                              "--set", "sampling.steps=100000", "--out", self.directory / "D")
        noise = None
        while noise is None and launcher.poll() is None:
            noise = self.child(launcher.pid, b"noise")
            os.sched_yield()
        launcher.kill()
        launcher.communicate()
        # Killed at any moment of its child's life, before its first instruction too.
        give_up = time.monotonic() + LIMIT_S
        while os.path.exists(f"/proc/{noise}"):
            self.assertLess(time.monotonic(), give_up, "the noise outlived its launcher")
            os.sched_yield()


if __name__ == "__main__":
    main()
