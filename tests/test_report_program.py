"""`tpjitter report` as a user calls it: where files go, what is refused, and the pandas example."""
import json
import os
import shlex
import shutil
import subprocess
import sys
import unittest

import program

try:
    import pandas  # noqa: F401
    NO_PANDAS = None
except ImportError:
    NO_PANDAS = "python3-pandas is not installed"

RECORD = program.SOURCE / "tests" / "golden" / "records" / "h200_x1_speculative"


class ReportProgram(program.ProgramTest):
    def setUp(self):
        super().setUp()
        self.run_directory = self.directory / "run"
        shutil.copytree(RECORD, self.run_directory)

    def test_a_page_without_a_name_lies_in_the_run_directory(self):
        result = self.tpjitter("report", self.run_directory, "--format", "html")
        self.assertEqual(result.returncode, 0, result.stderr)
        page = self.run_directory / "report.html"
        self.assertEqual(result.stdout, f"{page}\n")
        named = self.directory / "named.html"
        self.tpjitter("report", self.run_directory, "--format", "html", "-o", named)
        self.assertEqual(page.read_bytes(), named.read_bytes())
        self.assertEqual(sorted(p.name for p in self.run_directory.iterdir()),
                         ["rank0.phases.npy", "report.html", "run.json"])

    def test_a_page_of_a_directory_that_is_no_run_is_not_written(self):
        result = self.tpjitter("report", self.directory, "--format", "html")
        self.assertEqual(result.returncode, 0, result.stderr)  # it holds one run
        (self.run_directory / "run.json").unlink()
        (self.directory / "report.html").unlink()
        self.assertEqual(self.tpjitter("report", self.directory, "--format", "html").returncode, 2)
        self.assertFalse((self.directory / "report.html").exists())

    def test_json_csv_and_traces_go_to_stdout_alone(self):
        for format_name in ("json", "perfetto"):
            result = self.tpjitter("report", self.run_directory, "--format", format_name)
            program.strict_json(result.stdout)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        csv = self.tpjitter("report", self.run_directory, "--format", "csv").stdout
        self.assertTrue(csv.startswith("run,case,path,phase,rank,metric,unit,n,p50,"))

    def test_the_printed_command_is_the_command_of_the_record(self):
        words = ["tpjitter", "run", "a b.toml", "--set", "inject.where='x'", "--case", "*/$bs8", ""]
        info = json.loads((self.run_directory / "run.json").read_text())
        info["command"] = words
        (self.run_directory / "run.json").write_text(json.dumps(info))
        lines = self.tpjitter("report", self.run_directory).stdout.splitlines()
        at = lines.index("command, to measure it again:")
        self.assertEqual(shlex.split(lines[at + 1]), words)
        lines = self.tpjitter("report", self.run_directory, "--format", "md").stdout.splitlines()
        self.assertEqual(shlex.split(lines[lines.index("```sh") + 1]), words)

    def test_a_full_disk_behind_stdout_is_an_error(self):
        scenario = program.SOURCE / "scenarios" / "smoke.toml"
        for command in (["report", self.run_directory], ["list", "paths"], ["list", "metrics", "--json"],
                        ["list", "ops", "--path", "aten", "--phase", "normal_decode"],
                        ["plan", scenario, "--backend", "host"], ["--help"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([program.PROGRAM, *map(str, command)], stdout=full,
                                        stderr=subprocess.PIPE, text=True)
            self.assertEqual(result.returncode, 3, (command, result.stderr))
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_empty_values_are_refused(self):
        for options in (["-o", ""], ["--format", "perfetto", "--steps", ""],
                        ["--format", "perfetto", "--case", ""]):
            result = self.tpjitter("report", self.run_directory, *options)
            self.assertEqual((result.returncode, result.stdout), (2, ""), options)
            self.assertIn(options[-2], result.stderr)
        for options in (["--case", ""], ["--out", ""]):
            result = self.tpjitter("run", program.SOURCE / "scenarios" / "smoke.toml", *options)
            self.assertEqual(result.returncode, 2, options)

    def test_another_program_s_run_json_is_never_replaced(self):
        other = self.directory / "other"
        other.mkdir()
        (other / "run.json").write_text('{"schema": "somebody.run/7"}')
        result = self.tpjitter("run", self.scenario(), "--out", other, "--overwrite")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("not one of tpjitter", result.stderr)
        self.assertEqual((other / "run.json").read_text(), '{"schema": "somebody.run/7"}')

    def test_a_plan_takes_what_a_run_takes(self):
        plan = self.tpjitter("plan", self.scenario(), "--backend", "host", "--case", "fused",
                             "--launches", "7", "--world-size", "64")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("64 ranks, 7 launches", plan.stdout)
        names = [line.split()[0] for line in plan.stdout.splitlines() if line.startswith("  ")]
        self.assertEqual(names, ["fused"])
        if (os.cpu_count() or 1) < 64:
            self.assertIn("warning [oversubscribed]", plan.stdout)

    def test_options_without_a_meaning_are_refused(self):
        for options in (["--steps", "3"], ["--format", "perfetto", "--steps", "9..3"],
                        ["--format", "html", "--replays"], ["--format", "csv", "--case", "x"],
                        ["--format", "perfetto", "--case", "no such case"]):
            result = self.tpjitter("report", self.run_directory, *options)
            self.assertEqual(result.returncode, 2, options)
            self.assertEqual(result.stdout, "")
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_every_file_that_is_missing_or_cut_is_named_in_every_format(self):
        shutil.copy(self.run_directory / "rank0.phases.npy", self.directory / "whole.npy")
        rows = (self.directory / "whole.npy").read_bytes()
        for content in (None, b"", rows[:40], rows[:9000], rows.replace(b"(", b"{", 1)):
            file = self.run_directory / "rank0.phases.npy"
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
            for format_name in ("text", "md", "json", "html", "csv", "perfetto"):
                out = self.directory / "out"
                result = self.tpjitter("report", self.run_directory, "--format", format_name,
                                       "-o", out)
                self.assertIn(result.returncode, (3, 6), (format_name, result.stderr))
                if format_name not in ("csv", "perfetto"):
                    self.assertIn("rank0.phases.npy", out.read_text().replace("\\", ""))

    def test_a_run_json_that_cannot_be_read_is_diagnosed_and_nothing_is_written(self):
        whole = (self.run_directory / "run.json").read_text()
        for content, why in ((whole.replace("tpjitter.run/1", "tpjitter.run/2"), "newer"),
                             (whole[:len(whole) // 2], "too early"), ("", "run.json")):
            (self.run_directory / "run.json").write_text(content)
            for format_name in ("text", "html", "perfetto"):
                out = self.directory / "out"
                result = self.tpjitter("report", self.run_directory, "--format", format_name,
                                       "-o", out)
                self.assertEqual((result.returncode, result.stdout), (3, ""), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)
                self.assertIn(why, result.stderr)
                self.assertFalse(out.exists())

    @unittest.skipIf(NO_PANDAS, NO_PANDAS)
    def test_the_pandas_example_gives_the_medians_of_the_report(self):
        example = subprocess.run(
            [sys.executable, program.SOURCE / "reports" / "examples" / "pandas_example.py", RECORD],
            capture_output=True, text=True, check=True)
        summary = program.strict_json(self.tpjitter("report", RECORD, "--format", "json").stdout)
        for case in summary["cases"]:
            lines = [line.split() for line in example.stdout.splitlines() if case["name"] in line]
            self.assertEqual(len(lines), 1)
            # Nearest rank there, interpolated here: they differ by less than a neighbour's distance.
            p50 = case["ranks"][0]["metrics"]["dispatch_ns"]["p50"] / 1000
            self.assertAlmostEqual(float(lines[0][2]), p50, delta=0.05 * p50)


if __name__ == "__main__":
    program.main()
