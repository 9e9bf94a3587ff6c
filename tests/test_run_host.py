"""`tpjitter run` and `report` from end to end on the host backend."""
import re
import subprocess
import unittest

import numpy

from program import METRICS, ProgramTest, main, strict_json

SHORT = ["--set", "sampling.steps=60", "--set", "sampling.warmup_steps=5",
         "--set", "sampling.block_steps=25", "--set", "body.layer_us=5",
         "--set", "shape.layers=2"]


class SmokeRun(ProgramTest):
    def test_the_shipped_smoke_scenario_gives_a_complete_run(self):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), "--out", run)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(run), done.stdout)
        for path in ("aten", "fused", "fused_in_graph"):
            self.assertRegex(done.stdout, rf"(?m)^{path}\b")

        summary = strict_json(self.tpjitter("report", run, "--format", "json").stdout)
        self.assertEqual(summary["status"], "complete")
        self.assertEqual(summary["backend"], "host")
        self.assertEqual(summary["world_size"], 2)
        self.assertEqual(len(summary["cases"]), 3)
        for case in summary["cases"]:
            self.assertEqual([r["rank"] for r in case["ranks"]], [0, 1])
            for metric in METRICS:
                self.assertGreater(case["metrics"][metric]["n"], 0, metric)
            self.assertIsNotNone(case["metrics"]["dispatch_ns"]["p99"],
                                 "smoke has the samples for a p99")
            self.assertAlmostEqual(sum(r["laggard_share"] for r in case["ranks"]), 1, delta=0.2)

        info = self.run_info(run)
        self.assertEqual(info["schema"], "tpjitter.run/1")
        self.assertIsNone(info["status_reason"])
        for case in info["cases"]:
            self.assertTrue(case["bit_equal"])
            self.assertGreater(case["steps_checked"], 0)
            self.assertEqual(case["checksum_failures"], 0)
        by_path = {c["path"]: c["operations"] for c in info["cases"]}
        expected = {"calls": 28, "kernel_launches": 14, "copies": 3, "syncs": 0}
        self.assertEqual(by_path["aten"],
                         {**expected, "phases": [{"phase": "normal_decode", **expected}]})
        self.assertEqual(by_path["fused"]["kernel_launches"], 1)
        self.assertEqual(by_path["fused_in_graph"]["kernel_launches"], 0)

    def test_rows_are_complete_ordered_and_readable_by_numpy(self):
        run = self.directory / "D"
        self.assertEqual(self.tpjitter("run", self.scenario(), *SHORT, "--out", run).returncode, 0)
        for rank in (0, 1):
            rows = numpy.load(run / f"rank{rank}.phases.npy", mmap_mode="r")
            self.assertEqual(len(rows), 3 * 60)
            for name in rows.dtype.names:
                if rows.dtype[name] == "<i8" and name != "sequence":
                    self.assertTrue(name.endswith("_ns"), name)
            self.assertTrue((rows["sequence"] == numpy.arange(1, 181)).all())
            host = ["coupling_begin_ns", "accept_seen_ns", "inputs_begin_ns", "inputs_end_ns",
                    "dispatch_begin_ns", "dispatch_end_ns", "launch_begin_ns", "launch_end_ns"]
            for before, after in zip(host, host[1:]):
                self.assertTrue((rows[before] <= rows[after]).all(), f"{before} <= {after}")
            device = ["gpu_begin_ns", "first_all_reduce_own_ns", "first_all_reduce_last_seen_ns",
                      "first_all_reduce_end_ns", "gpu_end_ns"]
            for before, after in zip(device, device[1:]):
                self.assertTrue((rows[before] < rows[after]).all(), f"{before} < {after}")
            for case in range(3):
                steps = rows["step"][rows["case_index"] == case]
                self.assertTrue((steps == numpy.arange(60)).all())

    def test_the_model_turns_launch_skew_into_wait_exactly(self):
        run = self.directory / "D"
        self.tpjitter("run", self.scenario(), *SHORT, "--out", run, "--case", "fused_in_graph")
        flight = self.run_info(run)["model"]["flight_ns"]
        a, b = (numpy.load(run / f"rank{k}.phases.npy") for k in (0, 1))
        own = numpy.stack([a["first_all_reduce_own_ns"], b["first_all_reduce_own_ns"]])
        seen = numpy.stack([a["first_all_reduce_last_seen_ns"],
                            b["first_all_reduce_last_seen_ns"]])
        self.assertTrue((seen - own == own.max(axis=0) - own + flight).all())

    def test_aten_costs_more_dispatch_than_fused_and_fused_more_than_in_graph(self):
        run = self.directory / "D"
        self.tpjitter("run", self.scenario(), *SHORT, "--out", run)
        rows = numpy.load(run / "rank0.phases.npy")
        dispatch = rows["dispatch_end_ns"] - rows["dispatch_begin_ns"]
        # A modelled launch holds the host for at least its time, and nothing but work is above it:
        # the fastest rebuild of each path shows how many it has, however busy the machine is.
        aten, fused, in_graph = (dispatch[rows["case_index"] == i].min() for i in range(3))
        launch = self.run_info(run)["model"]["kernel_launch_host_ns"]
        self.assertGreaterEqual(aten, 7 * launch)
        self.assertGreaterEqual(fused, launch)
        self.assertLess(fused, aten)
        self.assertLess(in_graph, launch)

    def test_an_injected_delay_is_recovered_as_skew_on_the_right_rank(self):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), *SHORT, "--out", run, "--case", "fused",
                             "--set", "inject.where=before_launch", "--set", "inject.victim=1",
                             "--set", "inject.delay_us=20000")
        self.assertEqual(done.returncode, 0, done.stderr)
        case = strict_json(self.tpjitter("report", run, "--format", "json").stdout)["cases"][0]
        self.assertGreater(case["metrics"]["launch_skew_ns"]["p50"], 10_000_000)
        self.assertGreater(case["ranks"][1]["laggard_share"], 0.8)
        rows = numpy.load(run / "rank1.phases.npy")
        self.assertTrue((rows["injected_ns"] == 20_000_000).all())

    def test_launches_are_separate_processes_in_one_record(self):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), *SHORT, "--out", run, "--launches", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        info = self.run_info(run)
        self.assertEqual([launch["index"] for launch in info["launches"]], [0, 1, 2])
        orders = [[e["case_index"] for e in launch["order"]] for launch in info["launches"]]
        self.assertTrue(all(sorted(order) == [0, 1, 2] for order in orders))
        rows = numpy.load(run / "rank0.phases.npy")
        self.assertEqual(list(numpy.unique(rows["launch"])), [0, 1, 2])

    def test_eight_ranks_on_few_cores_give_a_usable_run(self):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), *SHORT, "--out", run, "--world-size", "8",
                             "--case", "fused")
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = strict_json(self.tpjitter("report", run, "--format", "json").stdout)
        self.assertEqual(len(summary["cases"][0]["ranks"]), 8)

    def test_several_scenarios_go_below_one_directory(self):
        other = self.write_scenario(self.scenario().read_text(), "other.toml")
        done = self.tpjitter("run", self.scenario(), other, *SHORT, "--out", self.directory / "D")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.run_info(self.directory / "D" / "smoke")["status"], "complete")
        self.assertEqual(self.run_info(self.directory / "D" / "other")["status"], "complete")

    def test_markdown_and_text_name_every_case_and_rank(self):
        run = self.directory / "D"
        self.tpjitter("run", self.scenario(), *SHORT, "--out", run)
        for form in ("text", "md"):
            text = self.tpjitter("report", run, "--format", form).stdout
            for word in ("aten", "fused", "fused_in_graph", "modelled device"):
                self.assertIn(word, text)
        self.assertNotIn("\x1b", text)

    def test_a_world_of_one_rank_runs_and_says_that_skew_needs_two(self):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), *SHORT, "--out", run, "--world-size", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        case = strict_json(self.tpjitter("report", run, "--format", "json").stdout)["cases"][0]
        skew = case["metrics"]["launch_skew_ns"]
        self.assertEqual(skew["n"], 0)
        self.assertTrue(skew["reasons"])


class SpeculativeRun(ProgramTest):
    # Launches, copies and syncs of a rebuild with PyTorch 2.11, batch 8: draft-decode without SWA
    # twice, target-verify with, draft-extend without.
    ATEN = [("draft_decode", 19, 10, 3, 1), ("draft_decode", 19, 10, 3, 1),
            ("target_verify", 30, 15, 3, 0), ("draft_extend_strided", 20, 9, 2, 0)]

    def run_cases(self, *extra):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario("spec_decode_smoke"), "--out", run, *SHORT, *extra)
        self.assertEqual(done.returncode, 0, done.stderr)
        return run, strict_json(self.tpjitter("report", run, "--format", "json").stdout)

    # Phases of a step, by composition; DE: the draft-extend of the case.
    PHASES = {"multi_layer": {"target_verify", "DE"}, "multi_layer_one_graph": {"target_verify", "DE"},
              "frozen_kv": {"draft_decode", "target_verify"}}
    # What has no draft-extend with prefix sums of accepted lengths.
    STRIDED_ONLY = {"pattern_b", "hybrid", "multi_layer", "multi_layer_one_graph", "frozen_kv"}

    def test_every_path_and_composition_runs_every_phase_and_is_verified(self):
        run, summary = self.run_cases()
        self.assertEqual(summary["status"], "complete")
        cases = self.run_info(run)["cases"]
        self.assertEqual(len(cases), 6 * 8 * 2)
        skipped = {c["name"] for c in cases if c["skip_reason"]}
        self.assertEqual(skipped, {c["name"] for c in cases
                                   if c["name"].endswith("/extend_cumsum")
                                   and c["name"].split("/")[1] in self.STRIDED_ONLY
                                   or c["name"].startswith("fused_multi/")
                                   and c["name"].split("/")[1] != "single"})
        for case in cases:
            if case["name"] in skipped:
                reason = case["skip_reason"].replace("draft-extend", "draft_extend")
                self.assertIn("built for composition single" if "fused_multi" in case["name"]
                              else "draft_extend", reason)
                continue
            self.assertTrue(case["bit_equal"], case["name"])
            self.assertEqual(case["steps_checked"], 2 * 65)
            self.assertEqual(case["checksum_failures"], 0)
        measured = [c for c in summary["cases"] if c["name"] not in skipped]
        self.assertEqual(len(measured), 5 * (8 * 2 - 5) + 2)
        for case in measured:
            extend = "draft_extend_cumsum" if "cumsum" in case["name"] else "draft_extend_strided"
            phases = self.PHASES.get(case["name"].split("/")[1],
                                     {"draft_decode", "target_verify", "DE"})
            self.assertEqual(set(case["phases"]), {extend if p == "DE" else p for p in phases})
            for phase in case["phases"].values():
                self.assertGreater(phase["dispatch_ns"]["n"], 0)

    def launches(self, *extra):
        """Rebuilds and graph launches of a step."""
        run, _ = self.run_cases("--overwrite", *extra)
        rows = numpy.load(run / "rank0.phases.npy")
        launched = rows[rows["launch_begin_ns"] > 0]
        self.assertTrue((rows["flags"][rows["launch_begin_ns"] == 0] & 1 == 1).all())
        return len(rows) / 60, len(launched) / 60

    def test_a_step_has_four_rebuilds_and_three_or_four_graph_launches(self):
        case = ("--case", "fused/single/extend_strided")
        self.assertEqual(self.launches(*case), (4, 3))
        self.assertEqual(self.launches(*case, "--set", "step.graph_layout=per_pass"), (4, 4))

    def test_the_runners_have_their_own_rebuilds_and_launches(self):
        for composition, expected in (("multi_layer", (4, 4)), ("multi_layer_one_graph", (2, 2)),
                                      ("frozen_kv", (2, 2))):
            self.assertEqual(self.launches("--case", f"fused/{composition}/extend_strided"), expected,
                             composition)

    def test_the_op_by_op_path_does_what_pytorch_does(self):
        run, _ = self.run_cases("--case", "aten/single/extend_strided")
        operations = self.run_info(run)["cases"][0]["operations"]
        got = [(p["phase"], p["calls"], p["kernel_launches"], p["copies"], p["syncs"])
               for p in operations["phases"]]
        self.assertEqual(got, self.ATEN)
        self.assertEqual(operations["kernel_launches"], sum(p[2] for p in self.ATEN))

    def test_a_mode_that_a_composition_has_not_is_refused(self):
        for composition in ("hybrid", "multi_layer", "multi_layer_one_graph", "frozen_kv",
                            "tree"):
            done = self.tpjitter("plan", self.scenario(), "--set", f"step.composition={composition}")
            self.assertEqual(done.returncode, 2)
            self.assertIn("step.composition", done.stderr)
            self.assertIn(f"{composition} has no step.mode", done.stderr)

    def test_the_list_of_compositions_names_what_each_is_and_its_modes(self):
        listing = strict_json(self.tpjitter("list", "compositions", "--json").stdout)
        modes = {entry["name"]: entry["modes"] for entry in listing}
        self.assertEqual(modes["single"], ["decode", "speculative"])
        self.assertEqual(modes["frozen_kv"], ["speculative"])
        self.assertEqual(modes["tree"], ["speculative"])
        self.assertEqual(len(modes), 9)
        for entry in listing:
            self.assertEqual(set(entry), {"name", "summary", "source", "modes"})
        self.assertEqual(self.tpjitter("list", "compositions").stdout.count("\n"), 9)

    def test_op_by_op_without_the_sync_is_refused_before_anything_is_written(self):
        done = self.tpjitter("run", self.scenario("spec_decode_smoke"), "--out",
                             self.directory / "D", "--set", "step.seq_lens_sync=false")
        self.assertEqual(done.returncode, 2)
        self.assertIn("seq_lens_sync", done.stderr)
        self.assertFalse((self.directory / "D").exists())


class RunAhead(ProgramTest):
    def test_the_host_is_ahead_and_every_step_is_still_verified(self):
        run = self.directory / "D"
        done = self.tpjitter("run", self.scenario(), *SHORT, "--out", run, "--case", "*fused_in*",
                             "--set", "step.loop=run_ahead", "--set", "step.run_ahead_depth=3",
                             "--set", "body.layer_us=1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.run_info(run)["cases"][0]["checksum_failures"], 0)
        rows = numpy.load(run / "rank0.phases.npy")
        # Launched before the replays in front of it had ended; most of them, for on a busy machine
        # the host falls back now and then.
        inside = rows["step"] % 25 > 5
        ahead = rows["launch_begin_ns"][inside] < rows["gpu_begin_ns"][inside]
        self.assertGreater(ahead.mean(), 0.5)
        steps = numpy.flatnonzero(inside)
        earlier = rows["gpu_end_ns"][steps - 1] > rows["launch_begin_ns"][steps]
        self.assertGreater(earlier.mean(), 0.5)


class Commands(ProgramTest):
    def test_plan_and_list_answer_without_measuring(self):
        plan = self.tpjitter("plan", self.scenario())
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("fused_in_graph", plan.stdout)
        for what in ("paths", "scenarios", "metrics"):
            listed = self.tpjitter("list", what, "--json")
            names = [entry["name"] for entry in strict_json(listed.stdout)]
            self.assertEqual(len(names), len(set(names)))
        self.assertIn("dispatch_ns", names)

    def test_usage_errors_exit_with_2(self):
        for words in (["frobnicate"], [], ["run"], ["report"], ["run", self.scenario(), "--launches", "0"],
                      ["run", self.scenario(), "--backend", "abacus"],
                      ["run", self.scenario(), "--case", "no_such_case"],
                      ["report", self.directory / "nothing"]):
            done = subprocess.run([self.command("list")[0], *map(str, words)],
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, f"{words}: {done.stdout}{done.stderr}")

    def test_more_ranks_than_gpus_is_refused_with_advice(self):
        done = subprocess.run([self.command("list")[0], "run", str(self.scenario()), "--backend",
                               "cuda", "--world-size", "64", "--out", str(self.directory / "D")],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, re.compile("--backend host|not in this build"))
        self.assertFalse((self.directory / "D").exists())


if __name__ == "__main__":
    main()
