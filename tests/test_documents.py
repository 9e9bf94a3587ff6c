"""What the documents say is there, is there: files, links, flags, keys, presets and programs; and
README's commands run as they stand (shortened, on the host backend, in a folder of their own).
"""
import json
import os
import re
import shlex
import subprocess
import unittest

from program import DEADLINE_SCALE, PROGRAM, SOURCE, ProgramTest, main

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "scenarios/README.md",
             "reports/RECORD.md"]
MOST_LINES = {"ARCHITECTURE.md": 150, "CONTRIBUTING.md": 100}
# As short as a run can be that still prints every table.
SHORT = ["--set", "sampling.steps=60", "--set", "sampling.warmup_steps=4",
         "--set", "sampling.repetitions=1", "--set", "body.layer_us=5", "--set", "shape.layers=2",
         "--deadline-scale", DEADLINE_SCALE]

FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
IN_FOLDER = re.compile(r"(\./)?(\.ci|kernels|harness|scenarios|reports|scripts|tests)/[\w./<>*-]*")
FILE_NAME = re.compile(r"[\w-][\w.-]*\.(h|cuh|cu|cpp|md|py|sh|toml|schema\.json)"
                       r"|CMakeLists\.txt|CMakePresets\.json")
SCENARIO_KEY = re.compile(r"(step|shape|body|inject|sampling)\.[a-z_]+(\.[a-z_]+)*")


def text_of(document):
    return (SOURCE / document).read_text()


def code_spans(document):
    """What stands in `backticks`, fenced blocks left out."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text_of(document)))


def words_of_spans(document):
    return [word for span in code_spans(document) for word in span.split()]


def shell_lines(document):
    return [line for language, block in FENCE.findall(text_of(document)) if language == "sh"
            for line in block.splitlines() if line.strip()]


def is_there(path, document):
    """`<name>` and `*` stand for anything; at least one such file must exist."""
    pattern = re.sub(r"<\w+>", "*", path).removeprefix("./").rstrip("/")
    folders = {SOURCE, (SOURCE / document).parent}
    return any(any(folder.glob(pattern)) for folder in folders)


def program_targets():
    """Programs that the CMake files make."""
    text = "".join(path.read_text() for folder in ("harness", "tests")
                   for path in (SOURCE / folder).rglob("CMakeLists.txt"))
    names = set(re.findall(r"add_executable\((\w+)", text))
    return names | {"test_" + name for name in re.findall(r"tpjitter_(?:gpu_)?test\((\w+)", text)}


def preset_names():
    presets = json.loads((SOURCE / "CMakePresets.json").read_text())
    return {preset["name"] for preset in presets["configurePresets"] if not preset.get("hidden")}


def for_each(items):
    return [(document, item) for document in DOCUMENTS for item in items(document)]


class Documents(unittest.TestCase):
    def test_files_in_backticks_exist(self):
        def files(document):
            return [word for word in words_of_spans(document)
                    if IN_FOLDER.fullmatch(word) or FILE_NAME.fullmatch(word)]
        found = for_each(files)
        self.assertGreater(len(found), 50, "the documents name files; too few were recognised")
        for document, path in found:
            self.assertTrue(is_there(path, document), f"{document} names {path}: no such file")

    def test_relative_links_lead_somewhere(self):
        def links(document):
            return [target.split("#")[0] for target in
                    re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text_of(document)))
                    if not re.match(r"[a-z]+://|#", target)]
        found = for_each(links)
        self.assertTrue(found, "README links to the other documents; no link was recognised")
        for document, path in found:
            self.assertTrue(((SOURCE / document).parent / path).exists(), f"{document}: {path}")

    def test_scenario_keys_in_backticks_exist(self):
        keys = set(re.findall(r"(?m)^\| `([\w.]+)` \|", text_of("scenarios/README.md")))
        self.assertIn("step.path", keys)

        def named(document):
            return [w for w in words_of_spans(document) if SCENARIO_KEY.fullmatch(w)]
        for document, key in for_each(named):
            self.assertIn(key, keys, document)

    def test_presets_exist(self):
        def presets(document):
            return re.findall(r"--preset[ =]([\w-]+)", text_of(document))
        for document, preset in for_each(presets):
            self.assertIn(preset, preset_names(), document)
        in_table = re.findall(r"(?m)^\| (`[\w-]+`(?:, `[\w-]+`)*) \| `build",
                              text_of("CONTRIBUTING.md"))
        self.assertEqual({name.strip("` ") for row in in_table for name in row.split(",")},
                         preset_names())

    def test_programs_in_build_folders_are_built(self):
        def programs(document):
            return re.findall(r"\bbuild[\w-]*/bin/(\w+)", text_of(document))
        for document, program in for_each(programs):
            self.assertIn(program, program_targets(), document)

    def test_scripts_in_shell_blocks_are_executable(self):
        def scripts(document):
            return [word for line in shell_lines(document) for word in shlex.split(line)
                    if word.startswith("./scripts/")]
        for document, script in for_each(scripts):
            self.assertTrue(os.access(SOURCE / script, os.X_OK), f"{document}: {script}")

    def test_architecture_and_contributing_stay_short(self):
        for document, most in MOST_LINES.items():
            self.assertLessEqual(len(text_of(document).splitlines()), most, document)


class ReadmeAndTheProgram(ProgramTest):
    def setUp(self):
        super().setUp()
        # README's commands are for the repository's root; what they write stays here.
        (self.directory / "scenarios").symlink_to(SOURCE / "scenarios")
        (self.directory / "build/bin").mkdir(parents=True)
        (self.directory / "build/bin/tpjitter").symlink_to(PROGRAM)

    # What a busy machine may answer: doubtful, inconclusive, not within the targets.
    MAY_EXIT = {"doctor": (0, 4), "gate": (0, 4), "selftest": (0, 1)}

    def call(self, words):
        environment = {k: v for k, v in os.environ.items()
                       if k not in ("TPJITTER_OUT", "TPJITTER_FORMAT", "TPJITTER_QUIET")}
        return subprocess.run(words, cwd=self.directory, env=environment, capture_output=True,
                              text=True, timeout=240, check=False)

    def test_every_command_of_readme_works(self):
        output = ""
        ran = 0
        for line in shell_lines("README.md"):
            words = shlex.split(line)
            if not words[0].startswith(("build/bin/tpjitter", "/usr/bin/python3")):
                continue
            if words[1] == "run":
                # A machine without GPUs can still tell that the command is well formed.
                words = ["host" if word == "cuda" else word for word in words] + SHORT
            with self.subTest(command=line):
                done = self.call(words)
                self.assertIn(done.returncode, self.MAY_EXIT.get(words[1], (0,)), done.stderr)
                ran += 1
            output += done.stdout
        self.assertGreater(ran, 8)
        self.check_excerpts(output)

    def check_excerpts(self, output):
        """Headings and table heads of README's excerpts are those that the program prints."""
        spaces = re.compile(r" +")
        printed = {spaces.sub(" ", line).strip() for line in output.splitlines()}
        checked = 0
        for language, block in FENCE.findall(text_of("README.md")):
            lines = block.splitlines() if language == "text" else []
            for i, line in enumerate(lines):
                heading = i + 1 < len(lines) and re.fullmatch(r"-{10,}", lines[i + 1])
                head = re.match(r"(case|rank) +p50|.*\bus  .*\bus\b", line)
                if not heading and not head:
                    continue
                self.assertTrue(spaces.sub(" ", line).strip() in printed,
                                f"README's excerpt has a line that is not printed any more: {line}")
                checked += 1
        self.assertGreaterEqual(checked, 5)

    def test_scenarios_of_readme_can_be_planned(self):
        blocks = [block for language, block in FENCE.findall(text_of("README.md"))
                  if language == "toml"]
        self.assertTrue(blocks)
        for block in blocks:
            planned = self.call([PROGRAM, "plan", self.write_scenario(block), "--backend", "host"])
            self.assertEqual(planned.returncode, 0, planned.stderr)

    def test_flags_in_backticks_are_in_the_help(self):
        text = "".join(self.call([PROGRAM, *command, "--help"]).stdout
                       for command in ([], ["run"], ["report"], ["plan"], ["list"], ["gate"],
                                       ["selftest"], ["doctor"], ["history", "add"]))
        known = set(re.findall(r"(?m)^ +(?:-\w,)?(--[a-z-]+)", text))
        self.assertIn("--overwrite", known)
        for document in DOCUMENTS:
            for span in code_spans(document):
                if span.startswith("--"):
                    with self.subTest(document=document, flag=span):
                        self.assertIn(re.split(r"[ =]", span)[0], known)

    def test_readme_names_every_path_and_format(self):
        paths = json.loads(self.call([PROGRAM, "list", "paths", "--json"]).stdout)
        spans = code_spans("README.md")
        for path in paths:
            self.assertIn(path["name"], spans)
        refused = self.call([PROGRAM, "report", ".", "--format", "none"]).stderr
        for name in refused.split("allowed:")[1].strip().split(" | "):
            self.assertIn(name, spans)


if __name__ == "__main__":
    main()
