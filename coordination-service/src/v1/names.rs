//! Lists of names: `?prefix=&after=&limit=`.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::auth::{Principal, Right};
use crate::problem::{Code, Problem};
use crate::reply::json;
use crate::text;

/// Which names are asked for.
pub(super) struct Names {
    prefix: String,
    after: String,
    limit: usize,
}

impl Names {
    /// What the query says.
    pub(super) fn of(request: &Request) -> Result<Self, Problem> {
        let mut names = Self { prefix: String::new(), after: String::new(), limit: 100 };
        for (key, value) in text::query(request.uri().query()) {
            match key.as_str() {
                "prefix" => names.prefix = value,
                "after" => names.after = value,
                "limit" => {
                    let wrong = || Problem::new(Code::Invalid, "`limit` is 1 to 1,000");
                    let limit = value.parse().ok().filter(|limit| (1..=1_000).contains(limit));
                    names.limit = limit.ok_or_else(wrong)?;
                }
                _ => {
                    let why = "known are `prefix`, `after` and `limit`";
                    return Err(Problem::new(Code::Invalid, why));
                }
            }
        }
        Ok(names)
    }

    /// Those of all names that are asked for and that the caller may see, in order.
    pub(super) fn answer(&self, who: &Principal, mut all: Vec<String>) -> Response {
        let is_meant = |name: &String| name.starts_with(&self.prefix) && *name > self.after;
        all.retain(|name| is_meant(name) && who.may(Right::Read, name));
        all.sort_unstable();
        let next = (all.len() > self.limit).then(|| all[self.limit - 1].clone());
        all.truncate(self.limit);
        json(StatusCode::OK, &json!({ "names": all, "next": next }))
    }
}
