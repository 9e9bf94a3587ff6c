"""What wrong usage is told: one line on stderr that names it, exit 2, and nothing is written."""
import subprocess
import unittest

from program import PROGRAM, ProgramTest, main


class Usage(ProgramTest):
    def refused(self, *words, parts):
        done = self.tpjitter(*words)
        self.assertEqual(done.returncode, 2, (words, done.stderr))
        self.assertEqual(done.stdout, "", words)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr, words)

    def test_a_command_that_does_not_exist_is_named_with_those_that_do(self):
        self.refused("reprot", "D", parts=["reprot: no such command; there are: run, plan, list"])
        self.refused("history", "show", parts=["show: no such command", "add, list, check"])
        self.refused("baseline", "D", parts=["D: no such command; there are: make"])
        self.refused("history", parts=["subcommand is required"])
        hidden = self.tpjitter("reprot").stderr
        self.assertNotIn("noise", hidden)

    def test_an_empty_file_name_is_not_taken_for_none(self):
        for flag in ("--baseline", "--thresholds", "--junit", "--markdown", "--annotations-file",
                     "-o"):
            self.refused("gate", "D", flag, "", parts=[flag, "is empty"])
        self.refused("compare", "A", "B", "--thresholds", "", parts=["--thresholds", "is empty"])
        self.refused("baseline", "make", "D", "-o", "", parts=["-o", "is empty"])
        self.refused("history", "list", "--db", "", parts=["--db", "is empty"])
        self.refused("selftest", "--out", "", parts=["--out", "is empty"])

    def test_thresholds_are_made_of_a_run_alone(self):
        for words in (["--baseline", "B"], ["--thresholds", "t.toml"], ["--junit", "j.xml"],
                      ["--markdown", "m.md"], ["--allow", "scenario"], ["--json"]):
            self.refused("gate", "--init", "D", *words, parts=["excludes", "--init", words[0]])

    def test_a_file_of_a_run_is_not_the_run(self):
        file = self.directory / "run.json"
        file.write_text("{}")
        self.refused("report", file, parts=["run.json: is a file; give the run directory"])
        self.refused("report", self.directory / "nothing", parts=["no such directory"])

    def test_a_dash_is_no_file(self):
        self.refused("plan", "smoke", "-", parts=["-"])
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), "--out", run, "--quiet", "--case", "fused",
                             "--set", "sampling.steps=5", "--set", "shape.layers=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refused("report", run, "-o", "-", parts=["-o -: names no file"])

    def test_standard_output_by_name_keeps_what_stands_around_it(self):
        run = self.directory / "D"
        self.tpjitter("run", self.scenario(), "--out", run, "--quiet", "--case", "fused",
                      "--set", "sampling.steps=5", "--set", "shape.layers=1")
        words = f'"{PROGRAM}" report "{run}" --format csv -o /dev/stdout'
        alone = self.tpjitter("report", run, "--format", "csv").stdout
        file = self.directory / "f"
        for command in (f"(echo head; {words}; echo tail) > {file}",
                        f"(echo head; {words}; echo tail) | cat > {file}"):
            subprocess.run(["sh", "-c", command], check=True, timeout=60)
            self.assertEqual(file.read_text(), f"head\n{alone}tail\n", command)


if __name__ == "__main__":
    main()
