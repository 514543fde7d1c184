"""What is wanted, and what was measured of it; and what a million sessions would take."""

from collections import namedtuple

from .data import STORES, ratios, spread

# `wanted`: by store, or for all. `found`: by store, the figure and its quartiles where there are some.
Target = namedtuple("Target", "what unit wanted most found")

SERVERS = STORES[2:]
SHARED = STORES[1:]
ONE_CPU = "on the caller's runtime, one CPU"
OWN_THREAD = "on a thread of its own (the default), one CPU"


def beside(data, store, part, measure, other):
    """The spread of the ratios of ours to the other side."""
    return spread(ratios(data.values(store, part, measure), data.values(store, part, measure, other)))


def quotient(one, other):
    """Of two medians, which did not run in turn."""
    return one.median / other.median if one and other else None


def at(data, store, figure, size):
    return data.curve(store, figure).get(size)


def all_targets(data):
    def rows(what, unit, wanted, find, stores=SHARED, most=True):
        found = {store: find(store) for store in stores}
        return Target(what, unit, wanted, most, {store: it for store, it in found.items() if it is not None})

    def default(store):
        own, caller = (beside(data, store, "uncontended", how, "floor") for how in (OWN_THREAD, ONE_CPU))
        return quotient(own, caller)

    def per_second(store):
        return spread(data.values(store, "contended", "owner changes"))

    def cohort(store):
        turn, others = at(data, store, "cohort: turn", 1_000), per_second(store)
        return 1e6 / turn.median / others.median if turn and others else None

    def killed(store):
        bound = data.find(store, "killed", "next grant", "ours")
        took = spread(data.values(store, "killed", "next grant"))
        return took.median / bound[0]["parameter"] if took else None

    def median(store, figure, size):
        it = at(data, store, figure, size)
        return it.median if it else None

    def requests(store):
        """Of each: those of the sessions, which are the same with one waiter, do not count."""
        alone, many = (median(store, "waiters: requests at the server", size) for size in (1, 1_000))
        return None if None in (alone, many) else max(many - alone, 0) / 999

    def grown(store, figure, size):
        return quotient(at(data, store, figure, size), at(data, store, figure, 1))

    uncontended = dict(file=2.0, etcd=1.1, zookeeper=1.1, consul=1.2, redis=1.2, postgres=1.2, mysql=1.2)
    return [
        rows(
            "uncontended ÷ floor, one CPU, on the caller's runtime",
            "×",
            uncontended,
            lambda store: beside(data, store, "uncontended", ONE_CPU, "floor"),
        ),
        rows("the default, on a thread of its own, ÷ that", "×", 1.1, default),
        rows(
            "eight processes with a lock each ÷ floor",
            "×",
            0.9,
            lambda store: beside(data, store, "apart", "cycles", "floor"),
            most=False,
        ),
        rows(
            "eight processes on one lock, owner changes ÷ the best other lock",
            "×",
            {store: 0.5 if store == "file" else 1.0 for store in SHARED},
            lambda store: beside(data, store, "contended", "owner changes", "rival"),
            most=False,
        ),
        rows(
            "greatest share of the eight ÷ the least",
            "×",
            1.05,
            lambda store: spread(data.values(store, "contended", "greatest ÷ least")),
        ),
        rows("a thousand tasks of one process as a cohort, turns ÷ the owner changes of the eight", "×", 20, cohort, ["etcd"], False),
        rows(
            "longest wait of another session beside them",
            "ms",
            2_000,
            lambda store: median(store, "cohort: longest wait of another session", 1_000),
        ),
        rows(
            "holder killed → next grant",
            "s",
            0.005,
            lambda store: spread(data.values(store, "killed", "next grant")),
            ["file"],
        ),
        rows("the same ÷ the bound of L1", "×", 1.1, killed, SERVERS),
        rows("a waiter among a thousand, requests", "1/s", 0.01, requests, SERVERS),
        rows(
            "a thousand waiters, memory of each",
            "KiB",
            2,
            lambda store: median(store, "waiters: own memory, each", 1_000),
        ),
        rows(
            "a turn with a thousand waiters ÷ with one",
            "×",
            1.2,
            lambda store: grown(store, "waiters: turn", 1_000),
        ),
        rows(
            "a heartbeat with 10,000 held ÷ with one",
            "×",
            3,
            lambda store: grown(store, "held: heartbeat", 10_000),
        ),
    ]


def wanted_of(target, store):
    return target.wanted[store] if isinstance(target.wanted, dict) else target.wanted


def is_met(target, store):
    found = target.found[store]
    figure = getattr(found, "median", found)
    wanted = wanted_of(target, store)
    return figure <= wanted if target.most else figure >= wanted


# What a million sessions take of a server, as the two largest sizes that were measured tell.
Projection = namedtuple("Projection", "sizes times each memory cut")
MILLION = 1_000_000


def projections(data):
    found, cuts = {}, data.cuts("sessions")
    for store in SERVERS:
        times = data.curve(store, "sessions: server's processor")
        memory = data.curve(store, "sessions: server's memory, each")
        if len(times) < 2 or not memory:
            continue
        less, more = list(times)[-2:]
        each = max(times[more].median - times[less].median, 0) / (more - less)
        last = memory[max(memory)].median
        pair = (times[less].median, times[more].median)
        found[store] = Projection((less, more), pair, each, last, cuts.get(store))
    return found
