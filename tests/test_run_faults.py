"""Bad input and faults of `tpjitter run` on the host backend: named, bounded, nothing lost."""
import os
import resource
import shlex
import signal
import subprocess
import time
import unittest

import numpy

from program import DEADLINE_SCALE, PROGRAM, ProgramTest, main, strict_json

LONG = ["--set", "sampling.steps=100000", "--set", "sampling.block_steps=50",
        "--set", "body.layer_us=20", "--set", "shape.layers=4", "--case", "fused"]
LIMIT_S = 15 * max(1.0, float(DEADLINE_SCALE))


class Faults(ProgramTest):
    def start_and_wait_for_rows(self, *extra, rows=1):
        run = self.directory / "D"
        launcher = self.start("run", self.scenario(), *LONG, *extra, "--out", run)
        give_up = time.monotonic() + 60 * max(1.0, float(DEADLINE_SCALE))
        while time.monotonic() < give_up:
            try:
                if len(numpy.load(run / "rank1.phases.npy", mmap_mode="r")) >= rows:
                    return run, launcher
            except (OSError, ValueError):
                pass
            os.sched_yield()
        launcher.kill()
        self.fail(f"no rows were written: {launcher.communicate()}")

    def finish(self, launcher):
        begin = time.monotonic()
        out, err = launcher.communicate(timeout=4 * LIMIT_S)
        self.assertLess(time.monotonic() - begin, LIMIT_S)
        return out, err

    def check_incomplete(self, run, launcher, err):
        self.assertEqual(launcher.returncode, 3, err)
        info = self.run_info(run)
        self.assertEqual(info["status"], "incomplete")
        self.assertEqual(self.ranks_of(launcher), {})
        report = self.tpjitter("report", run)
        self.assertEqual(report.returncode, 3, report.stderr)
        summary = strict_json(self.tpjitter("report", run, "--format", "json").stdout)
        self.assertEqual(summary["status"], "incomplete")
        for rank in range(2):
            rows = numpy.load(run / f"rank{rank}.phases.npy")
            self.assertGreater(len(rows), 0)
            self.assertTrue((rows["sequence"] == numpy.arange(1, len(rows) + 1)).all())
        return info, report.stdout

    def check_floors_are_kept(self, summary):
        """The controls before the cases are in the record, so waits still have their floor."""
        excess = summary["cases"][0]["metrics"]["first_all_reduce_excess_wait_ns"]
        self.assertGreater(excess["n"], 0, excess["reasons"])

    def test_a_killed_rank_is_named_and_its_rows_are_kept(self):
        run, launcher = self.start_and_wait_for_rows(rows=100)
        os.kill(self.ranks_of(launcher)[1], signal.SIGKILL)
        _, err = self.finish(launcher)
        info, text = self.check_incomplete(run, launcher, err)
        self.assertRegex(err, r"rank 1 was killed by signal 9 .* step \d+, stage ")
        self.assertEqual(info["ranks"][1]["status"], "died")
        self.assertRegex(info["ranks"][1]["ended_at"], r"case fused, step \d+, stage")
        self.assertIn("rank 1", text)
        summary = strict_json(self.tpjitter("report", run, "--format", "json").stdout)
        self.check_floors_are_kept(summary)

    def test_a_stopped_rank_ends_the_run_within_its_deadline(self):
        run, launcher = self.start_and_wait_for_rows()
        os.kill(self.ranks_of(launcher)[1], signal.SIGSTOP)
        _, err = self.finish(launcher)
        info, _ = self.check_incomplete(run, launcher, err)
        self.assertRegex(err, r"rank 1 is stopped \(signal STOP\) at .* stage ")
        # Rank 0 has only waited for it.
        self.assertEqual([r["status"] for r in info["ranks"]], ["stopped", "hung"], err)

    def test_a_late_rank_is_named_and_not_who_waited_for_it(self):
        run = self.directory / "D"
        # Held before its first launch for longer than the other may wait: 0.8 s.
        done = subprocess.run(
            [PROGRAM, "run", str(self.scenario()), *LONG, "--out", str(run), "--backend", "host",
             "--deadline-scale", "0.4", "--set", "inject.where=before_launch",
             "--set", "inject.victim=1", "--set", "inject.every_steps=1",
             "--set", "inject.delay_us=1000000"],
            capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"rank 1 was waited for in vain at .* stage ")
        self.assertRegex(done.stderr, r"rank 0: the first all-reduce .* waited 800 ms for rank 1")
        ends = [rank["status"] for rank in self.run_info(run)["ranks"]]
        self.assertEqual(ends, ["stopped", "hung"], done.stderr)

    def test_a_child_whose_parent_is_another_one_ends_at_once(self):
        # As one does whose launcher died before the child could ask to die with it.
        for words in (["rank", "--rank", "0"], ["noise"]):
            done = subprocess.run([PROGRAM, *words, "--control-fd", "0", "--parent",
                                   str(os.getppid())], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(done.returncode, 3, words)
            self.assertEqual(done.stderr, "", words)  # it has looked at nothing

    def test_ctrl_c_keeps_what_was_measured(self):
        run, launcher = self.start_and_wait_for_rows()
        launcher.send_signal(signal.SIGINT)
        _, err = self.finish(launcher)
        info, _ = self.check_incomplete(run, launcher, err)
        self.assertIn("interrupted", info["status_reason"])

    def test_a_killed_launcher_takes_its_ranks_with_it(self):
        run, launcher = self.start_and_wait_for_rows(rows=300)
        pids = list(self.ranks_of(launcher).values())
        self.assertEqual(len(pids), 2)
        launcher.kill()
        launcher.communicate()
        give_up = time.monotonic() + LIMIT_S
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            self.assertLess(time.monotonic(), give_up, "a rank outlived its launcher")
            os.sched_yield()
        report = self.tpjitter("report", run, "--format", "json")
        self.assertEqual(report.returncode, 3)
        summary = strict_json(report.stdout)
        self.assertEqual(summary["status"], "incomplete")
        self.check_floors_are_kept(summary)


class OutputDirectory(ProgramTest):
    SHORT = ["--set", "sampling.steps=5", "--set", "sampling.warmup_steps=1",
             "--set", "body.layer_us=1", "--set", "shape.layers=1", "--case", "fused"]

    def test_a_directory_that_is_no_run_is_left_alone(self):
        other = self.directory / "photos"
        other.mkdir()
        (other / "a.jpg").write_text("x")
        done = self.tpjitter("run", self.scenario(), *self.SHORT, "--out", other, "--overwrite")
        self.assertEqual(done.returncode, 2)
        self.assertIn("not a run", done.stderr)
        self.assertEqual([p.name for p in other.iterdir()], ["a.jpg"])

    def test_a_run_is_only_replaced_with_overwrite(self):
        run = self.directory / "D"
        self.assertEqual(self.tpjitter("run", self.scenario(), *self.SHORT, "--out", run).returncode, 0)
        before = (run / "run.json").read_bytes()
        done = self.tpjitter("run", self.scenario(), *self.SHORT, "--out", run)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--overwrite", done.stderr)
        self.assertEqual((run / "run.json").read_bytes(), before)
        done = self.tpjitter("run", self.scenario(), *self.SHORT, "--out", run, "--overwrite")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_run_in_progress_keeps_its_directory(self):
        run = self.directory / "D"
        first = self.start("run", self.scenario(), *LONG, "--out", run)
        give_up = time.monotonic() + 60 * max(1.0, float(DEADLINE_SCALE))
        while not (run / "run.json").exists():
            self.assertLess(time.monotonic(), give_up)
            os.sched_yield()
        second = self.tpjitter("run", self.scenario(), *self.SHORT, "--out", run, "--overwrite")
        self.assertEqual(second.returncode, 2, second.stderr)
        self.assertIn("in progress", second.stderr)
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=4 * LIMIT_S)
        self.assertEqual(first.returncode, 3, err)
        info = self.run_info(run)
        self.assertIn("interrupted", info["status_reason"])
        self.assertEqual([w["code"] for w in info["warnings"] if w["code"] == "rank_died"], [])

    def test_two_scenarios_never_share_a_directory(self):
        done = self.tpjitter("run", self.scenario(), self.scenario(), *self.SHORT, "--out",
                             self.directory / "D")
        self.assertEqual(done.returncode, 2)
        self.assertFalse((self.directory / "D").exists())

    def test_a_stderr_that_cannot_be_written_changes_nothing(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for words, code in ((["plan", "absent.toml"], 2),
                                (["report", self.directory / "absent"], 2),
                                (["run", self.scenario(), *self.SHORT, "--out",
                                  self.directory / "D"], 0)):
                done = subprocess.run(self.command(*words), stdout=subprocess.PIPE, stderr=full,
                                      timeout=240, check=False)
                self.assertEqual(done.returncode, code, words)

    def in_namespace(self, options, script):
        """Runs `script` where $PLACE is a tmpfs of its own that nobody else sees."""
        place = self.directory / "mount"
        place.mkdir()
        inner = f'mount -t tmpfs -o {options} tmpfs "$PLACE" || exit 77; {script}'
        done = subprocess.run(["unshare", "-m", "sh", "-c", inner], capture_output=True, text=True,
                              env={**os.environ, "PLACE": str(place)}, timeout=240, check=False)
        if done.returncode == 77 or "unshare failed" in done.stderr:
            self.skipTest("a mount namespace needs root")
        return done

    def words(self, *words):
        """For `script`: PLACE is its tmpfs."""
        return shlex.join(self.command(*words)).replace("PLACE", '"$PLACE"')

    def test_a_full_disk_is_named(self):
        run = self.words("run", self.scenario(), "--set", "sampling.steps=5000", "--out",
                         "PLACE/D")
        done = self.in_namespace("size=64k", run)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("rank0.phases.npy", done.stderr)
        self.assertIn("No space left", done.stderr)

    def test_a_disk_that_fills_during_the_run_keeps_every_row(self):
        run = self.words("run", self.scenario(), *self.SHORT, "--set", "sampling.steps=3000",
                         "--quiet", "--out", "PLACE/D")
        report = self.words("report", "--format", "json", "PLACE/D")
        # Rows are reserved, run.json is not: it is what finds no room.
        done = self.in_namespace("size=8m", f"""
            {run} >/dev/null 2>"$PLACE/../err" & pid=$!
            until grep -q zero_skew "$PLACE/D/run.json" || ! kill -0 $pid; do :; done 2>/dev/null
            dd if=/dev/zero of="$PLACE/fill" bs=4k >/dev/null 2>&1
            wait $pid; echo "exit $?"
            rm "$PLACE/fill"
            {report}""")
        err = (self.directory / "err").read_text()
        first, _, summary = done.stdout.partition("\n")
        self.assertEqual(first, "exit 3", err)
        self.assertIn("run.json", err)
        self.assertIn("No space left", err)
        summary = strict_json(summary)
        self.assertEqual(summary["status"], "incomplete")
        self.assertEqual(summary["rows"], 2 * 3000)
        self.assertGreater(
            summary["cases"][0]["metrics"]["first_all_reduce_excess_wait_ns"]["n"], 0)

    def test_a_read_only_place_is_refused(self):
        run = self.words("run", self.scenario(), *self.SHORT, "--out", "PLACE/D")
        done = self.in_namespace("ro", run)
        self.assertIn(done.returncode, (2, 3), done.stderr)
        self.assertIn("Read-only", done.stderr)

    def limited(self, limit, *words):
        """Runs with no file, and no shared memory, larger than `limit` bytes."""
        def limit_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=240,
                              preexec_fn=limit_files, check=False)

    def test_shared_memory_that_cannot_be_had_is_named(self):
        run = self.directory / "D"
        done = self.limited(1 << 20, "run", self.scenario(), *self.SHORT, "--out", run)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"shared memory of \d+ MiB for 2 ranks could not be made")
        self.assertEqual(self.run_info(run)["status"], "incomplete")

    def test_a_limit_on_file_sizes_is_named(self):
        run = self.directory / "D"
        done = self.limited(64 << 10, "run", self.scenario(), "--set", "sampling.steps=5000",
                            "--out", run)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("rank0.phases.npy", done.stderr)
        self.assertIn("File too large", done.stderr)


class BadScenarios(ProgramTest):
    GOOD = 'summary = "s"\nsource = "t"\nworld_size = 2\n'

    def check(self, text, *words):
        path = self.write_scenario(text)
        done = self.tpjitter("run", path, "--out", self.directory / "D")
        self.assertEqual(done.returncode, 2, f"{text}: {done.stderr}")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in ("case.toml", *words):
            self.assertIn(word, done.stderr)
        self.assertFalse((self.directory / "D").exists())

    def test_each_mistake_names_file_line_and_key(self):
        self.check(self.GOOD + "[shape]\nbatch_sise = 8\n", ":5:", "batch_sise", "batch_size")
        self.check(self.GOOD + '[shape]\nbatch_size = "8"\n', ":5:", "batch_size")
        self.check(self.GOOD + "[shape]\nbatch_size = 0\n", ":5:", "batch_size")
        self.check(self.GOOD + "[shape]\nbatch_size = []\n", ":5:", "batch_size")
        self.check(self.GOOD + "[shape]\npage_size = 48\n", ":5:", "page_size")
        self.check(self.GOOD + "[shape]\nbatch_size = 9\ncapture_batch_sizes = [1, 8]\n",
                   "batch_size")
        self.check("", "summary")
        self.check("this is [not TOML", ":1:")

    def test_a_missing_file_is_named(self):
        done = self.tpjitter("run", self.directory / "absent.toml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("absent.toml", done.stderr)


if __name__ == "__main__":
    main()
