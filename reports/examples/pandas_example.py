"""Reads a run directory into pandas: p50 and p99 of the dispatch of each rank and case, in us.

    python3 pandas_example.py RUN_DIRECTORY
"""
import json
import pathlib
import sys

import numpy
import pandas

run = pathlib.Path(sys.argv[1])
names = [case["name"] for case in json.load(open(run / "run.json"))["cases"]]
files = sorted(run.glob("rank*.phases.npy"), key=lambda file: int(file.name[4:].split(".")[0]))
table = pandas.concat({rank: pandas.DataFrame(numpy.load(file)) for rank, file in enumerate(files)}, names=["rank"])
table = table[(table["sequence"] > 0) & (table["flags"] & 6 == 0)]  # without first steps
table["dispatch_us"] = (table["dispatch_end_ns"] - table["dispatch_begin_ns"]) / 1000
print(table.groupby([table["case_index"].map(dict(enumerate(names))), "rank"])["dispatch_us"].quantile([0.5, 0.99]).unstack())
