"""`tpjitter list ops`: the program's own account of what a rebuild does equals what was measured."""
from program import ProgramTest, main, strict_json

PHASES = ["normal_decode", "draft_decode", "target_verify", "draft_extend_cumsum",
          "draft_extend_strided"]
# (calls, kernel launches, copies, syncs) without and with SWA, profiled with PyTorch on a GPU.
MEASURED_ATEN = {
    "normal_decode": ((16, 7, 2, 0), (28, 14, 3, 0)),
    "draft_decode": ((19, 10, 3, 1), (31, 17, 4, 1)),
    "target_verify": ((18, 8, 2, 0), (30, 15, 3, 0)),
    "draft_extend_cumsum": ((21, 10, 2, 0), (33, 17, 3, 0)),
    "draft_extend_strided": ((20, 9, 2, 0), (32, 16, 3, 0)),
}


class ListOps(ProgramTest):
    def ops(self, path, phase, *flags):
        result = self.tpjitter("list", "ops", "--path", path, "--phase", phase, *flags, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return strict_json(result.stdout)

    def paths(self):
        return [path["name"] for path in strict_json(self.tpjitter("list", "paths", "--json").stdout)]

    def totals(self, listing):
        totals = listing["totals"]
        for key in ("kernel_launches", "copies", "syncs"):
            self.assertEqual(sum(op[key] for op in listing["ops"]), totals[key])
        self.assertEqual(len(listing["ops"]), totals["calls"])
        return (totals["calls"], totals["kernel_launches"], totals["copies"], totals["syncs"])

    def test_aten_totals_equal_the_measured_ones_in_all_ten_combinations(self):
        for phase in PHASES:
            for swa in (False, True):
                with self.subTest(phase=phase, swa=swa):
                    listing = self.ops("aten", phase, *(["--swa"] if swa else []))
                    self.assertEqual(self.totals(listing), MEASURED_ATEN[phase][swa])
                    self.assertEqual((listing["path"], listing["phase"], listing["swa"]),
                                     ("aten", phase, swa))

    def test_page_table_kernel_launches_once_for_the_table_and_never_syncs(self):
        for phase in PHASES:
            for flags in ([], ["--swa"]):
                with self.subTest(phase=phase, flags=flags):
                    listing = self.ops("page_table_kernel", phase, *flags)
                    _, launches, copies, syncs = self.totals(listing)
                    self.assertTrue(3 <= launches <= 8, launches)
                    self.assertEqual(copies, 3 if flags else 2)
                    self.assertEqual(syncs, 0)
                    names = [op["name"] for op in listing["ops"]]
                    self.assertEqual(names.count("page_table_kernel"), 1)
                    self.assertLessEqual({op["kind"] for op in listing["ops"]},
                                         {"view", "kernel", "copy"})

    def test_fused_is_one_kernel_and_in_graph_nothing(self):
        for phase in PHASES:
            fused = self.ops("fused", phase, "--swa")
            self.assertEqual(self.totals(fused), (1, 1, 0, 0))
            self.assertEqual(fused["ops"][0]["kind"], "kernel")
            in_graph = self.ops("fused_in_graph", phase, "--swa")
            self.assertEqual(self.totals(in_graph), (0, 0, 0, 0))
            self.assertEqual(in_graph["ops"], [])

    def test_a_glue_graph_is_one_graph_launch_and_never_syncs(self):
        for phase in PHASES:
            for flags in ([], ["--swa"]):
                listing = self.ops("glue_graph", phase, *flags)
                self.assertEqual(self.totals(listing), (1, 1, 0, 0))
                self.assertEqual([(op["name"], op["kind"]) for op in listing["ops"]],
                                 [("cudaGraphLaunch", "graph")])

    def test_an_operation_has_its_kind_dtype_and_shape(self):
        listing = self.ops("aten", "draft_extend_strided")
        seq_lens, gather = listing["ops"][0], next(
            op for op in listing["ops"] if op["name"] == "index")
        self.assertEqual((seq_lens["name"], seq_lens["kind"], seq_lens["dtype"],
                          seq_lens["shape"]), ("slice", "view", "int64", [8]))
        self.assertEqual((gather["kind"], gather["dtype"], gather["shape"],
                          gather["kernel_launches"]), ("kernel", "int32", [8, 63], 3))
        sync = [op for op in self.ops("aten", "draft_decode")["ops"] if op["kind"] == "sync"]
        self.assertEqual([(op["name"], op["shape"]) for op in sync], [("item", [])])

    def test_text_is_aligned_and_ends_with_the_totals(self):
        result = self.tpjitter("list", "ops", "--path", "aten", "--phase", "draft_decode", "--swa")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1 + 31 + 1)
        self.assertEqual(len({len(line) for line in lines}), 1)
        self.assertEqual(lines[0].split(),
                         ["name", "kind", "dtype", "shape", "launches", "copies", "syncs"])
        self.assertEqual(lines[-1].split(), ["total,", "31", "calls", "17", "4", "1"])

    def test_several_phases_in_one_launch_count_it_once_in_a_step(self):
        launches = {phase: self.totals(self.ops("fused_multi", phase)) for phase in PHASES}
        self.assertEqual(launches["draft_decode"], (1, 1, 0, 0))
        self.assertEqual(launches["target_verify"], (0, 0, 0, 0))
        self.assertEqual(launches["draft_extend_strided"], (1, 1, 0, 0))

    def test_pytorchs_own_operations_are_those_of_the_op_by_op_path(self):
        for phase in PHASES:
            theirs, ours = self.ops("torch", phase, "--swa"), self.ops("aten", phase, "--swa")
            self.assertEqual(theirs["ops"], ours["ops"])

    def test_a_bad_path_or_phase_names_the_allowed_set(self):
        for words, allowed in (
                (["--path", "atan", "--phase", "normal_decode"],
                 ['"atan"', ", ".join(self.paths())]),
                (["--path", "aten", "--phase", "decode"], ['"decode"', ", ".join(PHASES)]),
                (["--path", "aten"],
                 ["list ops: --phase is required; allowed: " + ", ".join(PHASES)]),
                (["--phase", "normal_decode"],
                 ["list ops: --path is required; allowed: aten, page_table_kernel, glue_graph"]),
                ([], ["list ops: --path is required; allowed: aten, "])):
            result = self.tpjitter("list", "ops", *words, "--json")
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stdout, "")
            self.assertEqual(len(result.stderr.splitlines()), 1)
            for part in allowed:
                self.assertIn(part, result.stderr)

    def test_its_flags_are_refused_with_other_lists(self):
        result = self.tpjitter("list", "paths", "--swa")
        self.assertEqual(result.returncode, 2)
        self.assertIn("go with `ops`", result.stderr)


if __name__ == "__main__":
    main()
