//! `coordination info`: what the store promises, and what it does not.

use std::fmt::Write;

use coordination::{Characteristics, Durability, Liveness, LossDetection, Scope};

use crate::args::Store;
use crate::exit::{self, Outcome, print};
use crate::settings;

pub(crate) async fn info(is_json: bool, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let characteristics = coordinator.characteristics();
    let _ = coordinator.stop().await;
    let text = match is_json {
        true => exit::json(&characteristics)?,
        false => text(&characteristics),
    };
    print(&text).map(|()| 0)
}

fn text(store: &Characteristics) -> String {
    let (kept, broken): (Vec<_>, Vec<_>) = lines(store).into_iter().partition(|(holds, _)| *holds);
    let mut text = String::new();
    for (title, lines) in [("This store promises", kept), ("It does not promise", broken)] {
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{title}:");
        for (_, line) in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// Each promise, and whether it holds.
pub(crate) fn lines(store: &Characteristics) -> Vec<(bool, String)> {
    let mut lines = vec![match store.scope {
        Scope::Hosts => (true, "exclusion among the processes of many hosts".to_owned()),
        Scope::Processes => {
            (false, "exclusion among many hosts: it reaches the processes of one".to_owned())
        }
        _ => (false, "exclusion among processes: it reaches the threads of one".to_owned()),
    }];
    lines.push(match store.liveness {
        Liveness::Lease => (
            true,
            "a holder that is cut off, or stands still, loses the lock when its lease ends"
                .to_owned(),
        ),
        _ => (
            false,
            "that a holder which stands still loses the lock: it ends with its process only"
                .to_owned(),
        ),
    });
    lines.push(match store.loss_detection {
        LossDetection::Watch => {
            (true, "a holder whose lock is taken away is told at once".to_owned())
        }
        _ => (
            false,
            "that a holder whose lock is taken away is told at once: it is with its next heartbeat"
                .to_owned(),
        ),
    });
    for (durability, what) in [
        (store.survives_restart, "grants outlive a restart of the store"),
        (store.survives_power_loss, "grants outlive a loss of power"),
        (store.survives_failover, "grants outlive a fail-over to another server"),
    ] {
        match durability {
            Durability::Yes => lines.push((true, what.to_owned())),
            Durability::NotApplicable => {}
            Durability::No => lines.push((false, format!("that {what}"))),
            _ => lines.push((
                false,
                format!("that {what}: it depends on a set-up that cannot be seen from here"),
            )),
        }
    }
    lines.push(match store.fifo {
        true => (true, "who came first is served first".to_owned()),
        false => (false, "an order of service".to_owned()),
    });
    lines.push(match store.fencing_survives_data_loss {
        true => (true, "fencing tokens rise for ever".to_owned()),
        false => {
            (false, "that fencing tokens go on rising when the store loses its data".to_owned())
        }
    });
    if let Some(reason) = store.early_expiry {
        lines.push((false, format!("that a lease lasts its time: {reason}")));
    }
    if let Some(reason) = store.partition_overlap {
        let what = "that only one holds while servers of the store are cut off from each other";
        lines.push((false, format!("{what}: {reason}")));
    }
    lines
}
