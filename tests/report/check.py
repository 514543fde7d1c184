"""Checks of the drawing: on invented data, which are kept nowhere, and on the page that is there."""

import io
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

from . import page, plots, targets
from .data import STORES, Data, ratios, spread

SVG = "{http://www.w3.org/2000/svg}"


def line(store, part, measure, values, side="ours", **more):
    return {"store": store, "part": part, "measure": measure, "side": side, "unit": "µs", "values": values, **more}


def invented():
    """Some figures of everything that is measured."""
    lines = []
    for number, store in enumerate(STORES):
        rate = 1 + number / 10
        if store != "memory":
            for place in ("one CPU", "a CPU each"):
                for how in ("on the caller's runtime", "on a thread of its own (the default)"):
                    measure = f"{how}, {place}"
                    lines.append(line(store, "uncontended", measure, [100 * rate, 105 * rate, 98 * rate]))
                    lines.append(line(store, "uncontended", measure, [90 * rate, 91 * rate, 90 * rate], "floor"))
                measure = f"on the caller's runtime, {place}"
                for peer in page.PEERS[store][:-1]:
                    lines.append(line(store, "uncontended", measure, [900, 950, 970], "peer", name=peer))
                peer = page.PEERS[store][-1]
                lines.append(
                    {"store": store, "part": "uncontended", "measure": measure, "side": "peer", "unit": "µs", "name": peer, "cut": "no pip"}
                )
            lines.append(line(store, "apart", "cycles", [9_000, 9_100], unit="1/s"))
            lines.append(line(store, "apart", "cycles", [10_000, 9_900], "floor", unit="1/s"))
            lines.append(line(store, "contended", "owner changes", [500 * rate, 510], unit="1/s"))
            lines.append(line(store, "contended", "owner changes", [400, 410], "rival", name="a queue", unit="1/s"))
            lines.append(line(store, "contended", "greatest ÷ least share", [1.01, 1.02]))
            lines.append(line(store, "contended", "greatest ÷ least share", [None, 9], "peer", name="tooz"))
            lines.append(line(store, "killed", "next grant", [9.1, 9.4, 9.9], unit="s", parameter=10.0))
        for what in (page.BESIDE[0], "two reads"):
            measure = f"{page.CLAIM} {what}"
            lines += [line(store, "work", measure, [4 * rate, 5]), line(store, "work", measure, [2 * rate, 2], "floor")]
        for curve, (_, names) in page.CURVES.items():
            for name in names:
                for size in (1, 10, 100, 1_000, 10_000)[: 5 - number % 3]:
                    values = [(3 + size**0.6) * rate, (3.1 + size**0.6) * rate, 3.3 + size**0.7]
                    lines.append(line(store, "growth", f"{curve}: {name}", values, parameter=float(size)))
            cut = {"store": store, "part": "growth", "measure": curve, "side": "ours", "unit": "", "parameter": 10_000.0}
            if number % 3:
                lines.append({**cut, "cut": "731 were reached after 20 s"})
    data = Data()
    versions = {"etcd": "0.0.0", "tooz (Python)": "0.0.0"}
    data.merge({"date": "invented", "commit": "none", "command": "none", "machine": "none", "versions": versions}, lines)
    return data


class Figures(unittest.TestCase):
    def test_quartiles(self):
        self.assertEqual(spread([4, 1, 3, 2, 5]), (2, 3, 4))
        self.assertEqual(spread([7]), (7, 7, 7))
        self.assertIsNone(spread([1, None]))

    def test_ratios_are_of_pairs(self):
        self.assertEqual(ratios([2, 9], [1, 3]), [2, 3])

    def test_figures(self):
        self.assertEqual([page.figure(it) for it in (0.01234, 12.34, 123.4, 12_345.6)], ["0.0123", "12.3", "123", "12,346"])

    def test_a_run_takes_the_place_of_its_parts_only(self):
        data = Data()
        data.merge({"versions": {}}, [line("etcd", "apart", "cycles", [1.0]), line("file", "apart", "cycles", [2.0])])
        data.merge({"versions": {}}, [line("etcd", "apart", "cycles", [3.0]), line("etcd", "killed", "next grant", [4.0])])
        self.assertEqual(data.values("etcd", "apart", "cycles"), [3.0])
        self.assertEqual(data.values("file", "apart", "cycles"), [2.0])
        data.merge({"versions": {}}, [line("file", "apart", "cycles", [5.0])])
        self.assertEqual([run["run"] for run in data.runs], [2, 3])

    def test_a_run_adds_what_it_measures_one_after_the_other(self):
        data, run = Data(), {"versions": {}}
        data.merge({"versions": {}}, [line("etcd", "growth", f"{curve}: turn", [1.0], parameter=1.0) for curve in ("tasks", "cohort")])
        data.merge(run, [line("etcd", "growth", "cohort: turn", [2.0], parameter=1.0)])
        data.merge(run, [line("file", "killed", "next grant", [3.0])])
        self.assertEqual([run["run"] for run in data.runs], [1, 2])
        self.assertEqual([data.curve("etcd", f"{curve}: turn")[1].median for curve in ("tasks", "cohort")], [1.0, 2.0])

    def test_data_come_back_as_they_were_written(self):
        data = invented()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "data.json"
            data.write(path)
            again = Data.read(path)
        self.assertEqual((again.runs, again.series), (data.runs, data.series))

    def test_what_is_wanted(self):
        data = Data()
        how = targets.ONE_CPU
        lines = [line("etcd", "uncontended", how, [12, 11, 13]), line("etcd", "uncontended", how, [10, 10, 10], "floor")]
        lines += [line("file", "killed", "next grant", [0.004, 0.003], parameter=0.05)]
        lines += [line("etcd", "growth", "held: heartbeat", [10], parameter=1.0)]
        lines += [line("etcd", "growth", "held: heartbeat", [29], parameter=10_000.0)]
        lines += [line("etcd", "growth", "waiters: requests at the server", [10], parameter=1.0)]
        lines += [line("etcd", "growth", "waiters: requests at the server", [1_009], parameter=1_000.0)]
        data.merge({"versions": {}}, lines)
        rows = {target.what: target for target in targets.all_targets(data)}
        uncontended = rows["uncontended ÷ floor, one CPU, on the caller's runtime"]
        self.assertEqual(uncontended.found["etcd"].median, 1.2)
        self.assertFalse(targets.is_met(uncontended, "etcd"))
        self.assertTrue(targets.is_met(rows["holder killed → next grant"], "file"))
        self.assertEqual(rows["a heartbeat with 10,000 held ÷ with one"].found, {"etcd": 2.9})
        requests = rows["a waiter among a thousand, requests"]
        self.assertEqual(requests.found, {"etcd": 1.0})
        self.assertFalse(targets.is_met(requests, "etcd"))

    def test_projection(self):
        data = Data()
        lines = []
        for size, time in ((1, 5.0), (100, 10.0), (1_000, 55.0)):
            lines.append(line("etcd", "growth", "sessions: server's processor", [time], parameter=float(size)))
            lines.append(line("etcd", "growth", "sessions: server's memory, each", [4.0], parameter=float(size)))
        data.merge({"versions": {}}, lines)
        text, _ = page.drawn(data)
        # 0.05 ms a second of each, so fifty processors; 4 KiB of each, so 3.8 GiB.
        expected = "| etcd | (55 − 10) ÷ (1,000 − 100) = 0.05 | 50 | 5 | 4 | 3.81 | – |"
        self.assertTrue(expected in text.splitlines(), expected)


class Drawn(unittest.TestCase):
    def setUp(self):
        self.text, self.images = page.drawn(invented())

    def test_tables(self):
        width = None
        for row in self.text.splitlines():
            cells = row.count("|") if row.startswith("|") else None
            self.assertIn(width, (None, cells, width if cells is None else None), row)
            width = cells
        lines = self.text.splitlines()
        for expected in (
            "| etcd | this library | 120 (119–123) | 1.11 (1.1–1.13) |",
            "* etcd, etcd-client lock(): no pip.",
            "* etcd ends before 10,000 waiters: 731 were reached after 20 s.",
        ):
            self.assertTrue(expected in lines, expected)

    def test_without_data_no_figure(self):
        text, images = page.drawn(Data())
        rows = [row for row in text.splitlines() if row.startswith("|") and "---" not in row]
        self.assertFalse([row for row in rows if any(mark in row for mark in "✓✗")])
        self.assertEqual(images, {})
        self.assertEqual(text.count("Not measured yet."), 2 + 4 + len(page.CURVES))

    def test_each_image_is_shown(self):
        for name in self.images:
            self.assertTrue(f"(images/{name})" in self.text, name)
        self.assertEqual(len(self.images), 6 + len(page.CURVES))

    def test_nothing_leaves_the_image(self):
        for name, svg in self.images.items():
            root = ElementTree.fromstring(svg)
            width, height = (float(root.get(side)) for side in ("width", "height"))
            marks = 0
            for text in root.iter(f"{SVG}text"):
                long = plots.LETTER * len(text.text) * (1.3 if "large" in text.get("class") else 1)
                before = {"start": 0, "middle": long / 2, "end": long}[text.get("text-anchor")]
                start = float(text.get("x")) - before
                self.assertTrue(0 <= start and start + long <= width, f"{name}: {text.text}")
                self.assertTrue(12 <= float(text.get("y")) <= height - 4, f"{name}: {text.text}")
            for line in root.iter(f"{SVG}polyline"):
                for point in line.get("points").split():
                    x, y = map(float, point.split(","))
                    self.assertTrue(0 <= x <= width and 0 <= y <= height, f"{name}: {point}")
                    marks += 1
            self.assertGreater(marks, 10, name)

    def test_a_mark_for_each_point(self):
        root = ElementTree.fromstring(self.images["performance-growth-tasks.svg"])
        marks = [mark for mark in root.iter() if mark.get("class") == "mark"]
        data = invented()
        points = sum(len(data.curve(store, "tasks: turn")) for store in STORES)
        # Two panels, and the legend.
        self.assertEqual(len(marks), 2 * points + len(STORES))

    def test_colours_are_seen_on_light_and_dark(self):
        for name, colour in plots.COLOURS.items():
            for back in (plots.LIGHT, plots.DARK):
                self.assertGreaterEqual(contrast(colour, back), 3, f"{name} on {back}")


def contrast(one, other):
    """As https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio defines it."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def differences(docs):
    """What of the page that is there is not what its data give."""
    kept, found = docs / "performance.json", []
    if not kept.exists():
        return ["docs/performance.md has no data"] if (docs / "performance.md").exists() else []
    text, images = page.drawn(Data.read(kept))
    drawn = {docs / "performance.md": text, **{docs / "images" / name: svg for name, svg in images.items()}}
    for path, content in drawn.items():
        if not path.exists() or path.read_text() != content:
            found.append(f"{path.relative_to(docs.parent)} is not what docs/performance.json gives")
    for path in sorted((docs / "images").glob("performance-*.svg")):
        if path not in drawn:
            found.append(f"{path.relative_to(docs.parent)} is in no page")
    return found


def run(docs):
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, (Figures, Drawn)))
    said = io.StringIO()
    outcome = unittest.TextTestRunner(said).run(suite)
    if not outcome.wasSuccessful() or outcome.testsRun == 0:
        print(said.getvalue())
        return 1
    found = differences(docs)
    for difference in found:
        print(f"{difference}; again: tests/performance --draw docs/performance.json")
    return 1 if found else 0
