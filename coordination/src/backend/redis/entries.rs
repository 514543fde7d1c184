//! Which queues have entries: by what the live sessions have.

use super::Redis;
use super::script::{Call, Script};
use crate::backend::stored::queue_name;
use crate::error::Result;

impl Redis {
    /// The names of the queues of this kind that have an entry, in order.
    pub(super) async fn names_of_queues(&self, kind: &str) -> Result<Vec<String>> {
        let call = Call::new("list", Script::Queues).with(kind);
        let mut answer = self.connections.call(&call).await?;
        let mut names = Vec::new();
        while !answer.is_at_end() {
            let queue = answer.text()?;
            names.extend(queue_name(&queue, &answer.bytes()?.unwrap_or_default()));
        }
        names.sort_unstable();
        Ok(names)
    }
}
