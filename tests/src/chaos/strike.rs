//! Causes the faults of a schedule.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use coordination_history::Event;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{
    fleet::{Book, Fleet},
    installation::{Directory, Installation, Servers},
    nemesis::{Fault, Schedule, Step},
    resource::Resource,
    run::Own,
    things::Group,
};
use crate::harness::{Direction, Mode, Proxy, Unit, wait_until};

/// Everything that faults can affect.
pub(super) struct Nemesis<'a> {
    pub(super) installation: &'a Installation,
    pub(super) fleet: &'a Fleet,
    pub(super) resource: &'a Resource,
    pub(super) book: &'a Arc<Book>,
    pub(super) operator: &'a Own,
}

/// How long to wait after a fault of a server, because some of its effects come later.
const AFTERMATH: Duration = Duration::from_millis(1_000);

/// How long to wait until clients have noticed that an entry was deleted. They notice it by a watch, or at the latest
/// by a heartbeat.
const NOTICED: Duration = Duration::from_millis(500);

/// How long to look for a client that is about to write to the resource.
const UNTIL_WRITING: Duration = Duration::from_millis(500);
/// A client is chosen to be paused only if it is going to write after this time or later. So it is paused before it
/// writes.
const BEFORE_WRITING: Duration = Duration::from_millis(30);

impl Nemesis<'_> {
    /// Causes the faults of the first part of a schedule. Then calls `between`, and then causes the faults of the
    /// second part.
    pub(super) fn run(&self, schedule: &Schedule, between: impl FnOnce()) {
        self.lane(&schedule.alone);
        between();
        thread::scope(|scope| {
            for lane in &schedule.mixed {
                scope.spawn(|| self.lane(lane));
            }
        });
    }

    fn lane(&self, steps: &[Step]) {
        for step in steps {
            let kind = step.fault.kind();
            self.book.note(0, Event::Fault { kind });
            self.strike(step);
            self.book.note(0, Event::FaultEnd { kind });
            thread::sleep(step.quiet);
        }
    }

    fn strike(&self, step: &Step) {
        let mut rng = StdRng::seed_from_u64(step.whom);
        if self.strike_anywhere(step, &mut rng) {
            return;
        }
        match self.installation {
            Installation::Servers(servers) => {
                if !strike_network(servers, step, &mut rng)
                    && !strike_servers(servers, step, &mut rng)
                    && !operate(servers, self.fleet, step, &mut rng)
                {
                    servers.own.strike(step.fault, step.length);
                }
            }
            Installation::File(directory) => self.strike_files(directory, step, &mut rng),
        }
    }

    /// Causes the fault if it is of a kind that is the same on every store, and returns true. Returns false for all
    /// other kinds.
    fn strike_anywhere(&self, step: &Step, rng: &mut StdRng) -> bool {
        match step.fault {
            Fault::ClientKilled => self.kill(1, step.length, rng),
            Fault::ClientsKilled => self.kill(2, step.length, rng),
            Fault::ClientPausedBriefly => self.pause(1, step.length, rng),
            Fault::ClientPaused => self.pause(1, step.length, rng),
            Fault::ClientsPaused => self.pause(2, step.length, rng),
            Fault::LockBroken => {
                self.operator.break_lock(Group::Spoiled, rng);
                self.fleet.runs_for(step.length);
            }
            _ => return false,
        }
        true
    }

    fn kill(&self, count: usize, length: Duration, rng: &mut StdRng) {
        let mortal: Vec<_> =
            (0..self.fleet.len()).filter(|seat| !self.fleet.survives(*seat)).collect();
        let seats: Vec<_> = mortal.sample(rng, count).copied().collect();
        seats.iter().for_each(|seat| self.fleet.kill(*seat));
        thread::sleep(length);
        seats.iter().for_each(|seat| self.fleet.replace(*seat));
    }

    /// Pauses `count` clients. In four of five cases, one of them is a client that has just read a number and is about
    /// to write it, if there is such a client.
    fn pause(&self, count: usize, length: Duration, rng: &mut StdRng) {
        let seats: Vec<_> = (0..self.fleet.len()).collect();
        let mut chosen: Vec<_> = seats.sample(rng, count).copied().collect();
        if rng.random_bool(0.8) {
            let mut reader = None;
            wait_until(UNTIL_WRITING, || {
                let readers = self.resource.readers(BEFORE_WRITING).into_iter();
                reader = readers.filter_map(|number| self.fleet.seat_of(number)).next();
                reader.is_some()
            });
            if let Some(seat) = reader.filter(|seat| !chosen.contains(seat)) {
                chosen[0] = seat;
            }
        }
        self.fleet.pause(&chosen, length);
    }

    fn strike_files(&self, directory: &Directory, step: &Step, rng: &mut StdRng) {
        match step.fault {
            Fault::DiskFull => {
                let filler = directory.disk.fill();
                thread::sleep(step.length);
                fs::remove_file(filler).expect("it is ours");
            }
            Fault::FileHeld => {
                let all: Vec<_> = (0..self.fleet.len()).collect();
                self.fleet.held_up(&all, || directory.hold_queue(step.length, rng));
            }
            Fault::Starved => {
                let all: Vec<_> = (0..self.fleet.len()).collect();
                self.fleet.held_up(&all, || starve(step.length));
            }
            _ => {
                spoil(directory, step.fault, rng);
                self.fleet.runs_for(step.length);
            }
        }
    }
}

/// Keeps all processors busy for this long.
fn starve(length: Duration) {
    let until = Instant::now() + length;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..2 * processors {
            scope.spawn(|| {
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            });
        }
    });
}

/// Damages files in the spoiled group's directory. Does nothing if there are no such files.
fn spoil(directory: &Directory, fault: Fault, rng: &mut StdRng) {
    let [queues, sessions] =
        ["queues", "sessions"].map(|folder| directory.inside(Group::Spoiled, folder));
    let some = |folder, rng: &mut StdRng| Directory::some_file(folder, rng);
    let cut = |path: &PathBuf, length| {
        File::options().write(true).open(path).and_then(|file| file.set_len(length))
    };
    let elsewhere = directory.disk.path().join(format!("gone-{}", rng.random::<u32>()));
    // Errors are ignored. The disk may, for instance, be full at the same time.
    let _ = match (fault, some(&queues, rng)) {
        (Fault::SessionRemoved, _) => some(&sessions, rng).map(fs::remove_file),
        (Fault::SessionsRemoved, _) => Some(fs::remove_dir_all(sessions)),
        (Fault::QueuesRenamed, _) => Some(fs::rename(queues, &elsewhere)),
        (Fault::DirectoryRenamed, _) => Some(fs::rename(directory.of(Group::Spoiled), &elsewhere)),
        (Fault::QueueRemoved, Some(queue)) => Some(fs::remove_file(queue)),
        (Fault::QueueEmptied, Some(queue)) => Some(cut(&queue, 0)),
        (Fault::QueueCut, Some(queue)) => {
            let length = rng.random_range(1..=before_entries(&queue));
            Some(cut(&queue, length))
        }
        (Fault::QueueReplaced, Some(queue)) => Some(replace(&queue, &elsewhere)),
        // No queue has a file yet, so this fault has no effect.
        (
            Fault::QueueRemoved | Fault::QueueEmptied | Fault::QueueCut | Fault::QueueReplaced,
            None,
        ) => None,
        (other, _) => unreachable!("{other:?} does not happen to files"),
    };
    // Removes what was renamed, so that the disk does not fill up: a full disk is a fault of its own. This fails if the
    // old directories are still in use.
    let _ = fs::remove_dir_all(elsewhere);
}

/// The offset of the first entry in a queue's file. If the file were truncated after this offset, the line that says
/// that an entry has left could be removed. Then the entry would exist again for as long as its session lives.
fn before_entries(queue: &Path) -> u64 {
    let text = fs::read(queue).unwrap_or_default();
    let first = text.windows(3).position(|window| window == b"\n+ ");
    first.unwrap_or(text.len()).max(1) as u64
}

/// Replaces a queue's file by a copy. The file is locked while it is copied, so that the copy is not older than the
/// file. An older copy could have entries that were released in the meantime. Their sessions may still live, so these
/// entries would be held again, and the sessions' clients would not know of them.
fn replace(queue: &Path, copy: &Path) -> io::Result<()> {
    let file = File::open(queue)?;
    file.lock()?;
    fs::copy(queue, copy)?;
    fs::rename(copy, queue)
}

/// If the fault is one of the network, causes it on the connections of one client or of all clients, and returns true.
/// Otherwise returns false.
fn strike_network(servers: &Servers, step: &Step, rng: &mut StdRng) -> bool {
    let everybody = rng.random_bool(0.3);
    let seat = rng.random_range(0..servers.links.len());
    let seats = servers.links.iter().enumerate();
    let links: Vec<&Proxy> = seats
        .filter(|(index, _)| everybody || *index == seat)
        .flat_map(|(_, links)| links)
        .collect();
    let [up, down] = [Direction::ToServer, Direction::ToClient];
    let some = |rng: &mut StdRng| if rng.random_bool(0.5) { up } else { down };
    let set = |mode| links.iter().for_each(|link| link.set_both(mode));
    let set_one = |way, mode| links.iter().for_each(|link| link.set(way, mode));
    match step.fault {
        Fault::Delay => set(Mode::Delay(Duration::from_millis(rng.random_range(1..40)))),
        Fault::LongDelay => set(Mode::Delay(Duration::from_millis(rng.random_range(350..900)))),
        Fault::Dribble => set(Mode::Dribble),
        Fault::Stall => set(Mode::Stall),
        Fault::LostToServer => set_one(up, Mode::Blackhole),
        Fault::LostToClient => set_one(down, Mode::Blackhole),
        Fault::LostBothWays => set(Mode::Blackhole),
        Fault::HalfClosed => set_one(some(rng), Mode::HalfClose),
        Fault::Reset => links.iter().for_each(|link| link.reset_all()),
        Fault::Closed => links.iter().for_each(|link| link.close_all()),
        Fault::Refused => links.iter().for_each(|link| {
            link.refuse();
            link.reset_all();
        }),
        Fault::Cut => {
            cut(&links, step.length, rng);
            return true;
        }
        _ => return false,
    }
    thread::sleep(step.length);
    links.iter().for_each(|link| link.heal());
    true
}

/// Cuts each connection at a random message, over and over. Between two cuts, clients have time to reconnect.
fn cut(links: &[&Proxy], length: Duration, rng: &mut StdRng) {
    let until = Instant::now() + length;
    while Instant::now() < until {
        for link in links {
            let way = *[Direction::ToServer, Direction::ToClient].choose(rng).expect("two");
            let count = rng.random_range(1..20);
            if rng.random_bool(0.5) {
                link.cut_after(way, Unit::Messages, count);
            } else {
                link.cut_before(way, Unit::Messages, count);
            }
        }
        thread::sleep(Duration::from_millis(400));
    }
    links.iter().for_each(|link| link.heal());
}

/// If the fault is one of the servers, causes it and returns true. Otherwise returns false.
fn strike_servers(servers: &Servers, step: &Step, rng: &mut StdRng) -> bool {
    let server = servers.server();
    let kill = |nodes: &[usize]| nodes.iter().for_each(|node| server.node(*node).kill());
    match step.fault {
        Fault::ServerPausedBriefly | Fault::ServerPaused | Fault::AllPaused => {
            server.nodes().iter().for_each(|node| node.pause());
        }
        Fault::ServerRestarted | Fault::ServerDown => kill(&[0]),
        Fault::MemberKilled => kill(&[servers.pick(false, rng)]),
        Fault::LeaderKilled => kill(&[servers.pick(true, rng)]),
        Fault::MemberPaused => server.node(servers.pick(false, rng)).pause(),
        Fault::LeaderPaused => server.node(servers.pick(true, rng)).pause(),
        Fault::MemberIsolated => server.isolate(servers.pick(false, rng)),
        Fault::LeaderIsolated => server.isolate(servers.pick(true, rng)),
        Fault::MajorityLost => {
            let first = rng.random_range(0..3);
            kill(&[first, (first + 1) % 3]);
        }
        _ => return false,
    }
    thread::sleep(step.length);
    server.rejoin();
    servers.revive();
    if matches!(step.fault, Fault::LeaderPaused | Fault::AllPaused) {
        // Waits because of what a leader may do right after it is resumed: it may end leases that another leader has
        // renewed.
        thread::sleep(AFTERMATH);
    }
    true
}

/// If the fault is one that an operator can make on any store, causes it and returns true. Otherwise returns false.
fn operate(servers: &Servers, fleet: &Fleet, step: &Step, rng: &mut StdRng) -> bool {
    match step.fault {
        Fault::SessionEnded => {
            servers.end_session(Group::Spoiled, rng);
            fleet.runs_for(step.length);
        }
        Fault::EntryDeleted => {
            let until = Instant::now() + step.length;
            while Instant::now() < until {
                servers.delete_entry(Group::Spoiled, rng);
            }
            fleet.runs_for(NOTICED);
        }
        _ => return false,
    }
    true
}
