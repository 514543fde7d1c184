"""The page of what was measured, with its plots. Every figure in it comes from the data."""

import json

from . import plots
from .data import STORES, Spread, ratios, spread
from .targets import MILLION, all_targets, is_met, projections, wanted_of

LOOKS = {
    "memory": ("grey", "circle"),
    "file": ("brown", "square"),
    "etcd": ("blue", "circle"),
    "redis": ("red", "square"),
    "consul": ("purple", "diamond"),
    "zookeeper": ("green", "triangle"),
    "postgres": ("teal", "diamond"),
    "mysql": ("orange", "triangle"),
}
SIDES = {
    "floor": ("grey", "circle"),
    "ours": ("blue", "square"),
    "rival": ("orange", "diamond"),
    "peer": ("red", "triangle"),
}
# What is measured where it can be had.
PEERS = {
    "file": ["tooz-file"],
    "etcd": ["tooz-etcd", "etcd-client lock()"],
    "redis": ["tooz-redis", "redis-py"],
    "consul": ["tooz-consul"],
    "zookeeper": ["tooz-zookeeper", "kazoo", "zookeeper-client lock recipe"],
    "postgres": ["tooz-postgres"],
    "mysql": ["tooz-mysql"],
}
# The figures of each growth curve that have a panel; a table has those of the first panel.
CURVES = {
    "waiters": ("Waiters of eight sessions on one lock", ["turn", "own memory, each", "requests at the server"]),
    "held": ("Names held by one session", ["heartbeat", "acquire + release of another", "server's processor"]),
    "members": ("Members of one group", ["join + leave of another", "list", "join until a watcher is told"]),
    "tasks": ("Tasks of one session on one lock", ["turn", "longest wait of another session"]),
    "cohort": ("Tasks of one session that are a cohort", ["turn", "longest wait of another session", "own memory, each"]),
    "sessions": ("Sessions on one server", ["acquire + release of one", "server's processor", "server's memory, each"]),
}
CLAIM = "claim + ack beside"
# What is in a queue while its claims are timed.
BESIDE = [f"20,000 {what} items" for what in ("claimed", "delayed", "dead")]
BESIDE += [f"{count} live claims" for count in (1_000, 10_000, 20_000, 100_000)] + ["999 claims of this process"]
EXPLAINED = {
    "waiters": "A *turn* is from one grant to the next, with the release and the way back to the end of the queue. Requests and memory are "
    "measured in five seconds in which nobody takes a turn. The memory is that of the client's process, with the task in which each waits. "
    "The requests are what the server has counted, those that keep the nine sessions alive among them; Consul does not count them.",
    "held": "The heartbeat's interval is 250 ms here. *Another* is one more name of the same session.",
    "members": "All members belong to one session; the watcher is another one.",
    "tasks": "One more session wants the lock as well, for two seconds. A wait that is not over by then is followed for three more.",
    "cohort": "The same tasks, which pass the lock on among themselves in memory: what `Lock::cohort` is for.",
    "sessions": "All sessions are of one process, with the default lease and heartbeat. *Server's processor* is what they take while nothing "
    "happens but heartbeats.",
}


def figure(value):
    """Three digits, and all those before the point."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def shown(it):
    """A median with its quartiles, or a figure without."""
    if isinstance(it, Spread) and (it.low, it.high) != (it.median, it.median):
        return f"{figure(it.median)} ({figure(it.low)}–{figure(it.high)})"
    return figure(getattr(it, "median", it))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


class Page:
    def __init__(self, data):
        self.data, self.lines, self.images = data, [], {}

    def add(self, *lines):
        self.lines += [*lines, ""]

    def image(self, name, alt, svg):
        if svg:
            self.images[f"performance-{name}.svg"] = svg
            self.add(f"![{alt}](images/performance-{name}.svg)")


def drawn(data):
    """The text of the page, and its images by name."""
    page = Page(data)
    page.add(
        "# Speed",
        "",
        "<!-- Written by tests/performance from docs/performance.json: what is changed here is lost with the next run. -->",
        "",
        "What a lock of this library takes, beside the *floor* (the fewest requests of any correct lock through the same client crate), "
        "the best other lock that waits without polling, and locks that others use. Figures are medians, with the quartiles in "
        "parentheses. What is compared ran in turn; a ratio is the median of the ratios of such pairs. Absolute times differ "
        "from machine to machine, and ratios much less.",
    )
    where(page)
    targets(page)
    uncontended(page)
    apart(page)
    contended(page)
    killed(page)
    work(page)
    growth(page)
    projection(page)
    missing(page)
    return "\n".join(page.lines).rstrip() + "\n", page.images


def where(page):
    page.add("## Where, when and with what")
    if not page.data.runs:
        return page.add("Nothing has been measured yet.")
    # What was measured in the same place with the same versions is told together, run by run only where they differ.
    places = {}
    for run in page.data.runs:
        same = {name: value for name, value in run.items() if name not in ("run", "command", "load before")}
        places.setdefault(json.dumps(same, sort_keys=True), (same, []))[1].append(run)
    for same, runs in places.values():
        rows = [(name, value) for name, value in same.items() if name != "versions"]
        rows += [("versions", ", ".join(f"{name} {version}" for name, version in same.get("versions", {}).items()))]
        page.add(*table(["", ""], rows))
        page.add(*table(["run", "command", "load before", "measured"], [row_of(page, run) for run in runs]))


def row_of(page, run):
    parts = sorted({(one["store"], one["part"]) for one in page.data.series if one["run"] == run["run"]})
    stores = {store: [part for other, part in parts if other == store] for store in STORES}
    measured = "; ".join(f"{store}: {', '.join(found)}" for store, found in stores.items() if found)
    return [run["run"], f"`{run['command']}`" if "command" in run else "", run.get("load before", ""), measured]



def targets(page):
    page.add(
        "## What is wanted, and what was measured",
        "",
        "✓: reached. ✗: not reached; what is wanted is in brackets. –: not measured.",
    )
    rows = []
    for target in all_targets(page.data):
        cells = []
        for store in STORES[1:]:
            if store not in target.found:
                cells.append("–")
                continue
            is_it = is_met(target, store)
            wanted = "" if is_it else f" [{'≤' if target.most else '≥'} {figure(wanted_of(target, store))}]"
            cells.append(f"{'✓' if is_it else '✗'} {shown(target.found[store])}{wanted}")
        rows.append([f"{target.what}, {target.unit}", *cells])
    page.add(*table(["", *STORES[1:]], rows))


def sides_of(page, store, part, measure):
    """The sides that have values: label, side, values."""
    found = page.data.find(store, part, measure)
    order = list(SIDES)
    found = sorted((one for one in found if one.get("values")), key=lambda one: order.index(one["side"]))
    return [(one.get("name", {"ours": "this library"}.get(one["side"], one["side"])), one) for one in found]


def compared(page, name, title, unit, part, measure, base):
    """A plot and a table of all sides; `base` is what they are compared with."""
    groups, rows = [], []
    for store in STORES[1:]:
        sides = sides_of(page, store, part, measure)
        least = next((one["values"] for _, one in sides if one["side"] == base), None)
        group = []
        for label, one in sides:
            it = spread(one["values"])
            group.append((label if len(label) < 40 else one["side"], *SIDES[one["side"]], it))
            ratio = None if one["side"] == base else spread(ratios(one["values"], least))
            rows.append([store, label, shown(it), shown(ratio)])
        groups.append((store, group))
    if not rows:
        return page.add("Not measured yet.")
    page.image(name, title, plots.dots(title, unit, groups))
    page.add(*table(["store", "lock", unit, f"÷ {base}"], rows))


def uncontended(page):
    page.add("## A lock that nobody else wants")
    for name, text, place in (
        ("one-cpu", "Client and server on one CPU, data in memory", "one CPU"),
        ("two-cpus", "A CPU for each, data on a disk", "a CPU each"),
    ):
        page.add(f"{text}: microseconds of an acquire and a release.")
        groups, rows = [], []
        for store in STORES[1:]:
            found = []
            for how, label in (("on the caller's runtime, ", ""), ("on a thread of its own (the default), ", ", the default")):
                sides = sides_of(page, store, "uncontended", how + place)
                least = next((one["values"] for _, one in sides if one["side"] == "floor"), None)
                for who, one in sides:
                    # The floor and the peers have no such choice.
                    if not label or one["side"] == "ours":
                        ratio = None if one["side"] == "floor" else spread(ratios(one["values"], least))
                        found.append((one["side"], who + label, spread(one["values"]), ratio))
            found.sort(key=lambda it: list(SIDES).index(it[0]))
            groups.append((store, [(who, *SIDES[side], it) for side, who, it, _ in found]))
            rows += [[store, who, shown(it), shown(ratio)] for _, who, it, ratio in found]
        if rows:
            page.image(f"uncontended-{name}", text, plots.dots(f"Acquire + release: {text[0].lower()}{text[1:]}", "µs", groups))
            page.add(*table(["store", "lock", "µs", "÷ floor"], rows))
        else:
            page.add("Not measured yet.")
    page.add(
        "*This library* runs its heartbeats on the caller's runtime here, as the floor has none; *the default* is a thread of its "
        "own, so that nothing that blocks the program can stop them."
    )


def apart(page):
    page.add("## Eight processes with a lock each", "", "Cycles of acquire and release in a second, of all eight.")
    compared(page, "apart", "Eight processes with a lock each", "cycles/s", "apart", "cycles", "floor")


def contended(page):
    page.add(
        "## Eight processes on one lock",
        "",
        "How often the owner changes in a second. Who acquires again at once, while others wait, does not count.",
    )
    compared(page, "contended", "Eight processes on one lock", "owner changes/s", "contended", "owner changes", "rival")
    rows = []
    for store in STORES[1:]:
        for label, one in sides_of(page, store, "contended", "greatest ÷ least"):
            rows.append([store, label, shown(spread(one["values"])) if None not in one["values"] else "one had none"])
    if rows:
        page.add("How much more often the luckiest of the eight had the lock than the unluckiest:")
        page.add(*table(["store", "lock", "greatest ÷ least share"], rows))


def killed(page):
    page.add("## A holder is killed", "", "Seconds from SIGKILL to the next grant. The bound is that of clause L1.")
    groups, rows = [], []
    for store in STORES[1:]:
        group = []
        for label, one in sides_of(page, store, "killed", "next grant"):
            it = spread(one["values"])
            group.append((label, *SIDES[one["side"]], it))
            bound = figure(one["parameter"]) if one["side"] == "ours" else ""
            rows.append([store, label, shown(it), bound])
        groups.append((store, group))
    if not rows:
        return page.add("Not measured yet.")
    page.image("killed", "From SIGKILL to the next grant", plots.dots("From SIGKILL to the next grant", "s", groups))
    page.add(*table(["store", "lock", "s", "bound"], rows))


def work(page):
    page.add(
        "## Work queues",
        "",
        "A claim of one item and its acknowledgement, beside the fewest requests that they can be made of: two that read little, and two that "
        "write 10 KiB.",
    )
    compared(page, "work", "A claim and its acknowledgement", "µs", "work", f"{CLAIM} two reads", "floor")
    rows = []
    for what in BESIDE:
        pairs = [[page.data.values(store, "work", f"{CLAIM} {what}", side) for side in ("ours", "floor")] for store in STORES]
        if any(ours for ours, _ in pairs):
            rows.append([what, *(shown(spread(ratios(ours, floor))) for ours, floor in pairs)])
    if rows:
        page.add("How many times as long it takes with much in front or beside it as in a queue with nothing of that (1.5 at most is wanted):")
        page.add(*table(["beside", *STORES], rows))


def growth(page):
    page.add(
        "## How costs grow",
        "",
        "The client's process is on one CPU, the server on another with its data in memory. Each size may take 20 s to reach, and a curve a "
        "minute; a cross marks a curve that ends before its time, for the reason named below.",
    )
    for curve, (title, figures) in CURVES.items():
        page.add(f"### {title}", "", EXPLAINED[curve])
        panels = []
        for name in figures:
            series = {store: page.data.curve(store, f"{curve}: {name}") for store in STORES}
            found = [one for one in page.data.series if one["measure"] == f"{curve}: {name}"]
            unit = found[0]["unit"] if found else ""
            panels.append((name, unit, {store: points for store, points in series.items() if points}))
        cuts = page.data.cuts(curve)
        if not any(series for _, _, series in panels) and not cuts:
            page.add("Not measured yet.")
            continue
        page.image(f"growth-{curve}", title, plots.lines(title, curve, panels, LOOKS, cuts))
        for name, unit, series in panels:
            sizes = sorted({size for points in series.values() for size in points})
            if sizes:
                cells = [[store, *(shown(points.get(size)) for size in sizes)] for store, points in series.items()]
                page.add(*table([f"{name}, {unit}", *(f"{size:,}" for size in sizes)], cells))
        for store, (size, why) in cuts.items():
            ends = f"ends before {size:,} {curve}" if size else "ends early"
            page.lines.append(f"* {store} {ends}: {why}.")
        if cuts:
            page.add()


def projection(page):
    page.add(f"## {MILLION:,} sessions, on paper")
    found = projections(page.data)
    if not found:
        return page.add("The curve of sessions has not been measured on a server yet.")
    page.add(
        "What a server's processors would have to do for sessions that only live, each with a heartbeat a second. The processor's time of one "
        "session is the difference of the two largest sizes by the number of sessions between them:",
        "",
        "`each = (time at more − time at less) ÷ (more − less)`; `processors = each × 1,000,000 ÷ 1,000 ms`; "
        "`memory = memory of each at the largest size × 1,000,000`.",
        "",
        "With a heartbeat each ten seconds, which a lease of 30 s or longer allows, it would be a tenth of the processors. This supposes that "
        "the cost of one more stays what it was between the two sizes, and says nothing of limits that none of these sizes has met: "
        "of connections, of descriptors, of one thread's work on a server that has one.",
    )
    rows = []
    for store, it in found.items():
        (less, more), (early, late) = it.sizes, it.times
        arithmetic = f"({figure(late)} − {figure(early)}) ÷ ({more:,} − {less:,}) = {figure(it.each)}"
        processors = it.each * MILLION / 1_000
        memory = it.memory * MILLION / 1024 / 1024
        met = f"before {it.cut[0]:,}: {it.cut[1]}" if it.cut else "–"
        rows.append([store, arithmetic, figure(processors), figure(processors / 10), figure(it.memory), figure(memory), met])
    head = ["store", "each, ms/s", "processors", "with a heartbeat each 10 s", "memory of each, KiB", "memory, GiB", "limit that was met"]
    page.add(*table(head, rows))


def missing(page):
    page.add("## Not measured")
    said = False
    for store in STORES[1:]:
        if not any(one["store"] == store for one in page.data.series):
            page.lines.append(f"* {store}: nothing.")
            said = True
            continue
        peers = [one for one in page.data.series if one["store"] == store and one["side"] == "peer"]
        for name in PEERS[store]:
            of_it = [one for one in peers if one.get("name") == name]
            why = next((one["cut"] for one in of_it if "cut" in one), "it was not there")
            if not any(one.get("values") for one in of_it):
                page.lines.append(f"* {store}, {name}: {why}.")
                said = True
    if said:
        page.add()
    page.add(
        "Of other locks in Rust only those are measured whose crates are dependencies of this library: etcd-client's `lock()`, which is the "
        "server's own, and the recipe of zookeeper-client. `rslock` and `distributed-lock` are not."
    )
