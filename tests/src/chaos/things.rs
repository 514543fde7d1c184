//! The objects for which clients contend.

use std::time::Duration;

use coordination_history::{Kind, Object};

use super::Store;

/// The groups of clients. Each group has names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// All promises are checked for this group, with one exception: during a server's fault that breaks an assumption
    /// on which exclusion relies, it is not checked whether the group's locks overlap.
    Judged,
    /// An operator damages entries and files of this group. During such a fault, it is not checked whether the group's
    /// locks overlap.
    Spoiled,
}

impl Group {
    pub(super) const ALL: [Self; 2] = [Self::Judged, Self::Spoiled];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// The name of the group. It is also the group's namespace or directory.
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

/// One object, and how clients use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thing {
    /// The id of the object in histories.
    pub(super) id: u32,
    pub(super) group: Group,
    pub(super) name: &'static str,
    pub(super) what: What,
    /// How many tasks of each client contend for the object.
    pub(super) tasks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// `shared` says how many percent of the acquires are shared.
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
    /// A work queue.
    Queue,
}

/// The message for `expect` where a handle is created: with the name of a [`Thing`] this cannot fail.
pub(super) const NAMED: &str = "the name is valid";

/// The id of a register of the fenced resource is its thing's id times this number, plus the slot.
const REGISTERS: u32 = 100;

impl Thing {
    /// The id of the register for a slot of the object. Each slot has a register of its own, because tokens rise only
    /// within a slot.
    pub(super) fn register(&self, slot: Option<u32>) -> u32 {
        REGISTERS * self.id + slot.unwrap_or_default()
    }

    /// The ids of all registers to which holders of this object write.
    fn registers(&self) -> std::ops::Range<u32> {
        let first = self.register(None);
        match self.what {
            What::Lock { .. } | What::Election => first..first + 1,
            What::Semaphore { permits } => first..first + permits,
            // The slots of a limiter are numbered from one.
            What::Limiter { slots, .. } => first + 1..first + slots + 1,
            What::Value | What::Counter | What::Queue => first..first,
        }
    }

    /// The object in the form in which the checker needs it.
    fn object(&self) -> Object {
        let kind = match self.what {
            What::Lock { .. } => Kind::Lock,
            What::Semaphore { permits } => Kind::Slots { count: permits },
            What::Limiter { slots, .. } => Kind::Slots { count: slots },
            What::Election => Kind::Leadership,
            What::Value | What::Counter | What::Queue => Kind::Other,
        };
        let fifo = self.group == Group::Judged && !matches!(kind, Kind::Other);
        Object { id: self.id, name: format!("{}/{}", self.group.name(), self.name), kind, fifo }
    }
}

/// All objects that a group's history has: its things, and their registers.
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

/// Whether the object of a record belongs to the group. A register belongs to the group of its thing.
pub(super) fn is_of(group: Group, object: u32) -> bool {
    let id = if object >= REGISTERS { object / REGISTERS } else { object };
    group.things().any(|thing| thing.id == id)
}

/// How long holds take, and the pauses between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The usual length of a hold, in microseconds.
    pub(super) hold: u64,
    /// The length of the longest holds. They are so long that a fault can begin during them.
    pub(super) longest: Duration,
    /// The usual pause between two turns of a task, in microseconds.
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
    judged(9, "jobs", What::Queue, 2),
    spoiled(11, "alone", What::Lock { shared: 0 }, 2),
    spoiled(12, "together", What::Lock { shared: 50 }, 2),
    spoiled(13, "permits", What::Semaphore { permits: 2 }, 2),
    spoiled(14, "chief", What::Election, 1),
];
