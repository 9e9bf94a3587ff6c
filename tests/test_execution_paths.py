"""How a step is executed and coupled: each key on the host backend, and what is refused."""
import unittest

import numpy

from program import ProgramTest, main

SHORT = ["--set", "sampling.steps=40", "--set", "sampling.warmup_steps=5",
         "--set", "sampling.block_steps=20", "--set", "body.layer_us=5", "--set", "shape.layers=2"]
PATHS = ["aten", "page_table_kernel", "glue_graph", "fused", "fused_in_graph"]


class ExecutionPaths(ProgramTest):
    def measure(self, *settings, scenario="execution_paths", name="D"):
        run = self.directory / name
        words = [word for setting in settings for word in ("--set", setting)]
        done = self.tpjitter("run", self.scenario(scenario), *SHORT, *words, "--out", run)
        self.assertEqual(done.returncode, 0, done.stderr)
        info = self.run_info(run)
        self.assertEqual(info["status"], "complete")
        for case in info["cases"]:
            self.assertTrue(case["bit_equal"], case["name"])
            self.assertGreaterEqual(case["steps_checked"], 2 * 40)
            self.assertEqual(case["checksum_failures"], 0, case["name"])
        return info, [numpy.load(run / f"rank{rank}.phases.npy") for rank in (0, 1)]

    def test_eager_pays_its_launches_in_the_launch_stage_and_dispatch_stays(self):
        info, rows = self.measure()
        names = [case["name"] for case in info["cases"]]
        self.assertEqual(names, [f"{path}/{how}" for path in PATHS for how in ("graph", "eager")])
        launch = info["model"]["kernel_launch_host_ns"]
        for rank_rows in rows:
            spent = rank_rows["launch_end_ns"] - rank_rows["launch_begin_ns"]
            for index, name in enumerate(names):
                here = rank_rows["case_index"] == index
                # Four kernels a layer and the last one; in the graph the metadata kernel too.
                nodes = 2 * 4 + 1 + ("in_graph" in name)
                if name.endswith("eager"):
                    self.assertTrue((spent[here] >= nodes * launch).all(), name)
                else:
                    self.assertLess(numpy.median(spent[here]), nodes * launch, name)

    def test_a_glue_graph_is_one_launch(self):
        info, rows = self.measure("step.path=glue_graph", "step.execution=graph")
        counts = info["cases"][0]["operations"]
        self.assertEqual((counts["calls"], counts["kernel_launches"], counts["copies"],
                          counts["syncs"]), (1, 1, 0, 0))
        model = info["model"]
        nodes = 14 + 3  # of the op-by-op form with sliding windows
        least = (model["graph_launch_host_ns"]
                 + nodes * model["graph_launch_host_per_1000_nodes_ns"] // 1000)
        for rank_rows in rows:
            spent = rank_rows["dispatch_end_ns"] - rank_rows["dispatch_begin_ns"]
            self.assertTrue((spent >= least).all())
            self.assertLess(numpy.median(spent), 2 * model["kernel_launch_host_ns"])

    def test_a_glue_graph_needs_no_sync_in_speculative_steps(self):
        info, _ = self.measure("step.path=glue_graph", "step.mode=speculative",
                               "step.execution=graph", "step.draft_swa=true")
        self.assertEqual(info["cases"][0]["operations"]["syncs"], 0)
        self.assertEqual(info["cases"][0]["operations"]["kernel_launches"], 4)

    def test_with_rank0_the_others_know_no_result_before_rank_0_has_it(self):
        for loop, ahead in (("coupled", 0), ("run_ahead", 2)):
            _, rows = self.measure("step.coupling=rank0", f"step.loop={loop}",
                                   f"step.run_ahead_depth={max(ahead, 1)}", "step.path=fused",
                                   "step.execution=graph", name=loop)
            behind = 1 + ahead
            # Within a block; the first steps of the next one find the device empty.
            first = {field: [r[field][:20] for r in rows] for field in
                     ("accept_seen_ns", "gpu_end_ns")}
            for rank in (0, 1):
                self.assertTrue((first["accept_seen_ns"][rank][behind:]
                                 >= first["gpu_end_ns"][0][:-behind]).all(), f"{loop} {rank}")

    def test_every_position_of_the_read_done_event_gives_the_right_metadata(self):
        for read_done in ("pre_replay", "in_replay", "post_replay"):
            paths = PATHS if read_done != "pre_replay" else PATHS[:-1]
            self.measure(f"step.read_done={read_done}", "step.loop=run_ahead",
                         "step.run_ahead_depth=2", f"step.path={paths}".replace("'", '"'),
                         name=read_done)

    def refused(self, *settings, parts, scenario="execution_paths"):
        words = [word for setting in settings for word in ("--set", setting)]
        for command in ("plan", "run"):
            done = self.tpjitter(command, self.scenario(scenario), *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            for part in parts:
                self.assertIn(part, done.stderr)

    def test_an_event_before_a_replay_that_reads_is_refused(self):
        for execution in ("graph", "eager"):
            self.refused("step.read_done=pre_replay", "step.path=fused_in_graph",
                         f"step.execution={execution}",
                         parts=["step.read_done", "fused_in_graph", "inside the replay",
                                "in_replay or post_replay"])

    def test_a_glue_graph_of_a_padded_batch_is_refused(self):
        self.refused("step.path=glue_graph", "shape.batch_size=6",
                     "shape.capture_batch_sizes=[4, 8]",
                     parts=["shape.capture_batch_sizes", "6 requests", "padded to 8"])

    def test_a_static_bound_below_a_live_length_is_refused(self):
        self.refused("shape.max_context_tokens=4096", parts=["shape.max_context_tokens", "4096"])
        # Room for the context, but not for the tokens of a step after it.
        self.refused("shape.max_context_tokens=8194",
                     parts=["shape.max_context_tokens", "8194", "no room for the tokens of a step"])

    def test_a_batch_larger_than_every_captured_one_is_refused(self):
        self.refused("shape.batch_size=17", "shape.capture_batch_sizes=[1, 8]",
                     parts=["shape.batch_size", "no graph is captured for 17 requests"])

    def test_op_by_op_speculative_steps_without_the_sync_are_refused(self):
        self.refused("step.mode=speculative", "step.path=aten", "step.seq_lens_sync=false",
                     parts=["step.seq_lens_sync", "aten in speculative mode"])

    def test_one_launch_for_several_phases_is_refused_where_a_step_has_one(self):
        self.refused("step.mode=decode", "step.path=fused_multi",
                     parts=["step.path", "fused_multi", "mode decode has one"])

    def test_one_launch_for_several_phases_rebuilds_a_step_in_two(self):
        info, rows = self.measure("step.path=fused_multi", "step.mode=speculative",
                                  "step.draft_swa=true")
        for case in info["cases"]:
            counts = [phase["kernel_launches"] for phase in case["operations"]["phases"]]
            self.assertEqual(counts, [1, 0, 0, 1])
        for rank_rows in rows:
            spent = rank_rows["dispatch_end_ns"] - rank_rows["dispatch_begin_ns"]
            verify = rank_rows["phase"] == 2
            self.assertLess(numpy.median(spent[verify]), info["model"]["kernel_launch_host_ns"])

    def test_a_path_that_is_not_built_says_how_to_get_it(self):
        words = ["--set", "step.path=[fused,torch]", "--set", "step.execution=graph"]
        done = self.tpjitter("plan", self.scenario("execution_paths"), *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("torch", done.stdout)
        self.assertIn("skipped", done.stdout)

    def test_a_profile_without_a_table_is_refused_or_is_in_the_record(self):
        profile = ["step.op_overhead_ns=python", "step.path=aten", "step.execution=graph"]
        words = [word for setting in profile for word in ("--set", setting)]
        done = self.tpjitter("plan", self.scenario("execution_paths"), *words)
        if done.returncode == 2:  # no table has been measured yet
            self.assertIn("scripts/calibrate_dispatch.py", done.stderr)
            return
        info, rows = self.measure(*profile)
        operations = info["cases"][0]["operations"]
        table, calls = operations["dispatch_profile"], operations["calls"]
        self.assertEqual(table["schema"], "tpjitter.dispatch_profile/1")
        self.assertIn(table["measured"]["date"],
                      info["environment"]["dispatch_profiles"]["python"])
        slow = table.get("rebuild_permille", [1000])[0]
        least = min(quantiles[0] for quantiles in table["quantiles_ns"].values()) * slow // 1000
        for rank_rows in rows:
            spent = rank_rows["dispatch_end_ns"] - rank_rows["dispatch_begin_ns"]
            self.assertTrue((spent >= calls * least).all())
        self.assertIn("modelled_dispatch", [warning["code"] for warning in info["warnings"]])

    def test_overhead_that_reaches_no_call_is_said(self):
        note = ("step.op_overhead_ns changes nothing in case fused: fused makes no dispatcher "
                "calls")
        settings = ["step.op_overhead_ns=500", "step.path=[aten,fused]", "step.execution=graph"]
        words = [word for setting in settings for word in ("--set", setting)]
        done = self.tpjitter("plan", self.scenario("execution_paths"), *words)
        self.assertIn(f"note: {note}\n", done.stdout)
        info, _ = self.measure(*settings)
        self.assertIn({"code": "key_without_effect", "text": note, "rank": None},
                      info["warnings"])
        report = self.tpjitter("report", self.directory / "D", "--format", "md")
        self.assertIn("changes nothing in case fused", report.stdout.replace("\\", ""))

    def test_trees_that_mean_nothing_are_refused(self):
        tree = ["step.mode=speculative", "step.composition=tree", "shape.swa=false",
                "step.path=fused"]
        self.refused("step.topk=4", parts=["step.composition", "single drafts one branch"])
        self.refused(*tree, parts=["step.composition", "needs step.topk = 2 or more"])
        self.refused(*tree, "step.topk=8", parts=["whose root has 8 branches"])
        self.refused(*tree, "step.topk=2", "step.draft_steps=2", "step.draft_tokens=8",
                     parts=["trees of 7 tokens"])
        self.refused(*tree, "step.topk=9", parts=["step.topk", "1..8"])

    def test_what_a_tree_has_not_is_skipped_with_the_reason(self):
        done = self.tpjitter("plan", self.scenario("topk_smoke"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no page-table kernel", done.stdout)
        done = self.tpjitter("plan", self.scenario("topk_smoke"), "--set", "shape.swa=true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no third object for sliding windows", done.stderr)

    def test_trees_run_on_every_path_that_has_them(self):
        info, rows = self.measure("step.path=[\"aten\", \"glue_graph\", \"fused\", \"fused_in_graph\"]",
                                  scenario="topk_smoke")
        self.assertEqual([case["name"] for case in info["cases"]],
                         ["aten", "glue_graph", "fused", "fused_in_graph"])
        for rank_rows in rows:
            for index in range(4):
                here = rank_rows[rank_rows["case_index"] == index]
                self.assertEqual(len(here), 40 * 6)  # four draft passes, verify, draft-extend
                self.assertEqual((here["launch_begin_ns"] > 0).sum(), 40 * 3)

    def test_unknown_values_name_the_allowed_ones(self):
        self.refused("step.execution=lazy", parts=["step.execution", "graph", "eager"])
        self.refused("step.coupling=rank1", parts=["step.coupling", "own", "rank0"])
        self.refused("step.read_done=never", parts=["step.read_done", "pre_replay", "in_replay"])


if __name__ == "__main__":
    main()
