"""The gate, baselines and history as programs: real runs on the host backend, files and exit
codes. A pool of single-launch runs stands for both sides, drawn anew for every comparison."""
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree

import jsonschema
import numpy

from program import PROGRAM, SOURCE, ProgramTest, main, strict_json

SHORT = ["--set", "sampling.steps=120", "--set", "sampling.warmup_steps=5",
         "--set", "sampling.block_steps=40", "--set", "shape.layers=2", "--set", "body.layer_us=20"]
POOL = 10


def checked(text, schema):
    document = strict_json(text)
    jsonschema.validate(document, strict_json((SOURCE / "reports" / schema).read_text()))
    return document


def as_nobody(*words):
    """Runs the program as a user whom file permissions stop; root is above them."""
    user = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False,
                          **user)


class Gate(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.pool = pathlib.Path(tempfile.mkdtemp(prefix="tpjitter-pool-"))
        helper = cls()
        cls.runs = [cls.pool / f"run{i}" for i in range(POOL)]
        cls.slow = [cls.pool / f"slow{i}" for i in range(5)]
        for i, run in enumerate(cls.runs):
            helper.make(run)
            if i < len(cls.slow):  # in turn, so that the sides interleave in time
                helper.make(cls.slow[i], "--set", "step.op_overhead_ns=40000")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.pool, ignore_errors=True)

    def make(self, run, *more):
        done = self.tpjitter("run", self.scenario(), "--out", run, "--quiet", *SHORT, *more)
        self.assertEqual(done.returncode, 0, done.stderr)

    def gate(self, runs, baseline, *more):
        return self.tpjitter("gate", *runs, "--baseline", *baseline, *more)

    def test_unchanged_code_is_never_red(self):
        draw = random.Random(1)
        codes = []
        for _ in range(20):
            pool = draw.sample(self.runs, POOL)
            done = self.gate(pool[:5], pool[5:], "--json")
            result = checked(done.stdout, "gate.schema.json")
            self.assertEqual(result["exit_code"], done.returncode)
            codes.append(done.returncode)
        self.assertLessEqual(set(codes), {0, 4}, codes)

    def test_overhead_that_was_allowed_is_red_and_named(self):
        done = self.gate(self.slow, self.runs[:5], "--allow", "step.op_overhead_ns", "--json")
        result = strict_json(done.stdout)
        if result["void"]:
            self.skipTest("the controls of this machine are not stable: " + result["headline"])
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("dispatch_ns", result["headline"])
        self.assertTrue(any("op_overhead_ns" in line for line in result["allowed"]))

    def test_a_key_that_differs_is_incomparable(self):
        done = self.gate(self.slow, self.runs[:5])
        self.assertEqual(done.returncode, 5)
        self.assertIn("step.op_overhead_ns: 0 against 40000", done.stdout)

    def test_another_scenario_is_incomparable(self):
        other = self.write_scenario(self.scenario().read_text(), "other.toml")
        run = self.directory / "other"
        done = self.tpjitter("run", other, "--out", run, "--quiet", *SHORT)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.gate([run], self.runs[:3])
        self.assertEqual(done.returncode, 5)
        self.assertIn("scenario", done.stdout)

    def test_one_launch_a_side_is_inconclusive(self):
        done = self.tpjitter("compare", self.runs[0], self.runs[1])
        self.assertEqual(done.returncode, 4)

    def test_reports_are_written_before_the_exit_code(self):
        junit, markdown = self.directory / "gate.xml", self.directory / "gate.md"
        done = self.gate(self.slow, self.runs[:5], "--allow", "step.op_overhead_ns", "--junit",
                         junit, "--markdown", markdown, "--annotations", "github")
        self.assertIn(done.returncode, (1, 4))
        suites = xml.etree.ElementTree.parse(junit).getroot()
        cases = list(suites.iter("testcase"))
        self.assertEqual(int(suites.get("tests")), len(cases))
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            self.assertEqual(int(suites.get(kind)), len(list(suites.iter(tag))))
        for case in cases:
            self.assertTrue(case.get("name") and case.get("classname") and case.get("time"))
        self.assertLess(len(markdown.read_text().splitlines()), 60)
        self.assertIn("::", done.stdout)

    def test_a_baseline_file_gives_the_verdict_of_its_runs(self):
        baseline = self.directory / "baseline.json"
        done = self.tpjitter("baseline", "make", *self.runs[:5], "-o", baseline)
        self.assertEqual(done.returncode, 0, done.stderr)
        from_file = self.gate(self.runs[5:], [baseline], "--json")
        from_runs = self.gate(self.runs[5:], self.runs[:5], "--json")
        self.assertEqual(strict_json(from_file.stdout), strict_json(from_runs.stdout))
        whole = baseline.read_text()
        checked(whole, "baseline.schema.json")
        for text, what in ((whole[:1000], "truncated"), ("", "empty"), ("{}", "no schema"),
                           (whole.replace("baseline/1", "baseline/9", 1), "newer"),
                           (whole.replace('"schema"', '"launch": 1, "launch": 2, "schema"', 1),
                            "duplicate keys")):
            baseline.write_text(text)
            done = self.gate(self.runs[5:], [baseline])
            self.assertEqual(done.returncode, 2, what)
            self.assertIn("baseline.json", done.stderr, what)

    def test_init_writes_thresholds_that_the_gate_reads(self):
        thresholds = self.directory / "t.toml"
        done = self.tpjitter("gate", "--init", *self.runs, "-o", thresholds)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("noise_ns", thresholds.read_text())
        done = self.gate(self.runs[:5], self.runs[5:], "--thresholds", thresholds)
        self.assertIn(done.returncode, (0, 4), done.stdout + done.stderr)

    def test_bad_thresholds_are_named(self):
        thresholds = self.directory / "t.toml"
        for text, words in (("schema = \"tpjitter.thresholds/1\"\n[[rule]]\nmetric = \"x_ns\"\n",
                             "x_ns"),
                            ("schema = \"tpjitter.thresholds/1\"\n[[rule]]\n"
                             "metric = \"step_ns\"\ncases = \"zzz\"\n", "matches no case"),
                            ("schema = \"tpjitter.thresholds/1\"\n[[rule]]\n"
                             "metric = \"step_ns\"\nrelative_limit = -1\n", "relative_limit")):
            thresholds.write_text(text)
            done = self.gate(self.runs[:3], self.runs[3:6], "--thresholds", thresholds)
            self.assertEqual(done.returncode, 2, text)
            self.assertIn(words, done.stderr)

    def test_no_run_and_a_run_of_a_missing_rank(self):
        self.assertEqual(self.gate([self.directory], self.runs[:3]).returncode, 2)
        broken = self.directory / "broken"
        shutil.copytree(self.runs[0], broken)
        (broken / "rank1.phases.npy").unlink()
        done = self.gate([broken], self.runs[:3])
        self.assertEqual(done.returncode, 3, done.stdout)

    def test_a_baseline_that_was_cut_off_is_a_wrong_file(self):
        broken = self.directory / "broken"
        shutil.copytree(self.runs[0], broken)
        whole = (broken / "run.json").read_text()
        (broken / "run.json").write_text(whole[:5000])
        done = self.gate(self.runs[:3], [broken])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("baseline", done.stderr)

    def test_the_shipped_thresholds_are_read(self):
        done = self.gate(self.runs[:5], self.runs[5:], "--thresholds",
                         SOURCE / "scripts" / "ci" / "thresholds_b200.toml", "--json")
        self.assertIn(done.returncode, (0, 1, 4), done.stderr)
        self.assertTrue(any(row["check"] == "ratio" for row in strict_json(done.stdout)["rows"]))

    def test_history_adds_lists_and_checks(self):
        db = self.directory / "h.sqlite"
        for _ in range(2):  # the second time they are there already
            done = self.tpjitter("history", "add", "--db", db, *self.runs)
            self.assertEqual(done.returncode, 0, done.stderr)
        entries = strict_json(self.tpjitter("history", "list", "--db", db, "--json").stdout)
        self.assertEqual(len(entries), POOL)
        exported = checked(self.tpjitter("history", "export", "--db", db).stdout,
                           "history.schema.json")
        self.assertEqual(len(exported["entries"]), POOL)
        done = self.tpjitter("history", "check", "--db", db, "--json")
        self.assertIn(done.returncode, (0, 1))
        document = checked(done.stdout, "history.schema.json")
        self.assertEqual(document["exit_code"], done.returncode)
        short = self.directory / "short.sqlite"
        self.tpjitter("history", "add", "--db", short, *self.runs[:9])
        self.assertEqual(self.tpjitter("history", "check", "--db", short).returncode, 4)
        self.assertEqual(self.tpjitter("history", "check", "--db", self.directory / "no").returncode,
                         2)

    def test_a_history_that_may_only_be_read_is_read(self):
        self.directory.chmod(0o755)
        db = self.directory / "h.sqlite"
        self.tpjitter("history", "add", "--db", db, *self.runs[:2])
        db.chmod(0o444)
        self.directory.chmod(0o555)
        self.pool.chmod(0o755)
        if not os.access(PROGRAM, os.X_OK) or as_nobody("--version").returncode != 0:
            self.skipTest("another user cannot run the program here")
        for command, code in (("list", 0), ("export", 0), ("check", 4)):
            done = as_nobody("history", command, "--db", db)
            self.assertEqual(done.returncode, code, done.stderr)
        done = as_nobody("history", "add", "--db", db, self.runs[2])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cannot be written: the file is read-only", done.stderr)
        self.directory.chmod(0o755)

    def test_a_run_without_rows_is_nothing_measured(self):
        empty = self.directory / "empty"
        shutil.copytree(self.runs[0], empty)
        for name in ("rank0.phases.npy", "rank1.phases.npy"):
            rows = numpy.load(empty / name)
            numpy.save(empty / name, rows[:0])
        self.assertIn(self.gate([empty], self.runs[:3]).returncode, (2, 6))

    def test_a_code_quality_report_is_a_file(self):
        report = self.directory / "quality.json"
        done = self.gate(self.runs[:2], self.runs[2:4], "--annotations", "gitlab",
                         "--annotations-file", report)
        self.assertEqual(done.returncode, 4, done.stdout)
        findings = strict_json(report.read_text())
        self.assertTrue(findings)
        for finding in findings:
            self.assertTrue(finding["fingerprint"] and finding["location"]["lines"]["begin"] >= 1)
            self.assertIn(finding["severity"], ("minor", "critical", "blocker"))
        self.assertEqual(self.gate(self.runs[:2], self.runs[2:4], "--annotations", "gitlab")
                         .returncode, 2)

    def test_a_benchmark_program_is_gated_against_itself(self):
        bench = pathlib.Path(PROGRAM).parent / "bench_launch"
        if not bench.exists():
            self.skipTest("built without benchmarks")
        times = self.directory / "bench.json"
        with open(times, "w") as out:
            subprocess.run([bench, "--benchmark_format=json", "--benchmark_repetitions=3",
                            "--benchmark_min_time=0.01"], stdout=out, check=True)
        for command in (("gate", times, "--baseline", times), ("compare", times, times)):
            done = self.tpjitter(*command, "--json")
            self.assertIn(done.returncode, (0, 4), done.stdout + done.stderr)
            self.assertTrue(checked(done.stdout, "gate.schema.json")["rows"])


if __name__ == "__main__":
    main()
