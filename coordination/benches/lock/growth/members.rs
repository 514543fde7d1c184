//! Members of a group.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Group, GroupEvent, GroupWatch, Membership};

use super::cycles::{make, repeated};
use super::idle::Idle;
use super::{Curve, Figure, Subject};
use crate::Outcome;

/// How often a join is timed until another session is told of it.
const TOLD: usize = 5;
/// So long that no heartbeat comes late while many join.
const LEASE: Duration = Duration::from_secs(60);

pub(super) struct Members {
    idle: Idle,
    group: Group,
    members: Vec<Membership>,
    /// Another session's.
    watch: GroupWatch,
    _sessions: [Coordinator; 2],
}

impl Curve for Members {
    const NAME: &'static str = "members";
    const SIZES: &'static [usize] = &[1, 10, 100, 1_000, 10_000];

    async fn start(subject: &Subject) -> Outcome<Self> {
        let sessions = [connect(&subject.url).await?, connect(&subject.url).await?];
        let group = sessions[0].group("growth")?;
        group.create().await?;
        let watch = sessions[1].group("growth")?.watch().await?;
        let idle = Idle::begin(subject)?;
        Ok(Self { idle, group, members: Vec::new(), watch, _sessions: sessions })
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    async fn grow(&mut self, size: usize, until: Instant) -> Outcome {
        let numbers = self.members.len()..size;
        let group = &self.group;
        make(&mut self.members, numbers, until, |number| {
            let group = group.clone();
            async move { group.join_as(format!("member-{number}"), &()).await }
        })
        .await
    }

    async fn measure(&mut self) -> Outcome<Vec<Figure>> {
        let group = &self.group;
        let joins = repeated(async || Ok(group.join_as("one-more", &()).await?.leave().await?));
        let joins = joins.await?;
        let lists = repeated(async || Ok(group.members().await.map(drop)?)).await?;
        let mut told = Vec::new();
        for number in 0..TOLD {
            told.push(self.told(&format!("newcomer-{number}")).await?);
        }
        let mut figures = self.idle.figures(self.members.len()).await?;
        figures.push(Figure::new("join + leave of another", "µs", joins));
        figures.push(Figure::new("list", "µs", lists));
        figures.push(Figure::new("join until a watcher is told", "µs", told));
        Ok(figures)
    }
}

impl Members {
    /// Microseconds until the watcher is told of a member of this name.
    async fn told(&mut self, name: &str) -> Outcome<f64> {
        let Self { group, watch, .. } = self;
        while watch.try_next()?.is_some() {}
        let begun = Instant::now();
        let joining = group.join_as(name, &());
        let telling = async {
            loop {
                if let GroupEvent::Joined(member) = watch.next().await?
                    && &*member.id == name
                {
                    return Ok::<_, coordination::Error>(begun.elapsed());
                }
            }
        };
        let (member, told) = tokio::try_join!(joining, telling)?;
        member.leave().await?;
        Ok(told.as_secs_f64() * 1e6)
    }
}

async fn connect(url: &str) -> coordination::Result<Coordinator> {
    Coordinator::builder().heartbeat_on_current_runtime(true).ttl(LEASE).connect(url).await
}
