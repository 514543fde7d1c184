//! Keeps the mirror up to date while somebody looks at it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, Recipe};

use crate::kind::Kind;
use crate::look;
use crate::service::Service;

/// How often the names in use are listed.
const ROUND: Duration = Duration::from_secs(1);
/// The most names that are read again in a round though nothing is known to have changed.
const READS: usize = 200;
/// How long changes of our own holds are collected.
const COALESCE: Duration = Duration::from_millis(50);

/// Keeps the rows up to date for as long as the service runs.
pub(crate) async fn run(service: Arc<Service>) {
    let mut cursor = String::new();
    loop {
        if service.mirror.watchers() == 0 {
            if !service.mirror.watched().await {
                return;
            }
            // What was read when somebody looked last is old.
            service.mirror.clear();
            drop(service.holds.take_touched());
        }
        if let Ok(coordinator) = service.coordinator()
            && let Err(error) = round(&service, &coordinator, &mut cursor).await
        {
            tracing::debug!(%error, "the rows could not be read");
        }
        let end = tokio::time::Instant::now() + ROUND;
        // A service that is always busy has rounds, too: what was touched is looked at first, however late it is.
        while service.mirror.watchers() > 0
            && tokio::time::Instant::now() < end
            && tokio::time::timeout_at(end, service.holds.touch.notified()).await.is_ok()
        {
            tokio::time::sleep(COALESCE).await;
            let touched = service.holds.take_touched();
            if let Ok(coordinator) = service.coordinator() {
                for (_, name) in touched.into_iter().filter(|(kind, _)| *kind == Kind::Lock) {
                    if let Ok(entries) =
                        look::entries(&service, &coordinator, Kind::Lock, &name).await
                    {
                        service.mirror.put(&name, &entries);
                    }
                }
            }
        }
    }
}

/// Lists the names, reads those that are new, and of the others as many as may be, one round after the other.
async fn round(
    service: &Service,
    coordinator: &Coordinator,
    cursor: &mut String,
) -> coordination::Result<()> {
    let names: BTreeSet<_> = coordinator.in_use(Recipe::Lock).await?.into_iter().collect();
    let known = service.mirror.names();
    for name in known.difference(&names) {
        service.mirror.put(name, &[]);
    }
    for name in names.difference(&known) {
        read(service, coordinator, name).await?;
    }
    let old: Vec<_> = known.intersection(&names).collect();
    let start = old.partition_point(|name| name.as_str() <= cursor.as_str());
    for name in old.iter().cycle().skip(start).take(READS.min(old.len())) {
        read(service, coordinator, name).await?;
        cursor.clone_from(name);
    }
    service.mirror.completed();
    Ok(())
}

async fn read(
    service: &Service,
    coordinator: &Coordinator,
    name: &str,
) -> coordination::Result<()> {
    let entries = look::entries(service, coordinator, Kind::Lock, name).await?;
    if !service.mirror.has(name, &entries) {
        service.mirror.put(name, &entries);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::acquire;
    use crate::acquire::tests::{instance, wanted};
    use crate::settings::Cover;

    /// Of locks of other processes nothing is told: they are only found by a round.
    #[tokio::test]
    async fn a_busy_service_looks_at_what_others_hold() {
        let (service, other) = instance(Cover::Any).await;
        let _watching = service.mirror.watching(1).expect("nobody else looks");
        let mut granted = acquire(&service, wanted(0), None).await.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        granted.deliver();
        tokio::spawn(run(Arc::clone(&service)));
        let holds = Arc::clone(&service.holds);
        let renewing = tokio::spawn(async move {
            while holds.renew(&hold, None).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let appears = async |name: &str| {
            let appears = async {
                while !service.mirror.names().contains(name) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(15 * ROUND, appears).await.is_ok()
        };
        assert!(appears("x").await);
        let _held = other.lock("y").expect("a name").acquire(None).await.expect("it is free");
        assert!(appears("y").await, "no round");
        assert!(!renewing.is_finished());
    }
}
