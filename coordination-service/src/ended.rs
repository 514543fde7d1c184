//! Holds that have ended and are remembered: for who asks what became of one, and who takes the promise of a lost one back.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use coordination::BootInstant;

use crate::ends::End;
use crate::holds::Hold;

/// How long an ended hold is remembered, and how many names all that are remembered have.
const REMEMBERED: (Duration, usize) =
    (Duration::from_secs(600), if cfg!(test) { 2_000 } else { 20_000 });

/// All of them, by their handles.
#[derive(Default)]
pub(crate) struct Ended {
    /// How many names all of them have.
    parts: usize,
    holds: HashMap<String, Known>,
    order: Order,
    clients: HashMap<String, Own>,
    /// The handles of those whose promises stay, by name.
    promised: HashMap<String, Vec<String>>,
}

/// By when their time is over.
type Order = BTreeSet<(BootInstant, String)>;

/// Those of one client.
#[derive(Default)]
struct Own {
    parts: usize,
    order: Order,
}

struct Known {
    hold: Arc<Hold>,
    end: End,
    until: BootInstant,
}

impl Ended {
    /// Remembers it from now on, for longer if its promise stays until a later moment.
    pub(crate) fn add(
        &mut self,
        hold: Arc<Hold>,
        end: End,
        now: BootInstant,
        promised_until: Option<BootInstant>,
    ) {
        let least = now.saturating_add(REMEMBERED.0);
        let until = promised_until.map_or(least, |until| until.max(least));
        // Another one of this handle cannot be asked for any more, and what is kept of it would never be forgotten.
        self.forget(&hold.handle);
        self.forget_old(now, hold.part_count());
        if promised_until.is_some() {
            self.promised.entry(hold.name.clone()).or_default().push(hold.handle.clone());
        }
        let own = self.clients.entry(hold.client.clone()).or_default();
        own.parts += hold.part_count();
        own.order.insert((until, hold.handle.clone()));
        self.order.insert((until, hold.handle.clone()));
        self.parts += hold.part_count();
        self.holds.insert(hold.handle.clone(), Known { hold, end, until });
    }

    /// Those whose time is over, and as many others as are in the way of so many more names.
    fn forget_old(&mut self, now: BootInstant, more: usize) {
        while let Some(handle) = self.over(now).or_else(|| self.in_the_way(more)) {
            self.forget(&handle);
        }
    }

    /// One whose time is over.
    fn over(&self, now: BootInstant) -> Option<String> {
        let (until, handle) = self.order.first()?;
        (*until < now).then(|| handle.clone())
    }

    /// If there is no room for so many more names, one of the client that has most of them: each keeps its share.
    fn in_the_way(&self, more: usize) -> Option<String> {
        if self.parts + more <= REMEMBERED.1 {
            return None;
        }
        let most = self.clients.values().max_by_key(|own| own.parts)?;
        most.order.first().map(|(_, handle)| handle.clone())
    }

    fn forget(&mut self, handle: &str) {
        let Some(Known { hold, until, .. }) = self.holds.remove(handle) else { return };
        self.parts -= hold.part_count();
        let place = (until, handle.to_owned());
        self.order.remove(&place);
        if let Some(own) = self.clients.get_mut(&hold.client) {
            own.parts -= hold.part_count();
            own.order.remove(&place);
            if own.order.is_empty() {
                self.clients.remove(&hold.client);
            }
        }
        if let Some(handles) = self.promised.get_mut(&hold.name) {
            handles.retain(|other| other != handle);
            if handles.is_empty() {
                self.promised.remove(&hold.name);
            }
        }
    }

    pub(crate) fn find(&self, handle: &str) -> Option<(Arc<Hold>, End)> {
        self.holds.get(handle).map(|known| (Arc::clone(&known.hold), known.end))
    }

    /// Those of this name whose promises stay.
    pub(crate) fn promised(&self, name: &str) -> Vec<Arc<Hold>> {
        let handles = self.promised.get(name).into_iter().flatten();
        handles.filter_map(|handle| Some(Arc::clone(&self.holds.get(handle)?.hold))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::{acquire, tests};
    use crate::holds::Found;
    use crate::settings::Cover;
    use crate::wanted::{Wanted, What};

    /// Whoever needs a lost hold no more can say so for as long as its promise stays.
    #[tokio::test]
    async fn a_hold_whose_promise_stays_is_remembered_for_as_long() {
        let (service, _other) = tests::instance(Cover::Any).await;
        let (now, mut ended) = (BootInstant::now(), Ended::default());
        let after = |minutes: u64| now.saturating_add(Duration::from_secs(60 * minutes));
        let mut held = Vec::new();
        for (name, promised_until) in [("a", None), ("b", Some(after(60))), ("c", Some(after(1)))] {
            let wanted = Wanted { name: name.to_owned(), ..tests::wanted(0) };
            let granted = acquire(&service, wanted, None).await.expect("it is free");
            let hold = granted.hold().expect("it is here").clone();
            ended.add(Arc::clone(&hold), End::Released, now, promised_until);
            held.push((granted, hold));
        }
        let known = |ended: &Ended| {
            let is_known = |hold: &Arc<Hold>| ended.find(&hold.handle).is_some();
            held.iter().map(|(_, hold)| is_known(hold)).collect::<Vec<_>>()
        };
        for (minutes, expected) in [(9, [true; 3]), (59, [false, true, false]), (61, [false; 3])] {
            ended.forget_old(after(minutes), 0);
            assert_eq!(known(&ended), expected, "after {minutes} minutes");
            let promised = |name| ended.promised(name).len();
            let numbers = [promised("a"), promised("b"), promised("c")];
            assert_eq!(numbers, [0, usize::from(expected[1]), usize::from(expected[2])]);
        }
    }

    /// What is there twice is there once.
    #[tokio::test]
    async fn a_handle_that_comes_again_takes_the_place_of_the_first() {
        let (service, _other) = tests::instance(Cover::Any).await;
        let granted = acquire(&service, tests::wanted(0), None).await.expect("it is free");
        let hold = granted.hold().expect("it is here");
        let (now, mut ended) = (BootInstant::now(), Ended::default());
        for seconds in [0, 1] {
            let at = now.saturating_add(Duration::from_secs(seconds));
            ended.add(Arc::clone(hold), End::Released, at, None);
        }
        assert_eq!((ended.parts, ended.order.len()), (1, 1));
        ended.forget_old(now.saturating_add(Duration::from_secs(1_200)), 0);
        assert_eq!((ended.parts, ended.order.len(), ended.holds.len()), (0, 0, 0));
    }

    /// H9: whoever has many holds that end has none of another client's forgotten.
    #[tokio::test]
    async fn nobody_has_the_ended_holds_of_others_forgotten() {
        let (service, _other) = tests::instance(Cover::Any).await;
        let names: Vec<_> = (0..32).map(|number| format!("{number:02}")).collect();
        let what = What::Locks { names, shared: false };
        let many = Wanted { what, ..tests::wanted(0) };
        let one = Wanted { client: "you".to_owned(), ..tests::wanted(0) };
        let ended = async |wanted: &Wanted| {
            let granted = acquire(&service, wanted.clone(), None).await.expect("it is free");
            let hold = granted.hold().expect("it is here").clone();
            service.holds.give_up(&hold, End::Released).await.expect("it is held").expect("freed");
            hold.handle.clone()
        };
        let theirs = ended(&one).await;
        let first = ended(&many).await;
        for _ in 0..REMEMBERED.1 / 32 {
            ended(&many).await;
        }
        let is_known = |handle: &str| matches!(service.holds.find(handle), Found::Ended(..));
        assert!(is_known(&theirs));
        assert!(!is_known(&first), "all of them are remembered");
    }
}
