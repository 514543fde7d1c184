//! The objects that clients contend for.

use std::time::Duration;

use coordination_history::{Kind, Object};

use super::Store;

/// The groups of clients; each has names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// All promises hold for this group, except timed exclusion while a fault of a server breaks its assumptions.
    Judged,
    /// An operator damages entries and files of this group.
    Spoiled,
}

impl Group {
    pub(super) const ALL: [Self; 2] = [Self::Judged, Self::Spoiled];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// The name; also the group's namespace or directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Judged => "judged",
            Self::Spoiled => "spoiled",
        }
    }

    pub(super) fn things(self) -> impl Iterator<Item = &'static Thing> {
        THINGS.iter().filter(move |thing| thing.group == self)
    }
}

/// One object, and how it is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thing {
    /// The object's id in histories.
    pub(super) id: u32,
    pub(super) group: Group,
    pub(super) name: &'static str,
    pub(super) what: What,
    /// How many tasks of each client contend for it.
    pub(super) tasks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// `shared` is the percentage of acquires that are shared.
    Lock {
        shared: u32,
    },
    Semaphore {
        permits: u32,
    },
    Limiter {
        slots: u32,
        standby: u32,
    },
    Election,
    Value,
    Counter,
}

/// For `expect`: why creating a handle with the name of a [`Thing`] cannot fail.
pub(super) const NAMED: &str = "the name is valid";

/// The ids of the fenced resource's registers are multiples of this, plus the slot.
const REGISTERS: u32 = 100;

impl Thing {
    /// The register of an object's slot. Each slot has a register of its own, because tokens rise per slot.
    pub(super) fn register(&self, slot: Option<u32>) -> u32 {
        REGISTERS * self.id + slot.unwrap_or_default()
    }

    /// The registers that the object's holders write to.
    fn registers(&self) -> std::ops::Range<u32> {
        let first = self.register(None);
        match self.what {
            What::Lock { .. } | What::Election => first..first + 1,
            What::Semaphore { permits } => first..first + permits,
            // A limiter's slots are numbered from one.
            What::Limiter { slots, .. } => first + 1..first + slots + 1,
            What::Value | What::Counter => first..first,
        }
    }

    /// The object as the checker knows it.
    fn object(&self) -> Object {
        let kind = match self.what {
            What::Lock { .. } => Kind::Lock,
            What::Semaphore { permits } => Kind::Slots { count: permits },
            What::Limiter { slots, .. } => Kind::Slots { count: slots },
            What::Election => Kind::Leadership,
            What::Value | What::Counter => Kind::Other,
        };
        let fifo = self.group == Group::Judged && !matches!(kind, Kind::Other);
        Object { id: self.id, name: format!("{}/{}", self.group.name(), self.name), kind, fifo }
    }
}

/// All objects in a group's history.
pub(super) fn objects(group: Group) -> Vec<Object> {
    let register = |thing: &Thing, id: u32| Object {
        id,
        name: format!("register {id} under {}", thing.name),
        kind: Kind::Other,
        fifo: false,
    };
    let of = |thing: &'static Thing| {
        let registers = thing.registers().map(move |id| register(thing, id));
        std::iter::once(thing.object()).chain(registers)
    };
    group.things().flat_map(of).collect()
}

/// Whether a record's object belongs to the group; a register belongs to the group of its thing.
pub(super) fn is_of(group: Group, object: u32) -> bool {
    let id = if object >= REGISTERS { object / REGISTERS } else { object };
    group.things().any(|thing| thing.id == id)
}

/// The lengths of holds and pauses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The usual length of a hold, in microseconds.
    pub(super) hold: u64,
    /// The longest hold: long enough for a fault to begin meanwhile.
    pub(super) longest: Duration,
    /// The usual pause before the next turn, in microseconds.
    pub(super) rest: u64,
}

pub(super) fn pace(store: Store) -> Pace {
    match store.has_server() {
        false => Pace { hold: 6_000, longest: Duration::from_millis(400), rest: 12_000 },
        true => Pace { hold: 20_000, longest: Duration::from_millis(1_200), rest: 20_000 },
    }
}

const fn judged(id: u32, name: &'static str, what: What, tasks: usize) -> Thing {
    Thing { id, group: Group::Judged, name, what, tasks }
}

const fn spoiled(id: u32, name: &'static str, what: What, tasks: usize) -> Thing {
    Thing { id, group: Group::Spoiled, name, what, tasks }
}

const THINGS: &[Thing] = &[
    judged(1, "alone", What::Lock { shared: 0 }, 2),
    judged(2, "apart", What::Lock { shared: 0 }, 1),
    judged(3, "together", What::Lock { shared: 70 }, 3),
    judged(4, "permits", What::Semaphore { permits: 3 }, 2),
    judged(5, "pool", What::Limiter { slots: 2, standby: 3 }, 2),
    judged(6, "chief", What::Election, 1),
    judged(7, "setting", What::Value, 1),
    judged(8, "sum", What::Counter, 1),
    spoiled(11, "alone", What::Lock { shared: 0 }, 2),
    spoiled(12, "together", What::Lock { shared: 50 }, 2),
    spoiled(13, "permits", What::Semaphore { permits: 2 }, 2),
    spoiled(14, "chief", What::Election, 1),
];
