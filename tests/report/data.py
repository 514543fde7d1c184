"""What was measured: read, merged, written, and summed up.

A file of data has `runs`, which say where, when and with what was measured, and `series`, each with the values of one thing in one
run. Values of two sides that ran in turn have the same order, so that each pair has a ratio of its own.
"""

import json
import statistics
from collections import namedtuple

# The median, and the quartiles below and above it.
Spread = namedtuple("Spread", "low median high")

STORES = ["memory", "file", "etcd", "redis", "consul", "zookeeper", "postgres", "mysql"]
PARTS = ["uncontended", "apart", "contended", "killed", "work", "growth"]


def spread(values):
    """`None`: there are no values, or some are infinite."""
    if not values or None in values:
        return None
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def ratios(values, others):
    """The ratios of the pairs that ran in turn."""
    pairs = zip(values or [], others or [])
    return [ours / other for ours, other in pairs if ours is not None and other]


def rounded(value):
    """As many digits as a measurement is good for."""
    return None if value is None else float(f"{value:.4g}")


def part_of(one):
    """What is measured at one time. Of growth that is a curve."""
    curve = one["measure"].split(":")[0] if one["part"] == "growth" else None
    return one["store"], one["part"], curve


class Data:
    def __init__(self, runs=(), series=()):
        self.runs, self.series = list(runs), list(series)

    @classmethod
    def read(cls, path):
        content = json.loads(path.read_text())
        return cls(content["runs"], content["series"])

    def write(self, path):
        """One line for each run and series, so that a diff shows which have changed."""
        lines = [
            "{",
            '"runs": [',
            ",\n".join(json.dumps(run, ensure_ascii=False) for run in self.runs),
            "],",
            '"series": [',
            ",\n".join(json.dumps(one, ensure_ascii=False) for one in self.series),
            "]",
            "}",
        ]
        path.write_text("\n".join(lines) + "\n")

    def merge(self, run, lines):
        """Adds what a run has measured, in place of what there was of the same store and part. A run may add several times: it gets its
        number the first time."""
        new = [self.checked(line) for line in lines]
        parts = {part_of(one) for one in new}
        kept = [one for one in self.series if part_of(one) not in parts]
        number = run.setdefault("run", max((run["run"] for run in self.runs), default=0) + 1)
        if all(other["run"] != number for other in self.runs):
            self.runs.append({"run": number, **run})
        self.series = kept + [{"run": number, **one} for one in new]
        self.series.sort(key=lambda one: (PARTS.index(one["part"]), STORES.index(one["store"])))
        used = {one["run"] for one in self.series}
        self.runs = [run for run in self.runs if run["run"] in used]

    @staticmethod
    def checked(line):
        one = json.loads(line) if isinstance(line, str) else dict(line)
        if one["store"] not in STORES or one["part"] not in PARTS:
            raise ValueError(f"neither a store nor a part that is known: {line}")
        if "cut" in one:
            # A part of a table's cell, in which an error's own text may stand.
            one["cut"] = " ".join(one["cut"].replace("|", "/").split())[:200].rstrip(".")
        if "values" in one:
            one["values"] = [rounded(value) for value in one["values"]]
        return one

    def find(self, store, part, measure=None, side=None):
        """The series of a store, whose measure begins so."""
        return [
            one
            for one in self.series
            if (one["store"], one["part"]) == (store, part)
            and one["measure"].startswith(measure or "")
            and side in (None, one["side"])
        ]

    def values(self, store, part, measure, side="ours"):
        """The values of the first series of that kind, if there is one with values."""
        found = [one["values"] for one in self.find(store, part, measure, side) if one.get("values")]
        return found[0] if found else None

    def curve(self, store, name):
        """Of a figure of a growth curve, such as `held: heartbeat`: size → spread."""
        found = self.find(store, "growth", name)
        exact = [one for one in found if one["measure"] == name and one.get("values")]
        points = {int(one["parameter"]): spread(one["values"]) for one in exact}
        return {size: point for size, point in sorted(points.items()) if point}

    def cuts(self, curve):
        """Where a growth curve ends early: store → (size, why)."""
        found = {}
        for store in STORES:
            for one in self.find(store, "growth"):
                if one["measure"] == curve and "cut" in one:
                    found[store] = (int(one["parameter"]), one["cut"])
        return found
