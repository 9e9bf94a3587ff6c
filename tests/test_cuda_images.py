"""Every program with device code holds images of exactly the architectures it was configured for.

A missing image would be compiled at start-up, or refused, on a user's GPU; one too many costs every
build. cuobjdump lists what is inside: ELF files are machine code, PTX files are what a driver can
compile for later GPUs. Skipped (77) without cuobjdump, which is a part of the CUDA Toolkit that not
every build machine has.
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SKIPPED = 77
SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = pathlib.Path(os.environ["TPJITTER_BINARY_DIR"]) / "bin"
# CMAKE_CUDA_ARCHITECTURES, ',' for ';'.
ARCHITECTURES = os.environ["TPJITTER_CUDA_ARCHITECTURES"].split(",")
CUOBJDUMP = shutil.which(os.environ.get("TPJITTER_CUOBJDUMP") or "cuobjdump")


def expected(architectures):
    """The ELF and PTX architectures that CMake makes of its list, or None if it asks the machine."""
    elf, ptx = set(), set()
    for entry in architectures:
        match = re.fullmatch(r"(\d+[af]?)(-real|-virtual)?", entry)
        if match is None:
            return None  # native, all, all-major
        if match[2] != "-virtual":
            elf.add(match[1])
        if match[2] != "-real":
            ptx.add(match[1])
    return elf, ptx


def images(program, kind):
    """Number of images by architecture; kind: elf or ptx."""
    done = subprocess.run([CUOBJDUMP, f"--list-{kind}", str(program)], capture_output=True,
                          text=True, check=False)
    found = re.findall(r"(?m)^(?:ELF|PTX) file\s+\d+: .*\.sm_(\d+[af]?)\.(?:cubin|ptx)$",
                       done.stdout)
    nothing = "does not contain device code" in done.stderr or done.returncode == 0
    if not found and not nothing:
        raise AssertionError(f"cuobjdump --list-{kind} {program}: {done.stderr or done.stdout}")
    return collections.Counter(found)


def programs_with_device_code():
    """By their sources, so that one which lost its device code is noticed, where they are built."""
    names = ["tpjitter", "bench_launch", "bench_metadata"]
    names += [path.stem for path in sorted((SOURCE / "tests/gpu").glob("test_*.cu"))]
    return {PROGRAMS / name for name in names if (PROGRAMS / name).exists()}


class CudaImages(unittest.TestCase):
    def test_expected_architectures_follow_cmakes_rules(self):
        self.assertEqual(expected(["90-real", "100-real", "103-real", "90-virtual"]),
                         ({"90", "100", "103"}, {"90"}))
        self.assertEqual(expected(["90-real"]), ({"90"}, set()))
        self.assertEqual(expected(["90a"]), ({"90a"}, {"90a"}))
        self.assertIsNone(expected(["native"]))

    def test_every_program_holds_exactly_the_configured_architectures(self):
        elf, ptx = expected(ARCHITECTURES)
        must_hold = programs_with_device_code()
        self.assertIn(PROGRAMS / "tpjitter", must_hold, "the program was not built")
        for program in sorted(must_hold | set(PROGRAMS.glob("test_*"))):
            with self.subTest(program=program.name):
                found_elf, found_ptx = images(program, "elf"), images(program, "ptx")
                if program not in must_hold and not found_elf and not found_ptx:
                    continue  # host code only
                self.assertEqual(set(found_elf), elf)
                self.assertEqual(len(set(found_elf.values())), 1 if elf else 0,
                                 f"a source lacks an architecture: {dict(found_elf)}")
                self.assertEqual(set(found_ptx), ptx)


if __name__ == "__main__":
    if CUOBJDUMP is None:
        print("skipped: cuobjdump was not found")
        sys.exit(SKIPPED)
    if expected(ARCHITECTURES) is None:
        print(f"skipped: {';'.join(ARCHITECTURES)} depends on the machine; name architectures")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
