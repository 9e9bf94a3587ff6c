"""`tpjitter selftest` from end to end on the host backend: injected delays are found again, the
document keeps to its schema, and exit codes tell pass from fail from a run that failed."""
import json
import os
import shutil
import unittest

import jsonschema
import numpy

from program import DEADLINE_SCALE, SOURCE, ProgramTest, main, strict_json

PLACES = ["before_dispatch", "before_launch", "gpu"]
LADDER_NS = [0, 1000, 5000, 20000, 50000, 250000, 1000000]
CPUS = len(os.sched_getaffinity(0))


class Selftest(ProgramTest):
    def selftest(self, *words):
        done = self.tpjitter("selftest", "--backend", "host", "--deadline-scale", DEADLINE_SCALE,
                             "--quiet", *words, timeout=800)
        return done

    def document(self, done):
        document = strict_json(done.stdout)
        schema = strict_json((SOURCE / "reports/selftest.schema.json").read_text())
        jsonschema.validate(document, schema)
        return document

    def rows(self, document, place, pattern="rotating"):
        return [r for r in document["rows"] if (r["inject"], r["pattern"]) == (place, pattern)]

    def check_what_does_not_depend_on_the_machine(self, document, ranks):
        self.assertEqual(document["problems"], [])
        for place in PLACES:
            ladder = self.rows(document, place)
            self.assertEqual([(r["injected_ns"], r["victim"]) for r in ladder],
                             [(d, v) for d in LADDER_NS for v in range(ranks)])
            (fixed,) = self.rows(document, place, "fixed")
            self.assertEqual(fixed["victim"], ranks - 1)
            for row in ladder:
                # The model's waits are exact on any machine, however busy.
                self.assertEqual(row["arrival_gap_error_ns"]["max"], 0)
                # Full rotations, but for the first step, which is in no statistic.
                self.assertIn(row["n"] - fixed["n"] // ranks, (0, 1))
                for share in ("laggard_right", "stage_right"):
                    if row[share] is not None:
                        self.assertEqual(row[share], 1.0, row)
            for row in self.rows(document, "gpu"):
                self.assertEqual(row["actual_ns"], row["injected_ns"])
                self.assertEqual(row["recovered_ns"], row["injected_ns"])

    def test_two_ranks_pass_within_the_targets_of_the_host_backend(self):
        for _ in range(3):  # a machine that is busy for a moment may be quiet in the next
            done = self.selftest("--json")
            document = self.document(done)
            self.check_what_does_not_depend_on_the_machine(document, 2)
            if document["pass"]:
                break
        reasons = [(r["inject"], r["injected_ns"], reason) for r in document["rows"]
                   if not r["pass"] for reason in r["reasons"]]
        self.assertEqual(document["ranks_fit_cpus"], CPUS >= 2)
        if reasons and all("the step's own skew" in reason for _, _, reason in reasons):
            self.skipTest(f"this machine's own skew hides the delays: {reasons[0]}")
        self.assertTrue(document["pass"], reasons)
        self.assertEqual(done.returncode, 0, done.stderr)
        for place in PLACES[:2]:
            for row in self.rows(document, place):
                self.assertGreaterEqual(row["actual_ns"], row["injected_ns"])
                self.assertIsNotNone(row["error_ns"]["p95"])

    def test_four_ranks_are_judged_by_what_the_cores_allow(self):
        run = self.directory / "D"
        done = self.selftest("--json", "--world-size", 4, "--delays", 60, "--out", run)
        document = self.document(done)
        self.check_what_does_not_depend_on_the_machine(document, 4)
        self.assertEqual(document["ranks_fit_cpus"], CPUS >= 4)
        self.assertEqual(done.returncode, 0 if document["pass"] else 1, done.stderr)
        if CPUS < 4:
            for row in document["rows"]:
                self.assertIsNone(row["targets"]["error_p50_ns"])

        # The record alone gives the same document, byte for byte, and damage to it is found.
        again = self.selftest("--json", "--record", run)
        self.assertEqual(again.stdout, done.stdout)
        rows = numpy.load(run / "rank1.phases.npy", mmap_mode="r+")
        rows["first_all_reduce_last_seen_ns"][rows["injected_ns"] == 250000] += 100
        rows.flush()
        del rows
        damaged = self.selftest("--json", "--record", run)
        self.assertEqual(damaged.returncode, 1)
        self.assertTrue(any("arrival gap max" in reason for row in self.document(damaged)["rows"]
                            for reason in row["reasons"]))

    def test_text_ends_in_a_verdict_and_a_kept_run_can_be_reported(self):
        run = self.directory / "D"
        done = self.selftest("--delays", 40, "--out", run)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        verdict = "passed" if done.returncode == 0 else "FAILED"
        self.assertRegex(done.stdout.splitlines()[-1], rf"^selftest {verdict}: \d+ of 51 rows")
        self.assertLessEqual(max(len(line) for line in done.stdout.splitlines()), 100)
        self.assertEqual(self.tpjitter("report", run).returncode, 0)
        # A second one does not replace it unasked.
        self.assertEqual(self.selftest("--delays", 40, "--out", run).returncode, 2)

    def test_leaves_nothing_behind_without_out(self):
        self.selftest("--delays", 40, "--record", self.directory / "none")
        before = self.temporary_files()
        done = self.tpjitter("selftest", "--backend", "host", "--delays", 40, "--quiet",
                             "--deadline-scale", DEADLINE_SCALE,
                             env={"TMPDIR": str(self.directory)})
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertEqual(self.temporary_files(), before)

    def temporary_files(self):
        return sorted(str(path) for path in self.directory.rglob("*"))

    def test_what_cannot_run_is_refused_by_exit_code(self):
        self.assertEqual(self.selftest("--world-size", 1).returncode, 2)
        self.assertEqual(self.selftest("--delays", 3).returncode, 2)
        self.assertEqual(self.selftest("--record", self.directory).returncode, 2)

    def test_an_incomplete_run_is_no_pass(self):
        run = self.directory / "D"
        self.selftest("--delays", 40, "--out", run)
        info = self.run_info(run)
        info["status"] = "incomplete"
        info["status_reason"] = "rank 1 died"
        (run / "run.json").write_text(json.dumps(info))
        done = self.selftest("--json", "--record", run)
        self.assertEqual(done.returncode, 3)
        self.assertIn("the run is incomplete: rank 1 died", strict_json(done.stdout)["problems"])


class InjectedRuns(ProgramTest):
    """The keys of a scenario, without the selftest's ladder."""

    def run_injected(self, *settings):
        run = self.directory / "D"
        sets = [word for s in ("step.path=fused", "inject.delay_us=200", "shape.layers=2",
                               "sampling.steps=80", "sampling.warmup_steps=7", *settings)
                for word in ("--set", s)]
        done = self.tpjitter("run", self.scenario(), "--out", run, "--quiet", *sets)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done, [numpy.load(run / f"rank{k}.phases.npy") for k in (0, 1)]

    def test_rotating_victims_on_the_modelled_gpu_are_late_by_exactly_the_delay(self):
        done, (a, b) = self.run_injected("inject.where=gpu", "inject.pattern=rotating")
        victim = (numpy.arange(80) + 7) % 2
        self.assertTrue((a["injected_ns"] == numpy.where(victim == 0, 200000, 0)).all())
        self.assertTrue((b["injected_ns"] == numpy.where(victim == 1, 200000, 0)).all())
        late = b["first_all_reduce_own_ns"] - a["first_all_reduce_own_ns"]
        self.assertTrue((late == numpy.where(victim == 1, 200000, -200000)).all())
        self.assertTrue((a["gpu_begin_ns"] == b["gpu_begin_ns"]).all(), "behind the gate")
        self.assertIn("on one rank or another", done.stdout)

    def test_random_victims_are_the_same_again_with_the_same_seed(self):
        victims = []
        for seed in (5, 5, 6):
            _, (a, b) = self.run_injected("inject.where=before_launch", "inject.pattern=random",
                                          f"inject.seed={seed}")
            self.assertTrue(((a["injected_ns"] > 0) ^ (b["injected_ns"] > 0)).all())
            for rows in (a, b):
                hit = rows["injected_ns"] > 0
                gap = rows["launch_begin_ns"] - rows["dispatch_end_ns"]
                self.assertTrue((gap[hit] >= 200000).all())
                self.assertTrue((gap[~hit] == 0).all())
            victims.append((b["injected_ns"] > 0).tolist())
            shutil.rmtree(self.directory / "D")
        self.assertEqual(victims[0], victims[1])
        self.assertNotEqual(victims[0], victims[2])

    def test_a_speculative_step_is_delayed_in_its_first_graph(self):
        _, (a, b) = self.run_injected("inject.where=gpu", "inject.victim=1",
                                      "step.mode=speculative")
        launched = (a["flags"] & 1) == 0
        late = (b["first_all_reduce_own_ns"] - a["first_all_reduce_own_ns"])[launched]
        graph = a["graph"][launched]
        self.assertTrue((late[graph == 0] == 200000).all())
        self.assertFalse((late[graph > 0] == 200000).any())


if __name__ == "__main__":
    main()
