//! Reading pages before they are asked for.

use super::draft::{Draft, Step, Stop};
use super::layout::Summary;

/// The pages that will be needed as well, if what their summaries say is so, are read together with this one.
///
/// A page that is due has been counted as of earlier: by now all its items may be what is looked for.
pub(super) fn fetch_ahead(
    draft: &mut Draft<'_>,
    page: u64,
    mut wanted: usize,
    is_so: impl Fn(&Summary) -> bool,
) -> Step<()> {
    let Err(Stop::Fetch(_)) = draft.want([draft.page_name(page)]) else { return Ok(()) };
    let now = draft.now;
    let mut names = Vec::new();
    let pages: Vec<_> = draft
        .group(draft.head.live.group_of(page))?
        .range(page..)
        .map(|(page, all)| (*page, *all))
        .collect();
    for (page, summary) in pages.into_iter().filter(|(_, summary)| is_so(summary)) {
        names.push(draft.page_name(page));
        let (all, ready) = (summary.when_dead().dead - summary.dead, summary.ready);
        let counted = if summary.is_due(now) { all } else { ready };
        wanted = wanted.saturating_sub(usize::try_from(counted).unwrap_or(usize::MAX));
        if wanted == 0 {
            break;
        }
    }
    draft.want(names)
}
