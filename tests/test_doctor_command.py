"""`tpjitter doctor`: documents, exit codes, and a machine without a GPU."""
import unittest

from program import ProgramTest, main, strict_json

EXIT = {"ready": 0, "advice": 0, "doubtful": 4, "unusable": 3}


class Doctor(ProgramTest):
    def doctor(self, *words):
        done = self.tpjitter("doctor", "--json", *words)
        self.assertEqual(done.stderr, "")
        document = strict_json(done.stdout)
        self.assertEqual(document["schema"], "tpjitter.doctor/1")
        self.assertEqual(done.returncode, EXIT[document["status"]])
        worst = "ok"
        for finding in document["findings"]:
            self.assertEqual(set(finding), {"code", "severity", "text", "advice"})
            self.assertEqual(finding["severity"] == "ok", finding["advice"] is None, finding)
            worst = max(worst, finding["severity"],
                        key=["ok", "advice", "doubtful", "unusable"].index)
        self.assertEqual(document["status"], "ready" if worst == "ok" else worst)
        return document, {f["code"]: f for f in document["findings"]}

    def test_the_host_backend_needs_no_gpu(self):
        document, findings = self.doctor("--backend", "host")
        self.assertEqual(document["backend"], "host")
        self.assertNotIn("gpus", findings)
        self.assertNotEqual(document["status"], "unusable")
        self.assertIn("oversubscribed", findings)

    def test_a_machine_without_a_gpu_says_so_and_what_still_works(self):
        document, findings = self.doctor()
        if document["backend"] == "cuda":
            self.skipTest("this machine has GPUs")
        self.assertEqual(findings["gpus"]["severity"], "advice")
        self.assertIn("run --backend host", findings["gpus"]["advice"])
        document, findings = self.doctor("--backend", "cuda")
        self.assertEqual(document["status"], "unusable")
        self.assertEqual(findings["gpus"]["severity"], "unusable")

    def test_more_ranks_than_cores_make_figures_doubtful(self):
        document, findings = self.doctor("--backend", "host", "--world-size", "64")
        if len(document["environment"]["cpus_allowed"]) >= 64:
            self.skipTest("this machine has 64 cores")
        self.assertEqual(document["status"], "doubtful")
        self.assertEqual(findings["oversubscribed"]["severity"], "doubtful")

    def test_the_text_names_each_finding_and_what_to_do(self):
        text = self.tpjitter("doctor", "--backend", "host").stdout
        document, findings = self.doctor("--backend", "host")
        for code, finding in findings.items():
            self.assertIn(f"{finding['severity']:<9}{code}:", text)
            if finding["advice"]:
                self.assertIn(finding["advice"], text)
        self.assertIn(document["backend"], text)

    def test_it_changes_nothing(self):
        place = self.directory / "not" / "there"
        self.doctor("--backend", "host", "--out", place)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_an_unknown_backend_is_a_usage_error(self):
        done = self.tpjitter("doctor", "--backend", "tpu")
        self.assertEqual(done.returncode, 2)
        self.assertIn("allowed: auto, cuda, host", done.stderr)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    main()
