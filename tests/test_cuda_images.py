"""Every program with device code holds images of exactly the architectures it was configured for.

A missing image would be compiled at start-up, or refused, on a user's GPU; one too many costs every
build. The images are read from the programs themselves, so that no machine with a CUDA build skips
this: nvcc puts a fat binary a source, one after the other, into the ELF section .nv_fatbin. That
layout is documented nowhere; it was checked against cuobjdump, which is asked too where it exists.
Skipped (77) only where the architectures depend on the machine (native, all).
"""
import collections
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

SKIPPED = 77
SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = pathlib.Path(os.environ["TPJITTER_BINARY_DIR"]) / "bin"
# CMAKE_CUDA_ARCHITECTURES, ',' for ';'.
ARCHITECTURES = os.environ["TPJITTER_CUDA_ARCHITECTURES"].split(",")
CUOBJDUMP = shutil.which(os.environ.get("TPJITTER_CUOBJDUMP") or "cuobjdump")

# A container: magic, version, size of this header, bytes of all its images.
CONTAINER = struct.Struct("<IHHQ")
CONTAINER_MAGIC = 0xBA55ED50
# An image: kind, attributes, size of this header, bytes of the payload, bytes used of it if it is
# compressed, payload offset, minor and major version, SM, name offset, name size, flags.
IMAGE = struct.Struct("<HHIQIIHHIIIQ")
KINDS = {1: "ptx", 2: "elf"}
COMPRESSED = 0x2000 | 0x8000  # LZ4, zstd
SUFFIX_OF_FLAG = {1 << 20: "a", 1 << 21: "f"}  # sm_90a, sm_100f

Image = collections.namedtuple("Image", "kind sm compressed")


def expected(architectures):
    """ELF and PTX architectures that CMake makes of its list; None: it asks the machine."""
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


def section(elf, wanted):
    """Bytes of a section of a 64-bit little-endian ELF file, empty if it has none of that name."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        if elf[begin:elf.index(b"\0", begin)] == wanted:
            return elf[offset:offset + length]
    return b""


def parse_fatbin(data):
    """The images of all containers in .nv_fatbin, in their order."""
    images, at = [], 0
    while at < len(data):
        if data[at:at + 8] == bytes(8):  # containers are aligned to 8 bytes
            at += 8
            continue
        magic, version, header, size = CONTAINER.unpack_from(data, at)
        if (magic, version) != (CONTAINER_MAGIC, 1) or at + header + size > len(data):
            raise ValueError(f"no whole fat binary at byte {at}: {data[at:at + 16].hex()}")
        at += header
        end = at + size
        while at < end:
            kind, _, header, size, _, _, _, _, sm, _, _, flags = IMAGE.unpack_from(data, at)
            if kind not in KINDS or header < IMAGE.size or at + header + size > end:
                raise ValueError(f"no whole image at byte {at}: {data[at:at + 16].hex()}")
            suffix = "".join(s for flag, s in SUFFIX_OF_FLAG.items() if flags & flag)
            images.append(Image(KINDS[kind], f"{sm}{suffix}", bool(flags & COMPRESSED)))
            at += header + size
    return images


def images(program):
    """Two counts of images by architecture: elf and ptx."""
    found = parse_fatbin(section(program.read_bytes(), b".nv_fatbin"))
    return tuple(collections.Counter(i.sm for i in found if i.kind == kind)
                 for kind in ("elf", "ptx"))


def images_by_cuobjdump(program):
    """The same by the toolkit's own reader, which leaves the f of sm_100f out."""
    counts = []
    for kind in ("elf", "ptx"):
        done = subprocess.run([CUOBJDUMP, f"--list-{kind}", str(program)], capture_output=True,
                              text=True, check=False)
        found = re.findall(r"(?m)^(?:ELF|PTX) file\s+\d+: .*\.sm_(\d+[af]?)\.(?:cubin|ptx)$",
                           done.stdout)
        nothing = "does not contain device code" in done.stderr or done.returncode == 0
        if not found and not nothing:
            raise AssertionError(f"cuobjdump --list-{kind} {program}: {done.stderr or done.stdout}")
        counts.append(collections.Counter(sm.rstrip("f") for sm in found))
    return tuple(counts)


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

    def test_the_parser_reads_kinds_architectures_and_padding_and_refuses_anything_else(self):
        def image(kind, sm, flags=0, payload=bytes(8), header=IMAGE.size):
            return IMAGE.pack(kind, 0x101, header, len(payload), 0, 64, 0, 9, sm, 0, 0,
                              flags) + bytes(header - IMAGE.size) + payload

        def container(*entries):
            body = b"".join(entries)
            return CONTAINER.pack(CONTAINER_MAGIC, 1, CONTAINER.size, len(body)) + body

        # Flags and header sizes as nvcc 13.0 writes them.
        first = container(image(2, 90, 0x11, header=64), image(2, 100, 0x1000011, header=96))
        second = container(image(1, 90, 0x108011, header=80), image(2, 103, 0x1200011, header=112))
        self.assertEqual(parse_fatbin(first + bytes(16) + second),
                         [("elf", "90", False), ("elf", "100", False), ("ptx", "90a", True),
                          ("elf", "103f", False)])
        self.assertEqual(parse_fatbin(b""), [])
        for broken in (first[:-8], first + b"unknown ", container(image(7, 90)),
                       container(image(2, 90)[:-8])):
            with self.assertRaises((ValueError, struct.error)):
                parse_fatbin(broken)

    @unittest.skipIf(CUOBJDUMP is None, "no cuobjdump to compare with")
    def test_cuobjdump_reads_the_same(self):
        for program in sorted(programs_with_device_code()):
            with self.subTest(program=program.name):
                own = tuple(collections.Counter(sm.rstrip("f") for sm in count.elements())
                            for count in images(program))
                self.assertEqual(own, images_by_cuobjdump(program))

    def test_every_program_holds_exactly_the_configured_architectures(self):
        elf, ptx = expected(ARCHITECTURES)
        must_hold = programs_with_device_code()
        self.assertIn(PROGRAMS / "tpjitter", must_hold, "the program was not built")
        for program in sorted(must_hold | set(PROGRAMS.glob("test_*"))):
            with self.subTest(program=program.name):
                found_elf, found_ptx = images(program)
                if program not in must_hold and not found_elf and not found_ptx:
                    continue  # host code only
                self.assertEqual(set(found_elf), elf)
                self.assertEqual(len(set(found_elf.values())), 1 if elf else 0,
                                 f"a source lacks an architecture: {dict(found_elf)}")
                self.assertEqual(set(found_ptx), ptx)


if __name__ == "__main__":
    if expected(ARCHITECTURES) is None:
        print(f"skipped: {';'.join(ARCHITECTURES)} depends on the machine; name architectures")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
